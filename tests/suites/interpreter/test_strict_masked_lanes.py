"""Loads without `other` whose masks switch lanes off: a rule of their own where it shows."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.reports.record import AccuracyRow, latest, read
from kernel_workbench.reports.views.accuracy import headline
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.interpreter import repairs
from kernel_workbench.suites.interpreter.strict import masked_lanes
from tests.builders.by_hand import kernel_of
from tests.builders.commands import ACCURACY, run_python
from tests.builders.wrong_layer_norms import closed_form

pytestmark = [pytest.mark.long_run, pytest.mark.usefixtures("interpreted")]

Outputs = tuple[Tensor, Tensor, Tensor]


@triton.jit
def _scaled_kernel(x_ptr, scale_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    """x, times 1 and the sum of what a load without `other` gives past the end."""
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    scale = tl.load(scale_ptr + offs, mask=offs < 0)
    if FAULT == "value":
        x += tl.sum(scale.to(tl.float32))
    if FAULT == "also wrong":
        x += tl.sum(scale.to(tl.float32)) + 1e30
    if FAULT == "elsewhere":
        x += 1e30
    tl.store(x_ptr + offs, x, mask=offs < n)


def _candidate(fault: str, scale: Tensor) -> Callable[..., Outputs]:
    def candidate(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
        dx, dweight, dbias = closed_form(dy, x, weight, mean, rstd)
        _scaled_kernel[(1,)](dx, scale, dx.numel(), FAULT=fault, BLOCK=32)
        return dx, dweight, dbias

    return candidate


def _row(fault: str, scale: Tensor, *, strict: bool = True) -> AccuracyRow:
    name = "layer_norm_backward-m5-n5-float32-contiguous"
    case = next(each for each in LAYER_NORM_BACKWARD.cases() if each.id() == name)
    run = Run(torch.device("cpu"), 90, strict=strict)
    return run.try_pair(kernel_of(_candidate(fault, scale)), case)


def _line(text: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    number = next(at for at, each in enumerate(lines, 1) if each.strip().startswith(text))
    return f"at line {number} of {__file__}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
def test_wrong_output_is_put_down_to_an_undefined_load(dtype: torch.dtype) -> None:
    """By its own rule, with the load's argument and line, whether it reads NaN or an integer."""
    row = _row("value", torch.zeros(32, dtype=dtype))
    assert (row.status, row.rule) == ("failed", "undefined load")
    assert row.reason is not None
    assert row.reason.startswith("dx[0, ")
    assert f"scale_ptr {_line('scale = tl.load(')}" in row.reason
    assert "it is right where they read zeros, as on today's NVIDIA backend" in row.reason
    assert row.reason.endswith("; give the load an `other`")


def test_kernel_that_is_wrong_without_undefined_lanes_too_is_told_both() -> None:
    """The kernel's other fault stands beside the undefined load."""
    row = _row("also wrong", torch.zeros(32))
    assert (row.status, row.rule) == ("failed", "undefined load")
    assert row.reason is not None
    assert "; where they read zeros, it fails by deterministic bound: dx[0, " in row.reason


def test_kernel_that_is_wrong_elsewhere_keeps_its_rule() -> None:
    """A load without `other` whose lanes reach no output isn't to blame."""
    row = _row("elsewhere", torch.zeros(32))
    assert (row.status, row.rule) == ("failed", "deterministic bound")


def test_undefined_lanes_that_reach_no_output_pass() -> None:
    """And nothing is said of them, but where nobody looked whether they do."""
    row = _row("", torch.zeros(32))
    assert (row.status, row.notes) == ("passed", ())
    (note,) = _row("", torch.zeros(32), strict=False).notes
    assert note.startswith("reads zeros in lanes that a load without `other` leaves undefined, ")
    assert _line("x = tl.load(") in note
    assert _line("scale = tl.load(") in note


def loads_of_the_stock_interpreter() -> None:
    """Print what is noted where the interpreter isn't strict, and what was computed."""
    repairs.install()
    x, scale = torch.ones(5), torch.ones(8)
    with masked_lanes.noted(zeros=False) as loads:
        _scaled_kernel[(1,)](x, scale, 5, FAULT="value", BLOCK=8)
        print(x.tolist(), *masked_lanes.let_pass(loads()))  # noqa: T201 (what the parent reads)


def test_loads_are_noted_where_the_interpreter_is_not_strict() -> None:
    """By their lines; the lanes read 0."""
    code = f"from {__name__} import loads_of_the_stock_interpreter as run; run()"
    variables = {**os.environ, "TRITON_INTERPRET": "1"}
    ran = run_python("-c", code, variables=variables)
    assert ran.returncode == 0, ran.stderr
    told = ran.stdout
    assert told.startswith("[1.0, 1.0, 1.0, 1.0, 1.0] reads zeros in lanes")
    assert _line("x = tl.load(") in told
    assert _line("scale = tl.load(") in told


_USERS_FILE = """
import torch
import triton
import triton.language as tl

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


@triton.jit
def _double_kernel(x, out, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offs, 2 * tl.load(x + offs, mask=offs < n), mask=offs < n)


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def doubles(dy, x, weight, mean, rstd):
    gain, n = dy * weight, x.shape[1]
    x_hat = (x - mean[:, None]) * rstd[:, None]
    sums = gain.sum(1, keepdim=True) / n, (gain * x_hat).sum(1, keepdim=True) / n
    dx, out = (gain - sums[0] - x_hat * sums[1]) * rstd[:, None] / 2, torch.empty_like(x)
    _double_kernel[(triton.cdiv(x.numel(), 16),)](dx, out, x.numel(), BLOCK=16)
    return out, (dy * x_hat).sum(0), dy.sum(0)
"""


def test_run_that_is_not_strict_reports_what_it_let_pass(tmp_path: Path) -> None:
    """How many cases, and the line; a strict run of the same kernel reports none."""
    file = tmp_path / "doubles.py"
    file.write_text(_USERS_FILE)
    command = [*ACCURACY, "--jobs=1", "-k=m5-n5"]
    command += [f"--results={tmp_path}", f"--kernels={file}", "--kernel=doubles", "--dtype=float32"]
    found = {}
    for option in ("--no-strict", "--seed=0"):
        ran = run_python(*command, option)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        found[option] = headline(read(latest(tmp_path))).notes
    (told,) = (each for each in found["--no-strict"] if "undefined" in each)
    line = 1 + _USERS_FILE.splitlines().index(
        "    tl.store(out + offs, 2 * tl.load(x + offs, mask=offs < n), mask=offs < n)"
    )
    assert told.startswith(
        "doubles reads zeros in lanes that a load without `other` leaves undefined"
    )
    assert f", at line {line} of {file} (on " in told
    assert not any("undefined" in each for each in found["--seed=0"])
