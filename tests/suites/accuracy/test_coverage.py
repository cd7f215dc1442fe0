"""`nox -s accuracy -- --coverage`: the pairs of levels that met, in the record and the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_workbench.reports.record import read
from tests.builders.commands import run_python

pytestmark = pytest.mark.long_run

_ASKED = (
    *(
        "-m",
        "pytest",
        "kernel_workbench/suites/accuracy",
        "-qq",
        "-p",
        "no:cacheprovider",
        "--device=cpu",
    ),
    *("--op=attention_delta", "--kernel=delta", "--dtype=float32", "--details", "--jobs=1"),
)


def test_pairs_that_met_are_told_where_asked_for(tmp_path: Path) -> None:
    """The run reports the pairs of each kernel whose failure counts."""
    asked = (*_ASKED, "-k", "d_v64 and contiguous", "--coverage", f"--results={tmp_path}")
    done = run_python(*asked)
    (path,) = tmp_path.glob("*.jsonl")
    record = read(path)
    assert done.returncode == 0, done.stdout
    assert record.problem is None
    assert {(each.op, each.kernel) for each in record.coverage} == {("attention_delta", "delta")}
    assert all(0 <= each.met <= each.possible for each in record.coverage)
    assert any(each.met for each in record.coverage)
    assert any(each.met < each.possible for each in record.coverage)
    assert "Pairs of levels that met" in done.stdout
    assert "Pairs of levels that no case met" in done.stdout


def test_nothing_is_told_unasked(tmp_path: Path) -> None:
    """It takes time, and no row is another for it."""
    done = run_python(*_ASKED, "-k", "d_v64 and contiguous", f"--results={tmp_path}")
    (path,) = tmp_path.glob("*.jsonl")
    assert done.returncode == 0
    assert not read(path).coverage
    assert "Pairs of levels" not in done.stdout
