"""How kernels go through what is longer than a block, and leave early."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tests.candidates.strict_idioms import Made, idiom


@triton.jit
def _counted_kernel(x_ptr, out_ptr, blocks, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for block in range(blocks + FAULT):
        total += tl.load(x_ptr + block * BLOCK + offs)
    tl.store(out_ptr + offs, total)


@idiom("_counted_kernel reads up to 8 elements past the end of x_ptr")
def loop_to_an_argument(fault: int) -> Made:
    """One time too many is the fault."""
    x, out = torch.randn(3, 8), torch.empty(8)
    _counted_kernel[(1,)](x, out, 3, FAULT=fault, BLOCK=8)
    return out, x.sum(0)


@triton.jit
def _stepped_kernel(x_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    total = 0.0
    for first in tl.range(0, n, BLOCK, num_stages=3):
        offs = first + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(x_ptr + offs, mask=offs < n + FAULT, other=0.0), 0)
    tl.store(out_ptr, total)


@idiom("_stepped_kernel reads up to 1 elements past the end of x_ptr")
def loop_by_steps_of_a_block(fault: int) -> Made:
    """tl.range, with what steers the compiler; the last step is cut."""
    x, out = torch.randn(29), torch.empty(1)
    _stepped_kernel[(1,)](x, out, 29, FAULT=fault, BLOCK=8)
    return out, x.sum()[None]


@triton.jit
def _down_kernel(x_ptr, out_ptr, FAULT: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    carry = tl.zeros((BLOCK,), tl.float32)
    for step in range(N - 1, -1 - FAULT, -1):
        carry = carry * 0.5 + tl.load(x_ptr + step * BLOCK + offs)
        tl.store(out_ptr + step * BLOCK + offs, carry)


@idiom("_down_kernel reads up to 8 elements before the start of x_ptr")
def loop_that_counts_down(fault: int) -> Made:
    """A recurrence from the end; the fault goes on to -1."""
    x, out = torch.randn(4, 8), torch.empty(4, 8)
    _down_kernel[(1,)](x, out, FAULT=fault, N=4, BLOCK=8)
    right, carry = torch.empty(4, 8), torch.zeros(8)
    for step in reversed(range(4)):
        carry = right[step] = carry * 0.5 + x[step]
    return out, right


@triton.jit
def _search_kernel(x_ptr, wanted_ptr, out_ptr, n, FAULT: tl.constexpr):
    wanted = tl.load(wanted_ptr + tl.program_id(0))
    low, high = 0, n + FAULT
    while low < high:
        middle = (low + high) // 2
        if tl.load(x_ptr + middle) < wanted:
            low = middle + 1
        else:
            high = middle
    tl.store(out_ptr + tl.program_id(0), low)


@idiom("_search_kernel reads up to 1 elements past the end of x_ptr")
def binary_search_by_while(fault: int) -> Made:
    """A loop with no count, and a branch that changes what it is carried on by."""
    x, wanted = torch.arange(0.0, 30, 2), torch.tensor([-1.0, 0, 7, 28, 29])
    out = torch.empty(5, dtype=torch.int32)
    _search_kernel[(5,)](x, wanted, out, 15, FAULT=fault)
    return out, torch.searchsorted(x, wanted)


@triton.jit
def _unrolled_kernel(x_ptr, out_ptr, FAULT: tl.constexpr, WAYS: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    for way in tl.static_range(WAYS + FAULT):
        x = tl.load(x_ptr + way * BLOCK + offs)
        if way % 2 == 0:
            x = -x
        tl.store(out_ptr + way * BLOCK + offs, x)


@idiom("_unrolled_kernel reads up to 8 elements past the end of x_ptr")
def unrolled_loop_with_constants(fault: int) -> Made:
    """Its number decides at compile time."""
    x, out = torch.randn(3, 8), torch.empty(3, 8)
    _unrolled_kernel[(1,)](x, out, FAULT=fault, WAYS=3, BLOCK=8)
    return out, x * torch.tensor([-1, 1, -1])[:, None]


@triton.jit
def _nested_kernel(x_ptr, out_ptr, m, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    for row in range(tl.program_id(0), m, tl.num_programs(0)):
        top = -float("inf")
        for first in range(0, n, BLOCK):
            offs = first + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + row * n + offs, mask=offs < n, other=-float("inf"))
            top = tl.maximum(top, tl.max(x, 0))
        for first in range(0, n + FAULT * BLOCK, BLOCK):
            offs = first + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + row * n + offs, mask=offs < n, other=-float("inf"))
            tl.store(out_ptr + row * n + offs, x - top, mask=offs < n + FAULT)


@idiom("_nested_kernel writes up to 1 elements past the end of out_ptr")
def rows_a_grid_apart_in_two_passes(fault: int) -> Made:
    """Programs that stay, and loops within loops."""
    x, out = torch.randn(5, 13), torch.empty(5, 13)
    _nested_kernel[(2,)](x, out, 5, 13, FAULT=fault, BLOCK=8)
    return out, x - x.amax(1, keepdim=True)


@triton.jit
def _leaving_kernel(x_ptr, lengths_ptr, out_ptr, n, FAULT: tl.constexpr):
    row = tl.program_id(0)
    length = tl.load(lengths_ptr + row)
    if length == 0 and not FAULT:
        return
    last = tl.load(x_ptr + row * n + length - 1)
    tl.store(out_ptr + row, last)


@idiom("program (0, 0, 0) of _leaving_kernel reads up to 1 elements before the start of x_ptr")
def program_that_returns_early(fault: int) -> Made:
    """Where its row is empty."""
    x, lengths, out = torch.randn(4, 8), torch.tensor([0, 8, 3, 0]), torch.zeros(4)
    _leaving_kernel[(4,)](x, lengths, out, 8, FAULT=fault)
    return out, torch.tensor([0, x[1, 7], x[2, 2], 0])


@triton.jit
def _phases_kernel(x_ptr, out_ptr, window, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    """Whole blocks without a mask, and the one on the edge with it."""
    row = tl.program_id(0)
    start = tl.maximum(0, row - window + 1)
    full = start + (row + 1 - start) // BLOCK * BLOCK
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(start, full + FAULT * BLOCK, BLOCK):
        total += tl.load(x_ptr + first + tl.arange(0, BLOCK))
    for first in range(full, row + 1, BLOCK):
        offs = first + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + offs, mask=offs <= row, other=0.0)
    tl.store(out_ptr + row, tl.sum(total))


@idiom("_phases_kernel reads up to 1 elements past the end of x_ptr")
def loop_in_a_phase_without_a_mask(fault: int) -> Made:
    """As attention does with the tiles that its mask cuts; the bounds are tensors."""
    x, out = torch.randn(12), torch.empty(12)
    _phases_kernel[(12,)](x, out, 6, FAULT=fault, BLOCK=4)
    return out, torch.stack([x[max(0, i - 5) : i + 1].sum() for i in range(12)])


@triton.jit
def _several_kernel(x_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    low = tl.full((BLOCK,), float("inf"), tl.float32)
    high, seen = -low, 0
    x_ptrs = x_ptr + offs
    for left in range(n, 0, -BLOCK):
        x = tl.load(x_ptrs, mask=offs < left + FAULT, other=float("nan"))
        low, high = tl.minimum(low, x), tl.maximum(high, x)
        seen += tl.sum((offs < left).to(tl.int32))
        x_ptrs += BLOCK
    tl.store(out_ptr, tl.min(low))
    tl.store(out_ptr + 1, tl.max(high))
    tl.store(out_ptr + 2, seen)


@idiom("_several_kernel reads up to 1 elements past the end of x_ptr")
def loop_that_carries_several_values(fault: int) -> Made:
    """In a tuple, with NaN for what isn't there, which minima and maxima leave out."""
    x, out = torch.randn(29), torch.empty(3)
    _several_kernel[(1,)](x, out, 29, FAULT=fault, BLOCK=8)
    return out, torch.stack([x.min(), x.max(), torch.tensor(29.0)])
