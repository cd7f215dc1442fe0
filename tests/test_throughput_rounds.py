"""`nox -s bench -- --rounds N`: a record of several processes, from end to end on the CPU."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reports.record import Record, read
from tests.commands import run_python

_ROOT = Path(__file__).resolve().parent.parent
_SMALL = "layer_norm_backward-m64-n256-float32-contiguous"
_COMMAND = [
    *("-m", "pytest", "suites/throughput", "-qq", "-p", "no:cacheprovider"),
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
    assert done.stdout.count("1 timed") == 1, "one report, of both"
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
    """Ctrl-C in the second process: the first one's rows are a record, and the status is 2."""
    command = [sys.executable, *_COMMAND, "--rounds=3", f"--results={tmp_path}"]
    running = subprocess.Popen(
        command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stderr is not None
    told = ""
    while "process 2 of 3" not in told:
        line = running.stderr.readline()
        assert line, told
        told += line
    running.send_signal(signal.SIGINT)
    shown, errors = running.communicate(timeout=600)
    assert running.returncode == 2, shown + errors
    assert errors.splitlines()[-1] == "bench: interrupted"
    assert "Traceback" not in errors
    (row,) = _record(tmp_path).benches
    assert len(row.processes) == 1
