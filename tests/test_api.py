"""The suites as Python functions, each from a file to its report, on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_workbench import bench, compare, search

pytestmark = pytest.mark.long_run

_KERNEL = """
import torch
from kernel_workbench import SOFTMAX_FORWARD, Domain, kernel

@kernel(SOFTMAX_FORWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def mine(x):
    powers = torch.exp(x)
    return powers / powers.sum(-1, keepdim=True)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A kernel that overflows on large values."""
    (tmp_path / "mine.py").write_text(_KERNEL)
    return tmp_path / "mine.py"


def test_search_returns_the_shrunk_case_of_a_defect(file: Path) -> None:
    """The find has a case and the command that tries it."""
    report = search(file, minutes=1, finds=1, device="cpu", results=file.parent)
    assert (report.suite, report.verdict) == ("search", "failed"), report.error
    assert report.failures
    assert report.failures[0].case in report.failures[0].command


def test_bench_times_on_the_host_and_compare_takes_its_reports(file: Path) -> None:
    """A CPU has figures of the host; two runs of one file are compared row by row."""
    case = "softmax_forward-m3-n64-float32-contiguous"
    reports = [
        bench(file, quick=True, cases=[case], device="cpu", results=file.parent) for _ in range(2)
    ]
    for report in reports:
        assert (report.suite, report.verdict) == ("bench", "passed"), report.error
        assert "mine" in {row.kernel for row in report.read_record().benches}
    comparison = compare(*reports)
    assert comparison.compared or comparison.broken is None
