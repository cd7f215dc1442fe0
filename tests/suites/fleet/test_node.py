"""The suite that runs on a node, and the guard that ends it where nobody listens any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

import pytest

from kernel_workbench.oracles import OPS
from kernel_workbench.reports.record import AccuracyRow, RunHeader
from kernel_workbench.suites.fleet.attempts import Attempts
from kernel_workbench.suites.fleet.engine import Beat, Ended, Event, Order, Started, Text
from kernel_workbench.suites.fleet.node import _sweep, _variables, lacks, run
from tests import ROOT
from tests.builders.commands import wait_for

pytestmark = pytest.mark.long_run

# A command that tells its child's process id, and goes on as that does.
_PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""
_SUITE = ("--device", "cpu", "--op", "attention_delta", "--kernel", "delta", "--in-process")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, Path]]:
    """A guard whose command has started a child; the child's id, and the file of beats."""
    beat = tmp_path / "beat"
    command = [
        sys.executable,
        "-m",
        "kernel_workbench.suites.fleet.guard",
        str(beat),
        sys.executable,
        "-c",
        _PARENT,
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe) as process:
        yield process, int(_of(process.stdout).readline()), beat
        process.kill()


def _of(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def test_what_is_guarded_ends_with_who_listens(
    guarded: tuple[subprocess.Popen[bytes], int, Path],
) -> None:
    """Children of the command too, as soon as the pipe closes."""
    guard, child, _ = guarded
    command = _parent(child)
    _of(guard.stdin).close()
    assert guard.wait() == 128 + signal.SIGKILL
    assert not _lives(child)
    assert not _lives(command)


def test_command_ends_with_its_guard(guarded: tuple[subprocess.Popen[bytes], int, Path]) -> None:
    """Where the guard itself is killed."""
    guard, child, _ = guarded
    command = _parent(child)
    guard.kill()
    wait_for(lambda: not _lives(command))
    os.kill(child, signal.SIGKILL)  # a suite's own children end with it


def test_stopped_command_does_not_beat(
    guarded: tuple[subprocess.Popen[bytes], int, Path],
) -> None:
    """While the guard looks at it, time and again; it beats when the command goes on."""
    guard, child, beat = guarded
    wait_for(lambda: beat.stat().st_size > 0)
    command, looks = _parent(child), _looks(guard.pid)
    os.kill(command, signal.SIGSTOP)
    wait_for(lambda: _looks(guard.pid) > looks + 10)
    beats, looks = beat.stat().st_size, _looks(guard.pid)
    wait_for(lambda: _looks(guard.pid) > looks + 30)  # it beats every ten
    assert beat.stat().st_size == beats
    os.kill(command, signal.SIGCONT)
    wait_for(lambda: beat.stat().st_size > beats)


def _looks(process: int) -> int:
    """How often a process has gone to sleep: once for each look."""
    text = Path(f"/proc/{process}/status").read_text()
    (line,) = (each for each in text.splitlines() if each.startswith("voluntary_ctxt_switches"))
    return int(line.split()[1])


def _rows(events: list[Event]) -> list[AccuracyRow]:
    """The rows that the driver would keep of these events."""
    attempts = Attempts("accuracy")
    attempts.begin(1, "n1")
    lines = [line for event in events for line in attempts.take(1, event, 0.0)]
    assert isinstance(lines[0], RunHeader)
    assert (attempts.over, attempts.problem, attempts.planned) == (True, None, len(lines) - 1)
    return [each for each in lines if isinstance(each, AccuracyRow)]


def test_order_is_run_and_told_of() -> None:
    """A done pair gets no row, a crashed pair one that says so; the last pair tried is named."""
    ids = [case.id() for case in OPS["attention_delta"].cases() if case.dtype_label == "float32"]
    done, crashed, tried = (("delta", each) for each in ids[:3])
    asked = [word for _, case in (done, crashed, tried) for word in ("--case", case)]
    order = Order("accuracy", (*_SUITE, *asked), done=(done,), crashed=(crashed,))
    events = list(run(order))
    assert isinstance(events[0], Started)
    assert all(isinstance(each, Text | Beat) for each in events[1:-1])
    found = {(row.kernel, row.case.id): row for row in _rows(events)}
    assert found.keys() == {crashed, tried}
    row = found[crashed]
    assert (row.status, row.rule) == ("failed", "process ended")
    assert "its process ended twice" in str(row.reason)
    assert found[tried].status == "passed"
    last = events[-1]
    assert isinstance(last, Ended)
    assert (last.status, last.pair) == (1, tried)


def test_run_that_nobody_listens_to_ends() -> None:
    """The suite's processes are gone when its generator is closed."""
    others = _children()
    with closing(run(Order("accuracy", _SUITE))) as events:
        assert isinstance(next(events), Started)
        next(events)
        children = _children() - others
        assert children
    assert not any(map(_lives, children))


def _children() -> set[int]:
    text = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    return set(map(int, text.split()))


def test_node_tells_what_it_lacks() -> None:
    """By the names under which packages are installed."""
    assert lacks(["pydantic", "no-such-package"]) == ("no-such-package",)


@pytest.mark.parametrize(
    ("given", "used"),
    [("1", "1"), ("10,2,0", "0,2,10"), ("", ""), ("GPU-b,GPU-a", "GPU-a,GPU-b")],
)
def test_run_uses_the_same_board_of_a_node_each_time(given: str, used: str) -> None:
    """Ray names a task's GPUs in any order; it says how many threads to use, too."""
    told = {"CUDA_VISIBLE_DEVICES": given, "OMP_NUM_THREADS": "1", "HOME": "/h"}
    assert _variables(told) == {"CUDA_VISIBLE_DEVICES": used, "HOME": "/h"}
    assert _variables({"HOME": "/h"}) == {"HOME": "/h"}


def test_files_of_dead_runs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a run that beat lately stay, as do files that aren't a run's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = "kernel-workbench-fleet-old", "kernel-workbench-fleet-new", "other"
    for each in names:
        (tmp_path / each).mkdir()
        (tmp_path / each / "beat").touch()
        if each != names[1]:
            os.utime(tmp_path / each / "beat", (0, 0))
    _sweep()
    assert {each.name for each in tmp_path.iterdir()} == set(names[1:])
