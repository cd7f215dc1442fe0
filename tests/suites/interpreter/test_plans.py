"""A call that is done by its plan computes what the first such call did, on its own operands."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _pair_kernel(out_ptr, x_ptr, y_ptr):
    x, y = tl.load(x_ptr), tl.load(y_ptr)
    tl.store(out_ptr, x * x)
    tl.store(out_ptr + 1, x * y)
    tl.store(out_ptr + 2, y * x)


def test_operand_that_stands_twice_is_no_other() -> None:
    """x * x is planned first, and x * y has the same types."""
    out = torch.zeros(3)
    for x, y in ((2.0, 3.0), (5.0, 7.0)):
        _pair_kernel[(1,)](out, torch.tensor([x]), torch.tensor([y]))
        assert out.tolist() == [x * x, x * y, x * y]


@triton.jit
def _number_kernel(out_ptr, n_ptr):
    n = tl.load(n_ptr)
    tl.store(out_ptr, (n * 1).to(tl.int64))
    tl.store(out_ptr + 1, (n * 1.0).to(tl.int64))
    tl.store(out_ptr + 2, (n * True).to(tl.int64))


def test_equal_numbers_of_several_types() -> None:
    """1, 1.0 and True are equal to Python; a product with 1.0 is fp32, which rounds."""
    out = torch.zeros(3, dtype=torch.int64)
    for _ in range(2):
        _number_kernel[(1,)](out, torch.tensor([2**24 + 1], dtype=torch.int32))
        assert out.tolist() == [2**24 + 1, 2**24, 2**24 + 1]


@triton.jit
def _grid_kernel(out_ptr):
    place = tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)
    tl.store(out_ptr + place, tl.num_programs(1) * 100 + place)


def test_program_is_asked_each_time() -> None:
    """Its number, and the grid's extents, have no operand either, and are no constants."""
    for grid in ((2, 3), (3, 2)):
        out = torch.zeros(6, dtype=torch.int32)
        _grid_kernel[grid](out)
        assert out.tolist() == [100 * grid[1] + place for place in range(6)]


@triton.jit
def _load_kernel(out_ptr, x_ptr, masked, instead_ptr):
    instead = tl.load(instead_ptr)
    tl.store(out_ptr, tl.load(x_ptr, mask=masked == 0, other=instead))
    tl.store(out_ptr + 1, tl.load(x_ptr, mask=masked == 0, other=0.0))


def _loaded(masked: int, instead: float) -> Tensor:
    out = torch.zeros(2)
    _load_kernel[(1,)](out, torch.tensor([6.0]), masked, torch.tensor([instead]))
    return out


def test_load_takes_its_own_other() -> None:
    """Triton's code asks whether a scalar one is true, which a plan would keep."""
    for masked, instead in ((1, 0.0), (1, 2.0), (0, 0.0), (1, 3.0), (1, 0.0)):
        expected = [instead, 0.0] if masked else [6.0, 6.0]
        assert _loaded(masked, instead).tolist() == expected


@triton.jit
def _block_kernel(out_ptr, x_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    square = x[:, None] * x[None, :] + tl.full((BLOCK, BLOCK), 1.0, tl.float32)
    tl.store(
        out_ptr + offs[:, None] * BLOCK + offs[None, :], tl.where(square > 1, square, x[None, :])
    )


def test_blocks_of_several_extents() -> None:
    """The same line, by other shapes: each has its plan."""
    for size in (4, 8, 4, 8):
        x = torch.randn(size)
        out = torch.zeros(size, size)
        _block_kernel[(1,)](out, x, BLOCK=size)
        square = torch.outer(x, x) + 1
        assert torch.equal(out, torch.where(square > 1, square, x.expand(size, size)))


@triton.jit
def _large_kernel(out_ptr, BLOCK: tl.constexpr):
    numbers = tl.full((BLOCK,), 3, tl.int32) + tl.arange(0, BLOCK)
    tl.store(out_ptr, tl.sum(numbers.to(tl.int64), axis=0))


def test_large_constants_are_made_each_time() -> None:
    """They would fill the memory; what is made of them is the same."""
    out = torch.zeros(1, dtype=torch.int64)
    for _ in range(2):
        _large_kernel[(1,)](out, BLOCK=2**19)
        assert out.item() == 2**19 * 3 + 2**18 * (2**19 - 1)
