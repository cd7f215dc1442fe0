"""-x, --maxfail, --lf, --ff and --failed, as pytest's users know them, over the rows of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernel_workbench.reports.record import Record, latest, read
from tests.builders.commands import ACCURACY, run_python

pytestmark = pytest.mark.long_run

# Wrong on rows of 64 floats and longer.
_KERNEL = """
import torch
from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel

@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,)))
def mine(dy, x, weight, mean, rstd):
    h, g = (x - mean[:, None]) * rstd[:, None], dy * weight
    dx = (g - g.mean(1, keepdim=True) - h * (g * h).mean(1, keepdim=True)) * rstd[:, None]
    return dx + (x.shape[1] >= 64), (dy * h).sum(0), dy.sum(0)
"""
_RIGHT = ("dx + (x.shape[1] >= 64)", "dx")
_COMMAND = (*ACCURACY, "--signs=3")


class _Folder:
    """A user's: a file of a kernel, a file of cases, and records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "mine.py").write_text(_KERNEL)
        line = {"op": "layer_norm_backward", "dtype": "float32"}
        sizes = [{"m": 3, "n": n} for n in (16, 32, 64, 128, 256)]
        cases = "\n".join(json.dumps(line | {"sizes": each}) for each in sizes)
        (path / "cases.jsonl").write_text(cases)

    def run(self, *options: str, status: int = 1) -> tuple[Record, str]:
        """The record that a run leaves, and what it says on stderr."""
        files = (f"--kernels={self.path / 'mine.py'}", f"--cases={self.path / 'cases.jsonl'}")
        done = run_python(*_COMMAND, *files, f"--results={self.path}", *options)
        assert done.returncode == status, done.stdout + done.stderr
        assert "stopping" not in done.stdout, "pytest's words below the report"
        return read(latest(self.path, "accuracy")), done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> _Folder:
    """A folder of the test's own."""
    return _Folder(tmp_path)


def _rows(record: Record) -> list[tuple[int, str]]:
    """The length of a case's rows, and the status, in the order that they ran."""
    return [(dict(row.case.sizes)["n"], row.status) for row in record.rows]


def test_last_failed_runs_those_alone_until_none_fails(folder: _Folder) -> None:
    """--lf of a run in two processes, then --ff of that one, then all again once it is mended."""
    record, said = folder.run("--lf", "--jobs=2")
    assert "has no earlier run; every row runs" in said
    assert len(record.rows) == 5
    record, said = folder.run("--lf", "--jobs=2")
    assert sorted(_rows(record)) == [(64, "failed"), (128, "failed"), (256, "failed")]
    assert record.problem is None
    assert "runs" not in said
    record, _ = folder.run("--ff", "--maxfail=2")
    assert _rows(record) == [(64, "failed"), (128, "failed")]
    assert record.problem is not None
    assert record.problem.endswith("the run ended early (--maxfail: 2 rows failed): 2 of 5 rows")
    (folder.path / "mine.py").write_text(_KERNEL.replace(*_RIGHT))
    record, _ = folder.run("--lf", status=0)
    assert _rows(record) == [(64, "passed"), (128, "passed")]
    record, said = folder.run("--lf", status=0)
    assert "accuracy: no row failed in" in said
    assert len(record.rows) == 5


@pytest.mark.parametrize(("jobs", "option"), [(1, "-x"), (2, "-x"), (1, "--maxfail=1")])
def test_first_failure_ends_the_run(folder: _Folder, jobs: int, option: str) -> None:
    """Also one of several processes; the record names the option, and what goes on with it does."""
    first, _ = folder.run(option, f"--jobs={jobs}")
    assert first.end is not None
    stopped = f"{option.removesuffix('=1')}: a row failed"
    assert (first.end.exit_status, first.end.stopped) == (1, stopped)
    assert first.problem is not None and f"the run ended early ({stopped})" in first.problem
    assert [status for _, status in _rows(first)].count("failed") == 1
    if jobs == 1:
        assert _rows(first) == [(16, "passed"), (32, "passed"), (64, "failed")]
    whole, _ = folder.run(f"--resume={first.path}")
    assert (whole.problem, len(whole.rows)) == (None, 5)


def test_failed_rows_of_a_record_are_run_by_name(folder: _Folder) -> None:
    """--failed takes a record from anywhere."""
    whole, _ = folder.run()
    kept = folder.path / "elsewhere.jsonl"
    whole.path.rename(kept)
    record, _ = folder.run(f"--failed={kept}")
    assert [n for n, _ in _rows(record)] == [64, 128, 256]
