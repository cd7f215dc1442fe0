"""Kernels that are wrong in one way each, and the sound one beside them, through the whole suite.

All compute dx in Triton from the same line for line; what is wrong would show on no GPU at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.op import Case, Layout, TensorLayout
from kernel_workbench.reports.record import AccuracyRow
from kernel_workbench.suites.interpreter import repairs, strict
from tests.builders.by_hand import kernel_of, run_on
from tests.builders.commands import run_python
from tests.builders.wrong_layer_norms import closed_form

pytestmark = pytest.mark.usefixtures("interpreted")

Fault = Literal["", "past the end", "no other", "narrow", "twice", "unwritten", "stale count"]
Outputs = tuple[Tensor, Tensor, Tensor]

# Rows of fp16 this far apart put the third 5 GiB from the first, and its offset past 2^31.
_FAR = Layout("x_very_far", (("x", TensorLayout(row_stride=1_350_000_000)),))


@triton.jit
def _dx_kernel(
    dy_ptr,
    x_ptr,
    weight_ptr,
    statistics,
    count_ptr,
    dx_ptr,
    stride,
    n,
    FAULT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    if FAULT == "twice":
        row = tl.minimum(row, tl.num_programs(0) - 2)  # the grid has a program too many
    if FAULT != "narrow":
        row = row.to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = (row < tl.num_programs(0)) & (cols < n)  # a scalar beside a block
    reads = cols <= n if FAULT == "past the end" else mask
    if FAULT == "no other":
        x = tl.load(x_ptr + row * stride + cols, mask=mask)
    else:
        x = tl.load(x_ptr + row * stride + cols, mask=reads, other=0.0)
    x = tl.where(mask, x, x if FAULT == "no other" else 0.0).to(tl.float32)
    dy = tl.load(dy_ptr + row.to(tl.int64) * n + cols, mask=mask, other=0.0).to(tl.float32)
    g = dy * tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    mean_ptr, rstd_ptr = statistics
    rstd = tl.load(rstd_ptr + row)
    x_hat = (x - tl.load(mean_ptr + row)) * rstd
    out = g - tl.sum(g) / n - x_hat * (tl.sum(g * x_hat) / n)
    # Nothing but a read of it depends on the count.
    out *= rstd * tl.where(tl.load(count_ptr) == 12345, 1.0, 1.0)
    there = cols < n - 1 if FAULT == "unwritten" else mask
    tl.store(dx_ptr + row.to(tl.int64) * n + cols, out.to(dx_ptr.dtype.element_ty), mask=there)


def _candidate(fault: Fault) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Outputs]:
    def candidate(
        dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        (m, n), dx = x.shape, torch.empty(x.shape, dtype=x.dtype)
        count = torch.empty(1, dtype=torch.int32)
        if fault != "stale count":
            count.zero_()
        grid = (m + (fault == "twice"),)
        _dx_kernel[grid](
            dy, x, weight, (mean, rstd), count, dx, x.stride(0), n, FAULT=fault,
            BLOCK=triton.next_power_of_2(n + 1),
        )  # fmt: skip
        _, dweight, dbias = closed_form(dy, x, weight, mean, rstd)
        return dx, dweight, dbias

    return candidate


def _case(name: str) -> Case:
    return next(case for case in LAYER_NORM_BACKWARD.cases() if case.id() == name)


def _row(fault: Fault, case: Case) -> AccuracyRow:
    return run_on(torch.device("cpu")).try_pair(kernel_of(_candidate(fault)), case)


_FOUND: dict[Fault, tuple[str, str]] = {
    "past the end": (
        "illegal access",
        "_dx_kernel reads up to 1 elements past the end of x_ptr, at line",
    ),
    "no other": (
        "undefined load",
        "a mask switches off in a load without `other`, which are undefined: x_ptr at line",
    ),
    "twice": (
        "illegal access",
        "program (5, 0, 0) of _dx_kernel writes element 20 of dx_ptr's memory, which program (4, ",
    ),
    "unwritten": ("unwritten output", "dx[0, 4]"),
    "stale count": (
        "illegal access",
        "_dx_kernel reads element 0 of count_ptr's memory, which nothing has written, at line",
    ),
}


@pytest.mark.parametrize("fault", _FOUND)
def test_fault_that_a_gpu_keeps_quiet_about_fails_the_case(fault: Fault) -> None:
    """By a rule and a sentence that name it; the same kernel without it passes."""
    case = _case("layer_norm_backward-m5-n5-float32-contiguous")
    assert _row("", case).status == "passed"
    row = _row(fault, case)
    rule, sentence = _FOUND[fault]
    assert (row.status, row.rule) == ("failed", rule)
    assert row.reason is not None
    assert sentence in row.reason


def test_stores_of_the_same_value_pass_where_the_kernel_declares_them() -> None:
    """The program too many repeats the last row's."""
    case = _case("layer_norm_backward-m5-n5-float32-contiguous")
    declared = replace(kernel_of(_candidate("twice")), same_stores=True)
    assert run_on(torch.device("cpu")).try_pair(declared, case).status == "passed"
    twice = _row("twice", case)
    assert twice.reason is not None
    assert "writes the same value to in the same launch" in twice.reason


def far_rows() -> None:
    """Print how both widths of offset do over 5 GiB, and the memory that this process took."""
    torch.set_num_threads(1)
    repairs.install()
    strict.install()
    near = _case("layer_norm_backward-m3-n264-bfloat16-x_far")
    case = replace(near, dtype=torch.float16, weight_dtype=torch.float16, layout=_FAR)
    x = LAYER_NORM_BACKWARD.inputs(case, torch.device("cpu"))["x"]
    assert isinstance(x, Tensor)
    told: dict[str, object] = {"bytes": x.untyped_storage().nbytes()}
    del x
    for fault in ("", "narrow"):
        row = _row(fault, case)
        told[fault] = (row.status, row.rule, row.reason)
    # Not ru_maxrss, which counts the process that started this one as well.
    peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
    told["resident"] = int(peak) * 1024
    print(json.dumps(told))  # noqa: T201 (what the parent reads)


def test_overflow_over_5_gib_is_found_within_1_gib() -> None:
    """In a process of its own, whose memory is its peak: nothing touches the gaps between rows."""
    program = f"from {__name__} import far_rows; far_rows()"
    told = run_python("-c", program, variables=os.environ | {"TRITON_INTERPRET": "1"})
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert found["bytes"] >= 5 * 2**30
    assert found["resident"] <= 2**30
    assert found[""][0] == "passed"
    status, rule, reason = found["narrow"]
    assert (status, rule) == ("failed", "illegal access")
    assert "program (2, 0, 0) of _dx_kernel reads x_ptr" in reason
    assert "overflowed: 2 * 1350000000 is 2700000000, which int32 holds as -1594967296" in reason
