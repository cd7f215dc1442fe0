"""`nox -s bench -- --rounds N`: a record of several processes, from end to end on the CPU."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from reports.record import Record, read
from tests.builders.commands import Running, run_python, wait_for

_SMALL = "layer_norm_backward-m64-n256-float32-contiguous"
_COMMAND = [
    *("-m", "pytest", "suites/bench", "-qq", "-p", "no:cacheprovider"),
    *("-p", "tests.builders.known_ground"),
    *("--device=cpu", "--row-time=0.05", f"--case={_SMALL}", "--kernel=torch_eager"),
]


def _record(folder: Path) -> Record:
    (path,) = folder.glob("*.jsonl")
    return read(path)


def test_row_has_each_process(tmp_path: Path) -> None:
    """Its median is the processes', and ± goes from the lowest of theirs to the highest."""
    done = run_python(*_COMMAND, "--rounds=2", f"--results={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bench: process 2 of 2" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.count("record: ") == 1, "one report, of both"
    record = _record(tmp_path)
    (row,) = record.benches
    assert record.problem is None
    assert "--rounds=2" in record.header.command
    first, second = row.processes
    assert first.started_at and second.started_at
    assert first.started_at < second.started_at
    assert row.low_us is not None and row.high_us is not None and row.median_us is not None
    assert row.low_us < row.high_us
    assert row.median_us == pytest.approx((row.low_us + row.high_us) / 2)
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_interrupted_rounds_keep_the_processes_that_ended(tmp_path: Path) -> None:
    """Ctrl-C in the second process: what there is by then is a record, and the status is 2."""
    running = Running(sys.executable, *_COMMAND, "--rounds=3", f"--results={tmp_path}")
    wait_for(lambda: "process 2 of 3" in running.printed[1], running)
    done = running.ended(by=signal.SIGINT)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1] == "bench: interrupted"
    assert "Traceback" not in done.stderr
    (row,) = _record(tmp_path).benches
    assert 1 <= len(row.processes) < 3
