"""Attempts: what is kept of them, when another one follows, and when a run is over."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kernel_workbench.reports.record import BenchRow, RunHeader
from kernel_workbench.suites.fleet.attempts import MOST_LOSSES, SILENT_S, Attempts
from kernel_workbench.suites.fleet.engine import Beat, Ended, Event, Lost, Pair, Started, Text
from tests.builders.accuracy_records import example_rows
from tests.builders.profile_records import profile_rows
from tests.suites.fleet.script import end, header, pair, row, text


def _begun(suite: str = "bench", count: int = 1) -> Attempts:
    attempts = Attempts(suite)
    for number in range(1, count + 1):
        attempts.begin(number, f"n{number}")
    return attempts


def _told(attempts: Attempts, number: int, *events: Event) -> list[Pair | str]:
    """Pairs of the rows that are kept of these events, "header" for a header."""
    found: list[Pair | str] = []
    for event in events:
        for line in attempts.take(number, event, 0.0):
            if isinstance(line, RunHeader):
                found.append("header")
            else:
                assert isinstance(line, BenchRow)
                found.append((line.kernel, line.case.id))
    return found


def test_whole_run_is_over_with_all_of_its_rows() -> None:
    """Each row is kept once, and no problem is left."""
    attempts = _begun()
    told = text(header(2), row(1), row(2), end(2))
    assert _told(attempts, 1, Started("h"), told, Ended(0, "")) == ["header", pair(1), pair(2)]
    assert attempts.over
    assert (attempts.planned, attempts.problem, attempts.again) == (2, None, None)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_lines_come_in_pieces_of_any_size(size: int) -> None:
    """A piece may end in mid-line, and in mid-character of what isn't ASCII."""
    attempts = _begun()
    named = row(1).model_copy(update={"reason": "größer"})
    data = text(header(2), named, row(2), end(2)).data
    pieces = [Text(data[at : at + size]) for at in range(0, len(data), size)]
    assert _told(attempts, 1, *pieces, Ended(0, "")) == ["header", pair(1), pair(2)]
    assert attempts.problem is None


def test_lost_attempt_is_followed_by_one_with_what_is_missing() -> None:
    """A line that was cut counts for nothing, the lost node is avoided, and no row comes twice."""
    attempts = _begun()
    data = text(header(3), row(1), row(2)).data
    assert _told(attempts, 1, Started("h1"), Text(data[:-9]), Lost("gone")) == ["header", pair(1)]
    assert attempts.again == "h1: gone"
    assert attempts.avoided == {"n1"}
    assert attempts.done == (pair(1),)
    attempts.begin(2, "n2")
    told = text(header(2), row(1), row(2), row(3), end(3))
    assert _told(attempts, 2, told, Ended(0, "")) == ["header", pair(2), pair(3)]
    assert (attempts.planned, attempts.problem, len(attempts.rows)) == (3, None, 3)


def test_late_output_of_an_older_attempt_is_dropped() -> None:
    """Output of a stopped node that goes on appears nowhere, and keeps nobody waiting."""
    attempts = _begun(count=2)
    late: Sequence[Event] = (text(header(2), row(1)), Beat(), Ended(0, ""), Lost("late"))
    assert _told(attempts, 1, *late) == []
    assert (attempts.over, attempts.again, attempts.rows) == (False, None, {})


def test_run_that_is_lost_after_its_last_row_is_whole() -> None:
    """Nothing is left to make elsewhere."""
    attempts = _begun()
    _told(attempts, 1, Started("h"), text(header(2), row(1), row(2)), Lost("gone"))
    assert (attempts.over, attempts.again, attempts.problem) == (True, None, None)


def test_run_is_moved_twice_at_most() -> None:
    """The third loss is the end, and its reason is told."""
    attempts = _begun()
    for number in range(1, MOST_LOSSES + 1):
        _told(attempts, number, Lost("gone"))
        assert attempts.again is not None
        attempts.begin(number + 1, f"n{number + 1}")
    _told(attempts, MOST_LOSSES + 1, Lost("gone again"))
    assert attempts.over
    assert "gone again; that was attempt 3" in str(attempts.problem)


def test_silence_is_counted_from_the_last_word() -> None:
    """An attempt that waits for its node isn't silent; one that beats isn't either."""
    attempts = _begun()
    assert not attempts.is_silent(1e6)
    list(attempts.take(1, Started("h"), 100.0))
    assert not attempts.is_silent(100.0 + SILENT_S)
    list(attempts.take(1, Beat(), 110.0))
    assert not attempts.is_silent(101.0 + SILENT_S)
    assert attempts.is_silent(110.1 + SILENT_S)


def test_case_that_ends_its_process_twice_is_recorded_as_crashed() -> None:
    """Twice on the same node, which isn't to blame; then the run goes on without it."""
    attempts = _begun()
    for number in (1, 2):
        assert attempts.crashed == ()
        _told(attempts, number, text(header(2)), Ended(137, "", pair(1)))
        assert "ended with status 137 in k on " in str(attempts.again)
        attempts.begin(number + 1, "n1")
    assert attempts.crashed == (pair(1),)
    assert (attempts.avoided, attempts.losses) == (set(), 0)


def test_process_that_dies_between_cases_counts_as_a_loss() -> None:
    """No case is to blame where the last one that was tried has its row."""
    attempts = _begun()
    _told(attempts, 1, text(header(2), row(1)), Ended(137, "killed", pair(1)))
    assert (attempts.losses, attempts.crashed, attempts.avoided) == (1, (), set())
    assert "status 137: killed" in str(attempts.again)


def test_refused_options_are_told_and_not_tried_again() -> None:
    """A suite's refusal before it begins a record would come again elsewhere."""
    attempts = _begun()
    _told(attempts, 1, Started("h"), Ended(4, "bench: torch sees no GPU here"))
    assert (attempts.over, attempts.problem) == (True, "bench: torch sees no GPU here")


def test_run_that_lost_its_gpu_is_moved() -> None:
    """Its end says that it was interrupted, which nobody at the driver has done."""
    attempts = _begun()
    _told(attempts, 1, text(header(2), row(1), end(1, interrupted=True)), Ended(2, "lost"))
    assert attempts.again is not None
    assert attempts.avoided == {"n1"}


def test_run_that_was_to_stop_early_is_over() -> None:
    """-x ends a run in a row that failed: as was asked for."""
    attempts = _begun()
    stopped = end(1, interrupted=True).model_copy(update={"stopped": "-x: a row failed"})
    _told(attempts, 1, text(header(2), row(1), stopped), Ended(1, ""))
    assert (attempts.over, attempts.again, attempts.problem) == (True, None, "-x: a row failed")


def test_last_pair_of_profile_is_tried_again() -> None:
    """It has rows of several distributions, of which some may be missing; none is kept twice."""
    attempts, rows = Attempts("profile"), profile_rows()
    assert all(map(attempts.keep, rows))
    assert not any(map(attempts.keep, rows))
    pairs = list(dict.fromkeys((each.kernel, each.case.id) for each in rows))
    assert attempts.done == tuple(pairs[:-1])


def test_pairs_of_several_configurations_are_tried_again() -> None:
    """How many rows each has isn't known here; none is kept twice."""
    attempts, (own, *_) = Attempts("accuracy"), example_rows()
    held = [own.model_copy(update={"configuration": each}) for each in ("two", "four")]
    assert attempts.keep(own)
    assert attempts.done == ((own.kernel, own.case.id),)
    assert all(map(attempts.keep, held))
    assert not attempts.done
    assert not any(map(attempts.keep, (own, *held)))


def test_search_is_not_moved() -> None:
    """A search's draws are lost with its process; its findings are kept."""
    attempts = _begun("search")
    _told(attempts, 1, Lost("gone"))
    assert attempts.over
    assert "a search isn't moved" in str(attempts.problem)


def test_what_is_no_record_is_a_loss() -> None:
    """Bytes that no suite writes never reach a record."""
    attempts = _begun()
    assert _told(attempts, 1, text(header(1)), Text(b'{"kind": "odd"}\n')) == ["header"]
    assert "it sent bytes that are no record" in str(attempts.again)
