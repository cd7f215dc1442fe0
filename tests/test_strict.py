"""The strict interpreter: what a GPU leaves undefined is an illegal access, said where it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from oracles import LAYER_NORM_BACKWARD
from suites.accuracy import strict
from tests.by_hand import kernel_of, run_on
from tests.wrong_layer_norms import closed_form


@triton.jit
def _copy_kernel(x_ptr, out_ptr, size, shift, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(
        out_ptr + offs, tl.load(x_ptr + offs + shift, mask=offs < size, other=0.0), offs < size
    )


@triton.jit
def _overlapping_kernel(out_ptr, size, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * (BLOCK - 1) + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, offs * 0.0 + 1.0, mask=offs < size)


@triton.jit
def _no_other_kernel(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + offs, mask=offs < size)))


@triton.jit
def _far_kernel(x_ptr, out_ptr, stride, WIDE: tl.constexpr):
    row = tl.program_id(0)
    if WIDE:
        row = row.to(tl.int64)
    tl.store(out_ptr + tl.program_id(0), tl.load(x_ptr + row * stride))


@triton.jit
def _adding_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    tl.atomic_add(out_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, BLOCK))))


@pytest.fixture(autouse=True)
def _on_the_interpreter(device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("the strict interpreter is for machines without a GPU")


def _violation(call: Callable[[], object]) -> str | None:
    with strict.watched() as violation:
        try:
            call()
        except Exception:  # noqa: BLE001  (the interpreter wraps it)
            assert violation() is not None
        return violation()


def test_read_past_the_end_by_one_element_is_found() -> None:
    """The element lies in the same buffer, so nothing else would notice."""
    buffer, out = torch.randn(64), torch.empty(16)
    found = _violation(lambda: _copy_kernel[(2,)](buffer[:16], out, 16, 1, BLOCK=8))
    assert found is not None
    assert "program (1, 0, 0) of _copy_kernel reads up to 1 elements past the end of x_ptr" in found
    assert "test_strict.py" in found


def test_read_before_the_start_is_found() -> None:
    """An offset of -1 meets what lies before the tensor in its buffer."""
    buffer, out = torch.randn(64), torch.empty(16)
    found = _violation(lambda: _copy_kernel[(2,)](buffer[8:24], out, 16, -1, BLOCK=8))
    assert found is not None
    assert "1 elements before the start of x_ptr" in found


def test_masked_lanes_may_point_anywhere() -> None:
    """A lane that is masked off touches nothing, wherever its pointer is."""
    x, out = torch.randn(13), torch.empty(13)
    assert _violation(lambda: _copy_kernel[(2,)](x, out, 13, 0, BLOCK=8)) is None
    assert torch.equal(out, x)


def test_two_programs_that_write_one_element_conflict() -> None:
    """They write the same value, and in sequence: on a GPU the order is open all the same."""
    out = torch.empty(15)
    found = _violation(lambda: _overlapping_kernel[(2,)](out, 15, BLOCK=8))
    assert found is not None
    assert "programs (0, 0, 0) and (1, 0, 0) of _overlapping_kernel both write element 7" in found


def test_atomic_additions_to_one_element_are_no_conflict() -> None:
    """That is what atomics are for."""
    x, out = torch.ones(8), torch.zeros(1)
    assert _violation(lambda: _adding_kernel[(5,)](x, out, BLOCK=8)) is None
    assert out.item() == 40


def test_masked_load_without_other_reads_nan() -> None:
    """Stock, the lane would read 0 and the sum be right; on a GPU it is undefined."""
    out = torch.empty(1)
    assert _violation(lambda: _no_other_kernel[(1,)](torch.ones(5), out, 5, BLOCK=8)) is None
    assert out.isnan().all()


def test_offset_that_overflows_32_bits_is_found_without_touching_the_memory() -> None:
    """Row 2 of 2^30 + 8 elements a row; in 64 bits the same load is right."""
    stride = 2**30 + 8
    x = torch.empty(2 * stride + 1, dtype=torch.float16).as_strided((3, 1), (stride, 1))
    x.copy_(torch.tensor([[1.0], [2.0], [3.0]]))
    out = torch.empty(3, dtype=torch.float16)
    found = _violation(lambda: _far_kernel[(3,)](x, out, stride, WIDE=False))
    assert found is not None
    assert "an offset that overflowed 32 bits?" in found
    assert _violation(lambda: _far_kernel[(3,)](x, out, stride, WIDE=True)) is None
    assert out.tolist() == [1.0, 2.0, 3.0]


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
