"""A fleet's records, of clusters that play a script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.record import Record, RecordContinuation, RecordWriter, read
from kernel_workbench.suites.fleet.attempts import Attempts
from kernel_workbench.suites.fleet.driver import Fleet, Lane
from kernel_workbench.suites.fleet.engine import Event, FleetError, Lost, Order, Started
from kernel_workbench.suites.fleet.shelf import Shelf
from tests.suites.fleet.script import Script, end, header, pair, row, text, whole

Part = Sequence[Event | type[KeyboardInterrupt]]
_COMMAND = "nox -s bench -- x"


def _run(folder: Path, *parts: Part, nodes: int = 4) -> tuple[int, Script, list[Record]]:
    """Run a lane under a script; the status, the script, and the records as they are read."""
    script = Script(parts, nodes=[f"n{each}" for each in range(1, nodes + 1)])
    lane = Lane("H200", Attempts("bench"), Shelf(folder, _COMMAND))
    lane.shelf.resume(lane.attempts, "t")
    status = Fleet(script, Order("bench", ("x",)), [lane]).run()
    assert script.closed
    return status, script, [read(each) for each in lane.shelf.rows]


def _cases(*records: Record) -> list[str]:
    return [each.case.id for record in records for each in record.benches]


def test_run_makes_one_record_as_a_machine_writes_it(tmp_path: Path) -> None:
    """Header, rows and end; the folder is looked into like any other."""
    status, _, (record,) = _run(tmp_path, whole(1, 2))
    assert (status, record.problem) == (0, None)
    assert record.header.model_copy(update={"started_at": ""}) == header(2).model_copy(
        update={"started_at": ""}
    )
    assert record.benches == (row(1), row(2))


def test_moved_run_on_another_board_makes_two_records(tmp_path: Path) -> None:
    """No record has rows of two boards, and no row is in both; the first says where the rest is."""
    lost: Part = [Started("h1"), text(header(3), row(1)), Lost("the node died")]
    status, script, records = _run(tmp_path, lost, whole(2, 3, board="GPU-2"))
    first, second = records
    assert status == 0
    assert script.orders[1].done == (pair(1),)
    assert _cases(first) == [row(1).case.id]
    assert _cases(second) == [row(2).case.id, row(3).case.id]
    assert second.path.name in str(first.problem)
    assert (second.problem, second.header.planned_rows) == (None, 2)
    boards = [each.header.environment.gpu_uuid for each in records]
    assert boards == ["GPU-1", "GPU-2"]


def test_moved_run_on_the_same_board_goes_on_with_its_record(tmp_path: Path) -> None:
    """As after a worker that died on a node that lives."""
    lost: Part = [Started("h1"), text(header(3), row(1)), Lost("its worker died")]
    status, _, (record,) = _run(tmp_path, lost, whole(2, 3))
    assert (status, record.problem, len(_cases(record))) == (0, None, 3)


def test_run_without_another_node_leaves_what_it_has(tmp_path: Path) -> None:
    """The record is readable and says why rows are missing."""
    lost: Part = [Started("h1"), text(header(3), row(1)), Lost("the node died")]
    status, _, (record,) = _run(tmp_path, lost, nodes=1)
    assert status == ExitStatus.INCOMPLETE
    assert "h1: the node died; there is no other node that has H200" in str(record.problem)
    assert _cases(record) == [row(1).case.id]


def test_interrupted_fleet_is_gone_on_with(tmp_path: Path) -> None:
    """After Ctrl-C the record is closed; the same folder later gets the rows that are missing."""
    cut: Part = [Started("h1"), text(header(3), row(1)), KeyboardInterrupt]
    status, _, (record,) = _run(tmp_path, cut)
    assert status == ExitStatus.INCOMPLETE
    assert "interrupted" in str(record.problem)
    status, script, (record,) = _run(tmp_path, whole(2, 3))
    assert script.orders[0].done == (pair(1),)
    assert (status, record.problem, len(_cases(record))) == (0, None, 3)


def test_complete_fleet_starts_nothing_again(tmp_path: Path) -> None:
    """All rows are there."""
    _run(tmp_path, whole(1, 2))
    status, script, (record,) = _run(tmp_path)
    assert (status, script.orders, record.problem) == (0, [], None)


@pytest.mark.parametrize("cut", [0, 9])
def test_record_of_a_killed_driver_is_gone_on_with(tmp_path: Path, cut: int) -> None:
    """It has no end, and its last line may be cut: then that row is made again."""
    with RecordWriter(tmp_path / "bench-20261123T070000Z-gpu.jsonl", header(3)) as writer:
        writer.write(row(1))
        writer.write(row(2))
    data = writer.path.read_bytes()
    writer.path.write_bytes(data[: len(data) - cut])
    missing = (3,) if cut == 0 else (2, 3)
    status, script, (record,) = _run(tmp_path, whole(*missing))
    assert len(script.orders[0].done) == 3 - len(missing)
    assert (status, record.problem) == (0, None)
    assert record.benches == (row(1), row(2), row(3))


def test_continued_record_is_one_that_was_never_cut(tmp_path: Path) -> None:
    """Byte for byte, its end aside."""
    path, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    with RecordWriter(path, header(2)) as writer:
        writer.write(row(1))
        writer.close(end(1, interrupted=True))
    with RecordContinuation(read(path)) as continued, RecordWriter(other, header(2)) as straight:
        straight.write(row(1))
        for each in (continued, straight):
            each.write(row(2))
            each.close(end(2))
    assert path.read_bytes() == other.read_bytes()


def test_changed_checkout_is_not_gone_on_with(tmp_path: Path) -> None:
    """Nor is another command: rows of two runs would stand in one record."""
    _run(tmp_path, [Started("h1"), text(header(2), row(1)), KeyboardInterrupt])
    with pytest.raises(FleetError, match="the checkout has changed since"):
        Shelf(tmp_path, _COMMAND).resume(Attempts("bench"), "other")
    with pytest.raises(FleetError, match=r"is of another command; its own was: nox -s bench -- x"):
        Shelf(tmp_path, "nox -s bench -- y").resume(Attempts("bench"), "t")


def test_wrong_row_sets_the_exit_status(tmp_path: Path) -> None:
    """Also where the attempt that had it was lost."""
    wrong = row(1).model_copy(update={"status": "wrong", "gates": True})
    lost: Part = [Started("h1"), text(header(2), wrong), Lost("gone")]
    status, _, _ = _run(tmp_path, lost, whole(2))
    assert status == 1
