"""The strict interpreter: what a GPU leaves undefined is an illegal access, said where it is."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter as stock

from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.suites.interpreter import strict
from kernel_workbench.suites.interpreter.strict import probes
from kernel_workbench.suites.interpreter.strict.launch import STATE
from tests.builders.by_hand import kernel_of, run_on
from tests.builders.strict_calls import violation_of
from tests.builders.wrong_layer_norms import closed_form

pytestmark = pytest.mark.usefixtures("interpreted")


@triton.jit
def _copy_kernel(x_ptr, out_ptr, size, shift, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(
        out_ptr + offs, tl.load(x_ptr + offs + shift, mask=offs < size, other=0.0), offs < size
    )


@triton.jit
def _no_other_kernel(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < size))


@triton.jit
def _rows_kernel(x_ptr, out_ptr, stride, size, WIDTH: tl.constexpr):
    offs = tl.arange(0, WIDTH)
    row = tl.load(x_ptr + tl.program_id(0) * stride + offs)
    tl.store(out_ptr + tl.program_id(0) * WIDTH + offs, row, mask=offs < size)


@triton.jit
def _storing_kernel(out_ptr, stride, WIDTH: tl.constexpr):
    tl.store(out_ptr + tl.program_id(0) * stride + tl.arange(0, WIDTH), 1.0)


@triton.jit
def _shifted_bytes_kernel(x_ptr, out_ptr, BYTES: tl.constexpr):
    narrow = x_ptr.to(tl.pointer_type(tl.int8)) + BYTES
    tl.store(out_ptr, tl.load(narrow.to(tl.pointer_type(tl.float32))))


def test_every_check_is_in_force_here() -> None:
    """On the version of Triton that the tests run with."""
    assert strict.install() == ()


def test_read_past_the_end_by_one_element_is_found() -> None:
    """The element lies in the same buffer, so nothing else would notice."""
    buffer, out = torch.randn(64), torch.empty(16)
    found = violation_of(lambda: _copy_kernel[(2,)](buffer[:16], out, 16, 1, BLOCK=8))
    assert found is not None
    assert "program (1, 0, 0) of _copy_kernel reads up to 1 elements past the end of x_ptr" in found
    source = Path(__file__).read_text().splitlines()
    line = next(at for at, text in enumerate(source, 1) if "tl.load(x_ptr + offs + shift" in text)
    assert found.endswith(f"at line {line} of {__file__}")


def test_read_before_the_start_is_found() -> None:
    """An offset of -1 meets what lies before the tensor in its buffer."""
    buffer, out = torch.randn(64), torch.empty(16)
    found = violation_of(lambda: _copy_kernel[(2,)](buffer[8:24], out, 16, -1, BLOCK=8))
    assert found is not None
    assert "reads up to 1 elements before the start of x_ptr" in found


def test_masked_lanes_may_point_anywhere() -> None:
    """A lane that is masked off touches nothing, wherever its pointer is."""
    x, out = torch.randn(13), torch.empty(13)
    assert violation_of(lambda: _copy_kernel[(2,)](x, out, 13, 0, BLOCK=8)) is None
    assert torch.equal(out, x)


@pytest.mark.parametrize(
    ("dtype", "undefined"),
    [
        (torch.int16, -(2**15)),
        (torch.uint8, 255),
        (torch.bool, True),
        (torch.int64, -(2**63)),
    ],
    ids=str,
)
def test_masked_load_without_other_reads_what_no_index_is(
    dtype: torch.dtype, undefined: int
) -> None:
    """Stock, the lane would read 0 and an index be right; on a GPU it is undefined."""
    x, out = torch.ones(5, dtype=dtype), torch.zeros(8, dtype=dtype)
    assert violation_of(lambda: _no_other_kernel[(1,)](x, out, 5, BLOCK=8)) is None
    assert out.tolist() == [1] * 5 + [undefined] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_masked_load_without_other_reads_nan(dtype: torch.dtype) -> None:
    """In every type of floating point; the lanes that are on read what is there."""
    x, out = torch.ones(5, dtype=dtype), torch.zeros(8, dtype=dtype)
    assert violation_of(lambda: _no_other_kernel[(1,)](x, out, 5, BLOCK=8)) is None
    assert out[5:].isnan().all()
    assert torch.equal(out[:5], x)


def test_read_of_the_gap_between_rows_is_found() -> None:
    """Rows of 6, 8 apart: the two elements between them are nobody's, though in the buffer."""
    x, out = torch.randn(3, 8)[:, :6], torch.empty(24)
    found = violation_of(lambda: _rows_kernel[(2,)](x, out, 8, 6, WIDTH=8))
    assert found is not None
    assert "reads up to 2 elements past the end of a run of 6 of x_ptr" in found
    assert "whose strides are (8, 1)" in found
    whole = torch.randn(3, 8)
    assert violation_of(lambda: _rows_kernel[(2,)](whole, out, 8, 6, WIDTH=8)) is None


def test_store_into_the_gap_between_rows_is_found() -> None:
    """The interleaved neighbour's elements lie there: v's between those of q."""
    packed = torch.zeros(4, 3, 8)
    q = packed[:, 0]
    assert violation_of(lambda: _storing_kernel[(4,)](q, 24, WIDTH=8)) is None
    assert q.min() == 1
    assert not packed[:, 1:].any()
    found = violation_of(lambda: _storing_kernel[(4,)](q, 24, WIDTH=16))
    assert found is not None
    assert "writes up to 8 elements past the end of a run of 8 of out_ptr" in found


def test_gaps_of_every_axis_are_found() -> None:
    """Columns two apart in rows eight apart: odd columns, and the last two, are nobody's."""
    x, out = torch.randn(3, 8)[:, :6:2], torch.empty(16)
    found = violation_of(lambda: _rows_kernel[(2,)](x, out, 8, 2, WIDTH=2))
    assert found is not None
    assert "reads up to 1 elements past the end of a run of 1 of x_ptr" in found
    expanded = torch.randn(1, 8).expand(3, 8)
    assert violation_of(lambda: _rows_kernel[(2,)](expanded, out, 0, 8, WIDTH=8)) is None


def test_access_that_is_not_aligned_to_its_size_is_found() -> None:
    """A GPU reports a misaligned address; the interpreter's processor reads it."""
    x, out = torch.arange(4.0), torch.zeros(1)
    assert violation_of(lambda: _shifted_bytes_kernel[(1,)](x, out, BYTES=8)) is None
    assert out.item() == 2
    found = violation_of(lambda: _shifted_bytes_kernel[(1,)](x, out, BYTES=6))
    assert found is not None
    assert "reads 4 bytes of x_ptr at an address that isn't a multiple of 4" in found


def test_illegal_access_fails_a_case_though_the_kernel_hides_it(device: torch.device) -> None:
    """The candidate catches the error and returns right outputs; the verdict stands."""

    def hiding(
        dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        with contextlib.suppress(Exception):
            _copy_kernel[(1,)](x, torch.empty(4096), x.numel() + 1, 0, BLOCK=4096)
        return closed_form(dy, x, weight, mean, rstd)

    case = next(
        each
        for each in LAYER_NORM_BACKWARD.cases()
        if each.id() == "layer_norm_backward-m5-n5-float32-contiguous"
    )
    row = run_on(device).try_pair(kernel_of(hiding), case)
    assert (row.status, row.rule) == ("failed", "illegal access")
    assert row.reason is not None
    assert "past the end of x_ptr" in row.reason


_SOUND: dict[str, tuple[Any, str]] = {
    "own tensor": (stock.InterpreterBuilder, "create_masked_load"),
    "two writers": (stock.InterpreterBuilder, "create_masked_store"),
    "integer overflow": (stock.InterpreterBuilder, "create_mul"),
    "masked lanes": (stock.InterpreterBuilder, "create_masked_load"),
    "unwritten memory": (stock.InterpreterBuilder, "create_masked_load"),
    "reader and writer": (stock.InterpreterBuilder, "create_masked_load"),
    "promises": (stock.TensorHandle, "set_attr"),
}


@pytest.mark.parametrize("check", strict.CHECKS)
def test_probe_names_a_check_that_is_not_in_force(
    check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what it stands on undone, as where a later Triton has renamed an argument."""
    owner, name = _SOUND[check]
    function = getattr(owner, name)
    monkeypatch.setattr(owner, name, _stock_of(function))
    assert check in probes.not_in_force()


def _stock_of(function: Any) -> Any:  # noqa: ANN401 (one of Triton's)
    """The function that a check was put around."""
    names = function.__code__.co_freevars
    return function.__closure__[names.index("stock")].cell_contents


def test_interpreter_is_left_as_it_was_where_a_sound_kernel_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All checks are then said to be off, and none is in the way."""
    load, convert = stock.InterpreterBuilder.create_masked_load, stock._implicit_cvt
    monkeypatch.setattr(STATE, "missing", None)
    monkeypatch.setattr(probes, "sound_kernel_fails", lambda: True)
    assert strict.install() == strict.CHECKS
    assert stock.InterpreterBuilder.create_masked_load is load
    assert stock._implicit_cvt is convert
