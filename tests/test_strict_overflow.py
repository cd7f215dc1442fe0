"""Offsets that don't fit their integers, found by the product and not by where they land."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from tests.watched import violation_of

LARGE = 2**16  # its square is 0 in 32 bits, so that every offset here lands in its tensor


@triton.jit
def _product_kernel(x_ptr, out_ptr, a, b, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    if WIDE:
        a = a.to(tl.int64)
    offs = a * b + tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.arange(0, BLOCK), tl.load(x_ptr + offs, mask=offs < BLOCK, other=0.0))


@triton.jit
def _late_kernel(x_ptr, out_ptr, a, b, BLOCK: tl.constexpr):
    offs = (a * b).to(tl.int64) + tl.arange(0, BLOCK)
    square = tl.reshape(x_ptr + offs, (2, BLOCK // 2))
    pointers = tl.trans(square) + (tl.zeros((1, 2), tl.int32) + 0)
    tl.store(
        tl.trans(tl.reshape(out_ptr + tl.arange(0, BLOCK), (2, BLOCK // 2))), tl.load(pointers)
    )


@triton.jit
def _rows_kernel(x_ptr, out_ptr, stride, rows, BLOCK: tl.constexpr):
    row = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride, mask=row < rows, other=0.0)
    tl.store(out_ptr + row, x)


@triton.jit
def _where_kernel(x_ptr, out_ptr, stride, rows, BLOCK: tl.constexpr):
    row = tl.arange(0, BLOCK)
    tl.store(out_ptr + row, tl.load(x_ptr + tl.where(row < rows, row * stride, 0)))


@triton.jit
def _sum_kernel(x_ptr, out_ptr, a, b, MINUS: tl.constexpr):
    offs = a - b if MINUS else a + b
    tl.store(out_ptr, tl.load(x_ptr + (offs - offs)))


@triton.jit
def _shift_kernel(x_ptr, out_ptr, a, places):
    tl.store(out_ptr, tl.load(x_ptr + (a << places)))


@triton.jit
def _narrowed_kernel(x_ptr, out_ptr, offset):
    tl.store(out_ptr, tl.load(x_ptr + offset.to(tl.int32)))


@triton.jit
def _hash_kernel(x_ptr, out_ptr, seed, size, BLOCK: tl.constexpr):
    key = tl.arange(0, BLOCK) * 73856093 + seed * 19349663
    key = key ^ (key << 13)
    tl.store(out_ptr + tl.arange(0, BLOCK), tl.load(x_ptr + (key & (size - 1))))


@triton.jit
def _unsigned_kernel(x_ptr, out_ptr, a, b, BLOCK: tl.constexpr):
    key = (tl.arange(0, BLOCK).to(tl.uint32) + a.to(tl.uint32)) * b.to(tl.uint32)
    tl.store(out_ptr + tl.arange(0, BLOCK), tl.load(x_ptr + (key % 8)))


@triton.jit
def _counting_kernel(x_ptr, out_ptr, large, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    wrapped = (offs + large) * large
    tl.store(out_ptr + offs, tl.load(x_ptr + offs) + wrapped)


@pytest.fixture(autouse=True)
def _on_the_interpreter(device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("the strict interpreter is for machines without a GPU")


def test_product_that_lands_in_the_tensor_is_found() -> None:
    """2^16 * 2^16 is 0 in 32 bits: the read is within, of the wrong elements."""
    x, out = torch.arange(8.0), torch.zeros(8)
    call = lambda a, wide: _product_kernel[(1,)](x, out, a, LARGE, WIDE=wide, BLOCK=8)  # noqa: E731
    assert violation_of(lambda: call(0, wide=False)) is None
    assert torch.equal(out, x)
    found = violation_of(lambda: call(LARGE, wide=False))
    assert found is not None
    assert "program (0, 0, 0) of _product_kernel reads x_ptr, at line" in found
    assert "by an offset that overflowed: 65536 * 65536 is 4294967296" in found
    assert f"which int32 holds as 0, at line {_line('offs = a * b + tl')} of {__file__}" in found
    assert violation_of(lambda: call(LARGE, wide=True)) is None  # all lanes are masked off


def _line(text: str) -> int:
    source = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(source, 1) if text in line)


def test_overflow_is_known_after_a_cast_and_a_change_of_shape() -> None:
    """The product in 32 bits, widened too late, transposed and added to."""
    x, out = torch.arange(8.0), torch.zeros(8)
    assert violation_of(lambda: _late_kernel[(1,)](x, out, 0, LARGE, BLOCK=8)) is None
    assert torch.equal(out, x)
    found = violation_of(lambda: _late_kernel[(1,)](x, out, LARGE, LARGE, BLOCK=8))
    assert found is not None
    assert "overflowed: 65536 * 65536 is 4294967296" in found


@pytest.mark.parametrize("kernel", [_rows_kernel, _where_kernel], ids=["masked", "where"])
def test_lanes_that_are_masked_off_may_overflow(kernel: triton.runtime.JITFunction) -> None:
    """Rows past the last are computed like all others, and then left out."""
    x, out, stride = torch.arange(8.0), torch.zeros(4), 2**30
    wide = torch.empty(stride + 1, dtype=torch.int8).as_strided((2,), (stride,))
    wide.copy_(torch.tensor([3, 4]))
    assert violation_of(lambda: kernel[(1,)](wide, out, stride, 2, BLOCK=4)) is None
    assert out[:2].tolist() == [3, 4]
    found = violation_of(lambda: kernel[(1,)](x, out, stride, 3, BLOCK=4))
    assert found is not None
    assert "overflowed: 2 * 1073741824 is 2147483648" in found


@pytest.mark.parametrize(("a", "b", "minus"), [(2**31 - 1, 1, False), (-(2**31), 1, True)])
def test_sum_and_difference_that_do_not_fit_are_found(a: int, b: int, minus: bool) -> None:  # noqa: FBT001
    """By one, at either end of the range; one less is fine."""
    x, out = torch.zeros(1), torch.zeros(1)
    call = lambda b: _sum_kernel[(1,)](x, out, a, b, MINUS=minus)  # noqa: E731
    assert violation_of(lambda: call(0)) is None
    found = violation_of(lambda: call(b))
    assert found is not None
    exact = a - b if minus else a + b
    assert f"overflowed: {a} {'-' if minus else '+'} {b} is {exact}" in found


def test_shift_and_cast_that_lose_bits_are_found() -> None:
    """A product with a power of two, and an offset of 64 bits cut to 32."""
    x, out = torch.zeros(9), torch.zeros(1)
    assert violation_of(lambda: _shift_kernel[(1,)](x, out, 1, 3)) is None
    found = violation_of(lambda: _shift_kernel[(1,)](x, out, 2**16, 16))
    assert found is not None
    assert "overflowed: 65536 << 16 is 4294967296" in found
    assert violation_of(lambda: _narrowed_kernel[(1,)](x, out, 8)) is None
    found = violation_of(lambda: _narrowed_kernel[(1,)](x, out, 2**32 + 8))
    assert found is not None
    assert "overflowed: 4294967304 cast to int32 is 4294967304, which int32 holds as 8" in found


def test_hashes_may_wrap() -> None:
    """Bits that are mixed on purpose, in signed and in unsigned integers."""
    x, out = torch.arange(8.0), torch.zeros(8)
    assert violation_of(lambda: _hash_kernel[(1,)](x, out, 12345, 8, BLOCK=8)) is None
    assert violation_of(lambda: _unsigned_kernel[(1,)](x, out, 7, 2**31 - 1, BLOCK=8)) is None


def test_values_may_wrap() -> None:
    """An integer that is stored and no part of an address."""
    x, out = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    assert violation_of(lambda: _counting_kernel[(1,)](x, out, LARGE, BLOCK=8)) is None
    assert torch.equal(out, torch.arange(8, dtype=torch.int32) * LARGE)
