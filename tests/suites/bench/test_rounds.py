"""`nox -s bench -- --rounds N`: a record of several processes, from end to end on the CPU."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from kernel_workbench.reports.record import Record, read
from kernel_workbench.suites.bench.rounds import merge_rows
from tests.builders.commands import Running, run_python, wait_for
from tests.builders.compared_records import bench_row, samples

pytestmark = pytest.mark.long_run

_SMALL = "layer_norm_backward-m64-n256-float32-contiguous"
_COMMAND = [
    *("-m", "pytest", "kernel_workbench/suites/bench", "-qq", "-p", "no:cacheprovider"),
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
    assert first.started_at <= second.started_at  # in whole seconds
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


def test_merged_row_is_known_by_its_processes_medians() -> None:
    """The median of medians; all samples kept; no interval that takes samples as independent."""
    rows = [
        bench_row(centre, processes=(samples(centre),), low_us=1.0, high_us=2.0, worst_ratio=ratio)
        for centre, ratio in ((100.0, 0.4), (104.0, 0.6), (101.0, 0.5))
    ]
    merged = merge_rows(rows)
    assert (merged.median_us, merged.worst_ratio) == (101.0, 0.6)
    assert (merged.low_us, merged.high_us) == (100.0, 104.0)
    assert len(merged.processes) == 3


def test_merged_row_has_the_other_work_of_every_process() -> None:
    """Its codes are those of any process, its figures the largest, and None where none is known."""
    alone = {"host_load": 0.02, "gpu_processes": 0}
    beside = {"codes": ("shared GPU",), "host_load": None, "gpu_processes": 2}
    busy = {"codes": ("busy host", "shared GPU"), "host_load": 0.5, "gpu_processes": 1}
    merged = merge_rows([bench_row(**each) for each in (alone, beside, busy)])
    assert merged.codes == ("shared GPU", "busy host")
    assert (merged.host_load, merged.gpu_processes) == (0.5, 2)
    assert merge_rows([bench_row(), bench_row()]).host_load is None


def test_row_that_failed_in_one_process_has_no_figure() -> None:
    """However often it was right: the row is the wrong one, and says in which process."""
    wrong = bench_row(status="wrong", accuracy="failed", reason="dx", processes=(), median_us=None)
    merged = merge_rows([bench_row(), wrong, bench_row()])
    assert (merged.status, merged.median_us) == ("wrong", None)
    assert merged.reason == "in process 2 of 3: dx"
