"""A fleet by Slurm: what is submitted, and a run by submitit's executor for one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from submitit.slurm.slurm import SlurmExecutor

from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.record import read
from kernel_workbench.suites.fleet.attempts import Attempts
from kernel_workbench.suites.fleet.driver import Fleet, Lane
from kernel_workbench.suites.fleet.engine import (
    Beat,
    Ended,
    Event,
    FleetError,
    Lost,
    Order,
    Started,
    Text,
)
from kernel_workbench.suites.fleet.shelf import Shelf
from kernel_workbench.suites.fleet.slurm_engine import SlurmEngine, _event, _written

# submitit leaves its local jobs to end by themselves.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
_CASE = "attention_delta-b1-h_q1-s_q0-d_v64-float32-contiguous"


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of commands, of which the PATH has no others: those of Slurm, that say what is set.

    sbatch takes every job as number 7; sinfo tells two types of GPU.
    """
    folder = tmp_path / "commands"
    folder.mkdir()
    said = {"sbatch": "Submitted batch job 7", "sinfo": "gpu:h200:8(S:0-1)\ngpu:a100:4,x:1"}
    for name, text in {**said, "srun": "", "scancel": "", "sacct": ""}.items():
        file = folder / name
        file.write_text(f"#!/bin/sh\necho '{text}'\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_job_has_its_node_to_itself(commands: Path, tmp_path: Path) -> None:
    """With a gres for the type, what the user adds, and no second try that Slurm makes itself."""
    engine = SlurmEngine(tmp_path, {"partition": "gpu", "time": "30"})
    executor = engine.executor("h200", ())._executor
    assert isinstance(executor, SlurmExecutor)
    script = executor._make_submission_file_text("true", "id")
    asked = {each.removeprefix("#SBATCH --") for each in script.splitlines() if "#SBATCH" in each}
    assert {"exclusive", "gres=gpu:h200:1", "partition=gpu", "time=30", "no-requeue"} <= asked
    assert not any(each.startswith("exclude=") for each in asked)
    engine._hosts["job 7"] = "node-3"
    executor = engine.executor("h200", {"job 7"})._executor
    assert isinstance(executor, SlurmExecutor)
    assert "#SBATCH --exclude=node-3\n" in executor._make_submission_file_text("true", "id")
    assert (commands / "sbatch").is_file()


@pytest.mark.usefixtures("commands")
def test_type_that_no_partition_has_is_refused(tmp_path: Path) -> None:
    """At once, with those that there are."""
    engine = SlurmEngine(tmp_path, {})
    engine.preflight(["h200", "a100"])
    with pytest.raises(FleetError, match=r"--on b200: no partition .* there is a100, h200"):
        engine.preflight(["h200", "b200"])


def test_machine_without_slurm_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In one sentence."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FleetError, match="there is no sbatch here"):
        SlurmEngine(tmp_path, {})


@pytest.mark.parametrize(
    "event",
    [
        Started("node-3"),
        Text(bytes(range(256))),
        Beat(),
        Ended(137, "größer\nzwei", ("k", "c")),
        Ended(0, ""),
        Lost("gone"),
    ],
)
def test_event_survives_its_file(event: Event) -> None:
    """On one line, with bytes of any value."""
    line = _written(event)
    assert line.count(b"\n") == 1
    assert _event(line) == event


def _fleet(folder: Path, *arguments: str) -> tuple[Fleet, Lane]:
    engine = SlurmEngine(folder, {}, cluster="local")
    lane = Lane("cpu", Attempts("accuracy"), Shelf(folder / "cpu", "nox -s accuracy"))
    own = ("--device", "cpu", "--in-process", *arguments)
    return Fleet(engine, Order("accuracy", own), [lane]), lane


def test_run_by_a_local_job_leaves_a_whole_record(tmp_path: Path) -> None:
    """The same as a single machine's; the files between driver and job are gone."""
    fleet, lane = _fleet(tmp_path, "--kernel", "delta", "--case", _CASE)
    assert fleet.run() == 0, lane.attempts.problem
    (path,) = lane.shelf.rows
    record = read(path)
    assert record.problem is None
    assert [row.case.id for row in record.rows] == [_CASE]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["cpu", "jobs"]


def test_what_a_suite_refuses_is_told_by_the_driver(tmp_path: Path) -> None:
    """Its sentence, and no other attempt."""
    fleet, lane = _fleet(tmp_path, "--kernel", "no_such_kernel")
    assert fleet.run() == ExitStatus.USAGE
    assert "--kernel no_such_kernel: there is no such kernel" in str(lane.attempts.problem)
    assert (lane.attempts.count, lane.shelf.rows) == (1, {})


def test_job_that_ends_without_a_word_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that Slurm killed; the driver goes on to say so."""
    monkeypatch.setattr("kernel_workbench.suites.fleet.slurm_engine._LOST_AFTER_S", 0.0)
    monkeypatch.setattr("kernel_workbench.suites.fleet.slurm_engine.run_job", _says_nothing)
    fleet, lane = _fleet(tmp_path)
    assert fleet.run() == ExitStatus.INCOMPLETE
    assert "didn't report how" in str(lane.attempts.problem)


def _says_nothing(*_: Any) -> None:  # noqa: ANN401
    """A job that does nothing."""
