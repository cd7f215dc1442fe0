"""Offsets that don't fit their integers, found by the product and not by where they land."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from tests.builders.strict_calls import violation_of

pytestmark = pytest.mark.usefixtures("interpreted")

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
def _loop_kernel(x_ptr, out_ptr, first, last, stride, WIDE: tl.constexpr, STEP: tl.constexpr):
    if WIDE == "first":
        first = first.to(tl.int64)
    if WIDE == "last":
        last = last.to(tl.int64)
    for row in range(first, last, STEP):
        tl.store(out_ptr + row, tl.load(x_ptr + row * stride))


@triton.jit
def _constants_kernel(x_ptr, out_ptr, first, last, STRIDE: tl.constexpr):
    for row in tl.range(first, last):
        tl.store(out_ptr + row - first, tl.load(x_ptr + row * STRIDE))


@triton.jit
def _past_kernel(x_ptr, out_ptr, first, last):
    for place in range(first, last):
        tl.store(out_ptr + (place - first), tl.load(x_ptr + place * 1))


@triton.jit
def _started_kernel(x_ptr, out_ptr, a, b):
    start = a * b
    for place in range(start, start + 2):
        tl.store(out_ptr + tl.abs(place) % 2, tl.load(x_ptr + place))


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


def _far_rows(rows: int, stride: int) -> torch.Tensor:
    """Bytes 3, 4, ... at the rows' heads; nothing else is touched, so it takes little memory."""
    wide = torch.empty((rows - 1) * stride + 8, dtype=torch.int8).as_strided((rows,), (stride,))
    return wide.copy_(torch.arange(rows) + 3)


@pytest.mark.parametrize(("first", "last", "step"), [(0, 3, 1), (0, 3, 2), (2, -1, -1)])
@pytest.mark.parametrize("wide", ["first", "last"])
def test_loops_with_a_bound_of_64_bits_do_not_overflow(
    first: int, last: int, step: int, wide: str
) -> None:
    """One bound is enough, and the number is wide in its products; in 32 bits they don't fit."""
    stride = 2**30
    x, out = _far_rows(3, stride), torch.zeros(3)
    call = lambda wide: _loop_kernel[(1,)](x, out, first, last, stride, WIDE=wide, STEP=step)  # noqa: E731
    assert violation_of(lambda: call(wide)) is None
    rows = range(first, last, step)
    assert out.tolist() == [row + 3 if row in rows else 0 for row in range(3)]
    found = violation_of(lambda: call(""))
    assert found is not None
    assert "overflowed: 2 * 1073741824 is 2147483648, which int32 holds as -2147483648" in found


def test_loops_past_two_to_the_31_read_where_they_should() -> None:
    """Bounds that are 64 bits wide since they are passed so."""
    start, out = 2**31 + 1, torch.zeros(2)
    x = torch.empty(start + 2, dtype=torch.int8)  # of which only the end is touched
    x[start:] = torch.tensor([7, 8])
    assert violation_of(lambda: _past_kernel[(1,)](x, out, start, start + 2)) is None
    assert out.tolist() == [7, 8]


def test_product_of_a_loops_number_and_a_constant_is_checked() -> None:
    """Neither is a tensor in the stock interpreter, whose product of them is exact."""
    x, out = torch.arange(8.0), torch.zeros(8)
    call = lambda first, stride: _constants_kernel[(1,)](x, out, first, first + 2, STRIDE=stride)  # noqa: E731
    assert violation_of(lambda: call(0, 4)) is None
    assert out[:2].tolist() == [0, 4]
    found = violation_of(lambda: call(LARGE, LARGE))
    assert found is not None
    assert "overflowed: 65536 * 65536 is 4294967296, which int32 holds as 0" in found


def test_loop_from_a_start_that_overflowed_is_found() -> None:
    """The other numbers come of what the first number comes of."""
    x, out = torch.arange(8.0), torch.zeros(2)
    assert violation_of(lambda: _started_kernel[(1,)](x, out, 2, 3)) is None
    assert out.tolist() == [6, 7]
    found = violation_of(lambda: _started_kernel[(1,)](x, out, LARGE, LARGE))
    assert found is not None
    assert "overflowed: 65536 * 65536 is 4294967296" in found


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
