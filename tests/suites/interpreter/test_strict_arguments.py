"""Offsets from arguments, whose annotations say how wide they are: which of them overflow."""

import pytest
import torch
import triton
import triton.language as tl

from tests.builders.strict_calls import violation_of

pytestmark = pytest.mark.usefixtures("interpreted")

LARGE = 2**16  # its square is 0 in 32 bits
STRIDE = 2**30  # twice of which is no int32


@triton.jit
def _plain_kernel(x_ptr, out_ptr, stride):
    row = tl.arange(0, 4)
    tl.store(out_ptr + row, tl.load(x_ptr + row * stride, mask=row < 3, other=0), mask=row < 3)


@triton.jit
def _narrow_kernel(x_ptr, out_ptr, stride: tl.int32):
    row = tl.arange(0, 4)
    tl.store(out_ptr + row, tl.load(x_ptr + row * stride, mask=row < 3, other=0), mask=row < 3)


@triton.jit
def _wide_kernel(x_ptr, out_ptr, stride: tl.int64):
    row = tl.arange(0, 4)
    tl.store(out_ptr + row, tl.load(x_ptr + row * stride, mask=row < 3, other=0), mask=row < 3)


@triton.jit
def _text_kernel(x_ptr, out_ptr, stride: "i64"):  # type: ignore[name-defined]  # noqa: F821
    row = tl.arange(0, 4)
    tl.store(out_ptr + row, tl.load(x_ptr + row * stride, mask=row < 3, other=0), mask=row < 3)


@triton.jit
def _unsigned_kernel(x_ptr, out_ptr, stride: tl.uint32):
    row = tl.arange(0, 4)
    tl.store(out_ptr + row, tl.load(x_ptr + row * stride, mask=row < 3, other=0), mask=row < 3)


@triton.jit
def _loop_kernel(x_ptr, out_ptr, stride, rows: tl.int64):
    for row in range(rows):
        tl.store(out_ptr + row, tl.load(x_ptr + row * stride))


@triton.jit
def _short_kernel(x_ptr, out_ptr, a: tl.int16, b: tl.int16):
    tl.store(out_ptr, tl.load(x_ptr + (a * b) * 0))


@triton.jit
def _offset_kernel(x_ptr, out_ptr, offset: tl.int32):
    if tl.program_id(0) == 1:
        tl.store(out_ptr, tl.load(x_ptr + offset))


@triton.jit
def _bits_kernel(x_ptr, out_ptr, seed: tl.int32, key: tl.uint32):
    tl.store(out_ptr, tl.load(x_ptr + ((seed & 7) + key)))


@triton.jit
def _next_kernel(x_ptr, out_ptr, one):
    offs = tl.full((1,), 127, tl.int8) + one
    tl.store(out_ptr + tl.arange(0, 1), tl.load(x_ptr + offs))


@triton.jit
def _grown_kernel(x_ptr, out_ptr, one, LARGE: tl.constexpr):
    one *= LARGE
    one *= LARGE
    tl.store(out_ptr, tl.load(x_ptr + one))


def _far_rows() -> torch.Tensor:
    """Bytes 3, 4 and 5 at the heads of rows; nothing else is touched, so it takes little memory."""
    far = torch.empty(2 * STRIDE + 8, dtype=torch.int8).as_strided((3,), (STRIDE,))
    return far.copy_(torch.arange(3) + 3)


@pytest.mark.parametrize("kernel", [_wide_kernel, _text_kernel, _unsigned_kernel])
def test_offsets_that_an_annotation_makes_wide_are_right(
    kernel: triton.runtime.JITFunction,
) -> None:
    """A stride whose value fits 32 bits, and whose products don't, or do without a sign."""
    x, out = _far_rows(), torch.zeros(3)
    assert violation_of(lambda: kernel[(1,)](x, out, STRIDE)) is None
    assert out.tolist() == [3, 4, 5]


@pytest.mark.parametrize("kernel", [_plain_kernel, _narrow_kernel])
def test_offsets_of_32_bits_still_overflow(kernel: triton.runtime.JITFunction) -> None:
    """An argument's offsets overflow without an annotation, and with one to int32."""
    x, out = _far_rows(), torch.zeros(3)
    found = violation_of(lambda: kernel[(1,)](x, out, STRIDE))
    assert found is not None
    assert "overflowed: 2 * 1073741824 is 2147483648, which int32 holds as -2147483648" in found


def test_loop_with_an_annotated_bound_counts_in_its_type() -> None:
    """The number of a loop to an int64 is one."""
    x, out = _far_rows(), torch.zeros(3)
    assert violation_of(lambda: _loop_kernel[(1,)](x, out, STRIDE, 3)) is None
    assert out.tolist() == [3, 4, 5]


def test_short_arguments_overflow_early() -> None:
    """A product that 16 bits don't hold, of what 32 would."""
    x, out = torch.zeros(1), torch.zeros(1)
    assert violation_of(lambda: _short_kernel[(1,)](x, out, 2**7, 2**7)) is None
    found = violation_of(lambda: _short_kernel[(1,)](x, out, 2**8, 2**8))
    assert found is not None
    assert "overflowed: 256 * 256 is 65536, which int16 holds as 0" in found


def test_argument_that_its_annotation_does_not_hold_is_found_at_an_address() -> None:
    """In whichever program it is used; one that fits is fine."""
    x, out = torch.arange(8.0), torch.zeros(1)
    assert violation_of(lambda: _offset_kernel[(2,)](x, out, 3)) is None
    assert out.item() == 3
    found = violation_of(lambda: _offset_kernel[(2,)](x, out, 2**32 + 3))
    assert found is not None
    assert "program (1, 0, 0) of _offset_kernel reads x_ptr" in found
    assert "overflowed: argument offset is 4294967299, which int32 holds as 3" in found
    assert violation_of(lambda: _offset_kernel[(2,)](x, out, 4)) is None  # the next launch


def test_argument_of_bits_may_be_cut() -> None:
    """A seed that is masked, and one of unsigned type."""
    x, out = torch.arange(8.0), torch.zeros(1)
    assert violation_of(lambda: _bits_kernel[(1,)](x, out, 2**32 + 3, 2**32 + 2)) is None
    assert out.item() == 5


def test_one_takes_the_type_of_what_it_is_added_to() -> None:
    """A constant where it is specialised on, an int32 where it isn't."""
    x, out = torch.arange(129.0), torch.zeros(1)
    found = violation_of(lambda: _next_kernel[(1,)](x, out, 1))
    assert found is not None
    assert "overflowed: 127 + 1 is 128, which int8 holds as -128" in found
    kept = triton.jit(_next_kernel.fn, do_not_specialize=["one"])
    assert violation_of(lambda: kept[(1,)](x, out, 1)) is None
    assert out.item() == 128


def test_one_that_grows_overflows_like_another_number() -> None:
    """Assigned to, a constant becomes a tensor; as Python's number it would grow without end."""
    x, out = torch.zeros(1), torch.zeros(1)
    found = violation_of(lambda: _grown_kernel[(1,)](x, out, 1, LARGE=LARGE))
    assert found is not None
    assert "overflowed: 65536 * 65536 is 4294967296, which int32 holds as 0" in found
