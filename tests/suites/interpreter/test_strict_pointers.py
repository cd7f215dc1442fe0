"""Where a pointer came from: it has to stay in that tensor, whatever is done with it on the way."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter

from tests.builders.strict_calls import violation_of

pytestmark = pytest.mark.usefixtures("interpreted")


@triton.jit
def _two_kernel(x_ptr, y_ptr, out_ptr, shift, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    total = tl.load(x_ptr + shift + offs) + tl.load(y_ptr + offs)
    tl.store(out_ptr + offs, total)


@triton.jit
def _chosen_kernel(x_ptr, y_ptr, out_ptr, shift, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    pointers = tl.where(offs % 2 == 0, x_ptr + offs, y_ptr + offs + shift)
    tl.store(out_ptr + offs, tl.load(pointers))


@triton.jit
def _turned_kernel(x_ptr, out_ptr, rows, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    square = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    pointers = tl.trans(tl.multiple_of(x_ptr, 4) + square)  # [COLUMNS, ROWS]
    flat = tl.reshape(pointers, (ROWS * COLUMNS,))
    turned = tl.reshape(tl.trans(square), (ROWS * COLUMNS,))
    value = tl.load(flat, mask=turned // COLUMNS < rows, other=0.0)
    tl.store(out_ptr + tl.arange(0, ROWS * COLUMNS), value)


@triton.jit
def _by_integer_kernel(x_ptr, out_ptr, shift, BLOCK: tl.constexpr):
    address = x_ptr.to(tl.int64) + shift * 4
    pointer = address.to(tl.pointer_type(tl.float32))
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(pointer + offs))


@triton.jit
def _address_kernel(x_ptr, out_ptr):
    tl.store(out_ptr, x_ptr.to(tl.int64))


@triton.jit
def _same_address_kernel(x_ptr, y_ptr, out_ptr):
    if x_ptr.to(tl.int64) == y_ptr.to(tl.int64):
        tl.store(out_ptr, 1)


@triton.jit
def _table_kernel(table_ptr, out_ptr, BLOCK: tl.constexpr):
    pointer = tl.load(table_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.program_id(0) * BLOCK + offs, tl.load(pointer + offs))


@triton.jit
def _tuple_kernel(pair, out_ptr, shift, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(pair[0] + offs) + tl.load(pair[1] + shift + offs))


@triton.jit
def _walking_kernel(x_ptr, out_ptr, steps, BLOCK: tl.constexpr):
    pointers = x_ptr + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(steps):
        total += tl.load(pointers)
        pointers += BLOCK
    tl.store(out_ptr + tl.arange(0, BLOCK), total)


@triton.jit
def _described_kernel(x_ptr, out_ptr, rows, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    described = tl.make_tensor_descriptor(x_ptr, [rows, COLUMNS], [COLUMNS, 1], [ROWS, COLUMNS])
    square = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(out_ptr + square, described.load([0, 0]))


@triton.jit
def _block_pointer_kernel(x_ptr, out_ptr, rows, row, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    block = tl.make_block_ptr(
        x_ptr, (rows, COLUMNS), (COLUMNS, 1), (row - ROWS, 0), (ROWS, COLUMNS), (1, 0)
    )
    value = tl.load(tl.advance(block, (ROWS, 0)), boundary_check=(0,), padding_option="zero")
    square = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(out_ptr + square, value)


@triton.jit
def _words_kernel(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    words = x_ptr.to(tl.pointer_type(tl.int32))
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(words + offs, mask=offs < size, other=0))


@triton.jit
def _in_place_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs) * 2)


def _neighbours() -> tuple[Tensor, Tensor, Tensor]:
    """Two tensors that lie side by side in one buffer, and an output."""
    both = torch.randn(16)
    return both[:8], both[8:], torch.zeros(8)


def test_access_that_lands_in_another_argument_is_found() -> None:
    """It starts from x and lands in y, wholly: any argument's range would hold it."""
    x, y, out = _neighbours()
    assert violation_of(lambda: _two_kernel[(1,)](x, y, out, 0, BLOCK=8)) is None
    found = violation_of(lambda: _two_kernel[(1,)](x, y, out, 8, BLOCK=8))
    assert found is not None
    assert "_two_kernel reads up to 8 elements past the end of x_ptr, within y_ptr, at" in found


def test_lanes_of_a_choice_of_pointers_are_each_held_to_their_own() -> None:
    """tl.where between two tensors' pointers; y's lanes alone go too far back, into x."""
    x, y, out = _neighbours()
    assert violation_of(lambda: _chosen_kernel[(1,)](x, y, out, 0, BLOCK=8)) is None
    assert torch.equal(out, torch.where(torch.arange(8) % 2 == 0, x, y))
    found = violation_of(lambda: _chosen_kernel[(1,)](x, y, out, -3, BLOCK=8))
    assert found is not None
    assert "reads up to 2 elements before the start of y_ptr, within x_ptr" in found


def test_origin_survives_transposing_and_reshaping() -> None:
    """Pointers are turned and reshaped, not what they point to; the neighbour follows at once."""
    x, y, out = _neighbours()
    call = lambda rows: _turned_kernel[(1,)](x, out, rows, ROWS=2, COLUMNS=4)  # noqa: E731
    assert violation_of(lambda: call(2)) is None
    assert torch.equal(out, x.view(2, 4).mT.reshape(-1))
    found = violation_of(lambda: _turned_kernel[(1,)](x[:6], out, 2, ROWS=2, COLUMNS=4))
    assert found is not None
    assert "reads up to 2 elements past the end of x_ptr" in found
    assert y.numel() == 8


def test_origin_survives_a_walk() -> None:
    """A pointer that is moved in a loop, one step too many."""
    both, out = torch.randn(16), torch.zeros(4)
    assert violation_of(lambda: _walking_kernel[(1,)](both[:12], out, 3, BLOCK=4)) is None
    assert torch.equal(out, both[:4] + both[4:8] + both[8:12])
    found = violation_of(lambda: _walking_kernel[(1,)](both[:12], out, 4, BLOCK=4))
    assert found is not None
    assert "reads up to 4 elements past the end of x_ptr" in found


def test_origin_survives_a_descriptor() -> None:
    """Which says that there are more rows than the argument has."""
    x, out = torch.randn(4, 8)[:2], torch.zeros(4, 8)
    assert violation_of(lambda: _described_kernel[(1,)](x, out, 2, ROWS=4, COLUMNS=8)) is None
    assert torch.equal(out[:2], x)
    found = violation_of(lambda: _described_kernel[(1,)](x, out, 4, ROWS=4, COLUMNS=8))
    assert found is not None
    assert "reads up to 16 elements past the end of x_ptr" in found


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
@pytest.mark.skipif(
    not hasattr(interpreter, "BlockPointerHandle"), reason="this Triton interprets none"
)
def test_origin_survives_a_block_pointer() -> None:
    """Which is advanced, and says that there are more rows than the argument has."""
    x, out = torch.randn(4, 8)[:2], torch.zeros(4, 8)
    call = lambda rows: _block_pointer_kernel[(1,)](x, out, rows, 0, ROWS=4, COLUMNS=8)  # noqa: E731
    assert violation_of(lambda: call(2)) is None
    assert torch.equal(out[:2], x)
    assert not out[2:].any()
    found = violation_of(lambda: call(4))
    assert found is not None
    assert "reads up to 16 elements past the end of x_ptr" in found


def test_pointers_in_a_tuple_have_names_of_their_own() -> None:
    """A tensor of a tuple is named by its place."""
    x, y, out = _neighbours()
    assert violation_of(lambda: _tuple_kernel[(1,)]((x, y), out, 0, BLOCK=8)) is None
    assert torch.equal(out, x + y)
    found = violation_of(lambda: _tuple_kernel[(1,)]((x, y), out, -8, BLOCK=8))
    assert found is not None
    assert "reads up to 8 elements before the start of pair[1], within pair[0]" in found


def test_pointer_to_elements_of_another_size_keeps_its_origin() -> None:
    """Two halves are a word; the words end where the halves do, 3.5 words from the start."""
    both = torch.randn(16).half()
    out = torch.zeros(4, dtype=torch.int32)
    assert violation_of(lambda: _words_kernel[(1,)](both[:8], out, 4, BLOCK=4)) is None
    assert torch.equal(out, both[:8].view(torch.int32))
    found = violation_of(lambda: _words_kernel[(1,)](both[:7], out, 4, BLOCK=4))
    assert found is not None
    assert "reads up to 1 elements past the end of x_ptr" in found


def test_pointer_made_from_an_integer_may_point_into_any_argument() -> None:
    """Arithmetic on addresses as integers is held to the arguments together."""
    x, _, out = _neighbours()
    assert violation_of(lambda: _by_integer_kernel[(1,)](x, out, 0, BLOCK=8)) is None
    assert torch.equal(out, x)
    found = violation_of(lambda: _by_integer_kernel[(1,)](x, out, 1, BLOCK=8))
    assert found is not None
    assert "reads memory that belongs to no argument, 1 elements past the nearest, x_ptr" in found


def test_integer_made_from_a_pointer_is_the_address() -> None:
    """A kernel may look at alignment, or compare two of them; nothing is added to what it sees."""
    x, out = torch.randn(8)[2:], torch.zeros(1, dtype=torch.int64)
    assert violation_of(lambda: _address_kernel[(1,)](x, out)) is None
    assert out.item() == x.data_ptr()
    assert violation_of(lambda: _same_address_kernel[(1,)](x, x, out)) is None
    assert out.item() == 1


def test_pointers_read_from_memory_may_point_into_the_inputs() -> None:
    """A table of addresses, as grouped kernels take it; the tensors are no arguments."""
    parts = [torch.randn(8) for _ in range(3)]
    table, out = torch.tensor([each.data_ptr() for each in parts]), torch.zeros(24)
    call = lambda: _table_kernel[(3,)](table, out, BLOCK=8)  # noqa: E731
    assert violation_of(call, tuple(parts)) is None
    assert torch.equal(out, torch.cat(parts))
    found = violation_of(call, tuple(parts[:2]))
    assert found is not None
    assert "program (2, 0, 0) of _table_kernel reads memory that belongs to no argument" in found


def test_views_of_one_tensor_are_each_a_range_of_their_own() -> None:
    """A kernel in place is given one tensor twice; both names are right, and so is the result."""
    x = torch.arange(8.0)
    assert violation_of(lambda: _in_place_kernel[(2,)](x, x, BLOCK=4)) is None
    assert torch.equal(x, 2 * torch.arange(8.0))
    halves = torch.arange(16.0)
    call = lambda out: _in_place_kernel[(2,)](halves[:8], out, BLOCK=4)  # noqa: E731
    assert violation_of(lambda: call(halves[8:])) is None
    found = violation_of(lambda: call(halves[9:]))
    assert found is not None
    assert "writes up to 1 elements past the end of out_ptr" in found
