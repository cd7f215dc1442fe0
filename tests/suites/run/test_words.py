"""Output of a run while it goes on and of its failures: counts, prints, one of each group."""

from __future__ import annotations

import io
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console

from kernel_workbench.reports.junit import render_junit
from kernel_workbench.reports.record import AccuracyRow, Rule, latest, read
from kernel_workbench.reports.report import print_report
from kernel_workbench.reports.views.accuracy import failures
from kernel_workbench.suites.accuracy.suite import Accuracy
from kernel_workbench.suites.run.session import Session
from tests.builders.accuracy_records import KERNELS, example_row, write_example
from tests.builders.commands import ACCURACY, run_python
from tests.builders.documents import markdown_of

pytestmark = pytest.mark.long_run

_CASE = "layer_norm_backward-m37-n760-float32-contiguous"
_FILE = """
import ctypes, os, sys
import torch, triton, triton.language as tl
from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel

@triton.jit
def _kernel(dx, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    print("in program", tl.program_id(0))
    tl.store(dx + tl.program_id(0) * n + cols, 0.0, cols < n)

SERVED = Domain(dtypes=(torch.float32,), strides="contiguous")

@kernel(LAYER_NORM_BACKWARD, SERVED)
def talks(dy, x, weight, mean, rstd):
    print("\\x1b[2Jlong " + 500 * "x")
    dx = torch.empty_like(x)
    _kernel[(x.shape[0],)](dx, x.shape[1], BLOCK=1024)
    return dx, weight.clone(), weight.clone()

@kernel(LAYER_NORM_BACKWARD, SERVED)
def dies(dy, x, weight, mean, rstd):
    print("the last but one")
    print("the last words", file=sys.stderr)
    os.abort()

@kernel(LAYER_NORM_BACKWARD, SERVED)
def in_c(dy, x, weight, mean, rstd):
    ctypes.CDLL(None).printf(b"from C, as a GPU prints")
    return torch.empty_like(x), weight.clone(), weight.clone()

@kernel(LAYER_NORM_BACKWARD, SERVED)
def right(dy, x, weight, mean, rstd):
    print("of no interest")
    h, g = (x - mean[:, None]) * rstd[:, None], dy * weight
    dx = (g - g.mean(1, keepdim=True) - h * (g * h).mean(1, keepdim=True)) * rstd[:, None]
    return dx, (dy * h).sum(0), dy.sum(0)
"""


def _terminal(record: Path, width: int) -> str:
    file = io.StringIO()
    print_report(read(record), Console(file=file, width=width), details=True)
    return file.getvalue()


def test_what_a_failing_kernel_printed_is_in_its_row(tmp_path: Path) -> None:
    """Ten lines of the call that failed, cut and spelled out; nothing of a kernel that is right."""
    file = tmp_path / "mine.py"
    file.write_text(_FILE)
    command = (*ACCURACY, f"--case={_CASE}")
    ran = run_python(*command, f"--kernels={file}", f"--results={tmp_path}")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    rows = {row.kernel: row for row in read(latest(tmp_path)).rows}
    assert {name: row.status for name, row in rows.items()} == {
        "talks": "failed",
        "dies": "failed",
        "in_c": "failed",
        "right": "passed",
    }
    first, *programs, last = rows["talks"].printed
    assert first == "\x1b[2Jlong " + 191 * "x"
    assert [each.split() for each in programs] == [
        ["in", "program", f"[{number}]"] for number in range(9)
    ]
    assert last == "..."
    assert rows["dies"].printed == ("the last but one", "the last words")
    assert rows["in_c"].printed == ("from C, as a GPU prints",)
    assert rows["right"].printed == ()
    assert "\x1b" not in ran.stdout
    for width in (80, 200):
        words = _terminal(latest(tmp_path), width).split()
        assert "printed: in program [0]" in " ".join(words)
    record = read(latest(tmp_path))
    assert "printed: the last words" in markdown_of(record)
    assert b"printed: the last words" in render_junit(record)


def test_every_kernel_and_rule_shows_one_failure(tmp_path: Path) -> None:
    """However many there are: else nothing tells how to see its own."""
    rules: tuple[Rule, ...] = (
        "raised",
        "illegal access",
        "deterministic bound",
        "unwritten output",
        "time limit",
    )
    rows = [
        example_row(kernel, m=m, ratio=2.0, rule=rule)
        for kernel in KERNELS
        for rule in rules
        for m in (1, 2, 3, 4)
    ]
    record = read(write_example(tmp_path / "run.jsonl", rows))
    file = io.StringIO()
    print_report(record, Console(file=file, width=100))
    commands = [each.rows[0].reproduce for each in failures(record) if each.gates]
    assert len(commands) == 10
    assert all(each in file.getvalue() for each in commands)


def test_failures_of_baselines_are_counted_apart() -> None:
    """`164 failed`, and then PASSED, would be a riddle."""
    session = object.__new__(Session)
    session.suite, session.record = object.__new__(Accuracy), Mock()
    session._failed = session._beside = session._short = 0
    session._accepted = frozenset()
    said = []
    gates: tuple[AccuracyRow, ...] = (
        example_row(),
        example_row(ratio=2.0, rule="raised"),
        *[example_row(KERNELS[2], ratio=2.0, rule="raised")] * 2,
    )
    for row in gates:
        session.add([row])
        said.append(session.failures())
    assert said == ["0 failed", "1 failed", "1 failed, 1 of baselines", "1 failed, 2 of baselines"]
