"""How kernels switch lanes off."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tests.candidates.strict_idioms import Made, idiom


@triton.jit
def _scalar_beside_block_kernel(x_ptr, out_ptr, m, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    mask = (row < m + FAULT) & (cols < n)
    x = tl.load(x_ptr + row * n + cols, mask, other=0.0)
    tl.store(out_ptr + row * n + cols, x * 2, mask)


@idiom("_scalar_beside_block_kernel reads up to 13 elements past the end of x_ptr")
def scalar_comparison_beside_a_block(fault: int) -> Made:
    """One program too many, whose row the scalar switches off."""
    x, out = torch.randn(5, 13), torch.empty(5, 13)
    _scalar_beside_block_kernel[(6,)](x, out, 5, 13, FAULT=fault, BLOCK=16)
    return out, x * 2


@triton.jit
def _tile_kernel(x_ptr, out_ptr, m, n, FAULT: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)[:, None]
    cols = tl.program_id(1) * N + tl.arange(0, N)[None, :]
    mask = (rows < m) & (cols < n)
    x = tl.load(x_ptr + rows * n + cols, mask=(rows < m) & (cols < n + FAULT), other=0.0)
    tl.store(out_ptr + rows * n + cols, -x, mask=mask)


@idiom("reads up to 1 elements past the end of x_ptr")
def column_mask_and_row_mask(fault: int) -> Made:
    """[M, 1] & [1, N]."""
    x, out = torch.randn(7, 11), torch.empty(7, 11)
    _tile_kernel[(2, 3)](x, out, 7, 11, FAULT=fault, M=4, N=4)
    return out, -x


@triton.jit
def _words_kernel(x_ptr, out_ptr, m, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    """`and`, `or` and `not` of blocks, as some libraries write them."""
    rows, cols = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    mask = rows < m + FAULT and cols < n
    off = rows >= m or cols >= n
    x = tl.load(x_ptr + rows * n + cols, mask=mask, other=0.0)
    tl.store(out_ptr + rows * n + cols, x + 1, mask=not off)


@idiom("reads up to 11 elements past the end of x_ptr")
def words_between_blocks(fault: int) -> Made:
    """Lane by lane, though Python's own would take one operand."""
    x, out = torch.randn(7, 11), torch.empty(7, 11)
    _words_kernel[(1,)](x, out, 7, 11, FAULT=fault, BLOCK=16)
    return out, x + 1


@triton.jit
def _either_kernel(x_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    ends = (offs < 3) | ((offs >= n - 3) & ~(offs >= n + FAULT))
    x = tl.load(x_ptr + offs, mask=ends, other=7.0)
    tl.store(out_ptr + offs, x, mask=offs < n)


@idiom("reads up to 1 elements past the end of x_ptr")
def either_end_by_or_and_not(fault: int) -> Made:
    """The first and the last three; the rest is `other`."""
    x, out = torch.randn(13), torch.empty(13)
    _either_kernel[(1,)](x, out, 13, FAULT=fault, BLOCK=16)
    right = torch.cat([x[:3], torch.full((7,), 7.0), x[-3:]])
    return out, right


@triton.jit
def _chosen_kernel(x_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    mask = tl.where(row % 2 == 0, offs < n, offs < n // 2 + FAULT * n)
    x = tl.load(x_ptr + row * n + offs, mask=mask, other=0.0)
    tl.store(out_ptr + row * n + offs, x, mask=offs < n)


@idiom("program (3, 0, 0) of _chosen_kernel reads up to 5 elements past the end of x_ptr")
def mask_chosen_by_where(fault: int) -> Made:
    """Odd rows take the first half alone."""
    x, out = torch.randn(4, 10), torch.empty(4, 10)
    _chosen_kernel[(4,)](x, out, 10, FAULT=fault, BLOCK=16)
    right = x.clone()
    right[1::2, 5:] = 0
    return out, right


@triton.jit
def _read_kernel(x_ptr, keep_ptr, out_ptr, n, size, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    keep = tl.load(keep_ptr + offs, mask=offs < size, other=0).to(tl.int1)
    x = tl.load(x_ptr + offs, mask=keep, other=0.0)
    tl.store(out_ptr + offs, x, mask=offs < n)


@idiom("reads up to 3 elements past the end of x_ptr")
def mask_read_from_memory(fault: int) -> Made:
    """The mask is int8; the fault is in its values."""
    keep = torch.randint(0, 2, (16,), dtype=torch.int8)
    keep[13:], keep[15] = 0, fault
    x, out = torch.randn(13), torch.empty(13)
    _read_kernel[(1,)](x, keep, out, 13, 16, BLOCK=16)
    return out, x * keep[:13]


@triton.jit
def _even_kernel(x_ptr, out_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        x = tl.load(x_ptr + offs)
        tl.store(out_ptr + offs, x)
    else:
        x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
        tl.store(out_ptr + offs, x, mask=offs < n)


@idiom("program (3, 0, 0) of _even_kernel reads up to 3 elements past the end of x_ptr")
def no_mask_where_sizes_are_even(fault: int) -> Made:
    """A constant says that no tile is cut; the fault says so where one is."""
    x, out = torch.randn(29), torch.empty(29)
    _even_kernel[(4,)](x, out, 29, EVEN=bool(fault), BLOCK=8)
    return out, x


@triton.jit
def _true_kernel(x_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * BLOCK + offs, mask=True, other=0.0)
    first = tl.load(x_ptr + (row + 4) * BLOCK, mask=row < FAULT, other=0.0)
    tl.store(out_ptr + row, tl.sum(x) + first, mask=row < n)


@idiom("program (0, 0, 0) of _true_kernel reads up to 1 elements past the end of x_ptr")
def mask_of_one_scalar(fault: int) -> Made:
    """Python's True for a block, and a comparison for a scalar pointer."""
    x, out = torch.randn(4, 8), torch.empty(4)
    _true_kernel[(4,)](x, out, 4, FAULT=fault, BLOCK=8)
    return out, x.sum(1)


@triton.jit
def _others_kernel(x_ptr, i_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    low = tl.load(x_ptr + offs, mask=mask, other=-float("inf"))
    ones = tl.load(x_ptr + offs, mask=mask, other=1)
    block = tl.load(x_ptr + offs, mask, offs.to(x_ptr.dtype.element_ty))
    index = tl.load(i_ptr + offs, mask, -1)
    tl.store(out_ptr, tl.max(low.to(tl.float32)))
    tl.store(out_ptr + 1, tl.sum(ones.to(tl.float32)))
    tl.store(out_ptr + 2, tl.sum(block.to(tl.float32)))
    tl.store(out_ptr + 3, tl.min(index))
    tl.store(out_ptr + 4 + FAULT, tl.max(index))


@idiom("writes up to 1 elements past the end of out_ptr")
def others_of_every_kind(fault: int) -> Made:
    """-inf, an integer for a half, a block, and -1 for an index."""
    x, index, out = torch.full((5,), -2.0).half(), torch.arange(5), torch.empty(5)
    _others_kernel[(1,)](x, index, out, 5, FAULT=fault, BLOCK=8)
    return out, torch.tensor([-2.0, -10 + 3, -10 + 18, -1, 4])


@triton.jit
def _triangle_kernel(x_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    rows, cols = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    inside = (rows < n) & (cols < n)
    causal = (rows < n) & (cols <= rows + FAULT)
    x = tl.load(x_ptr + rows * (rows + 1) // 2 + cols, mask=causal, other=0.0)
    tl.store(out_ptr + rows * n + cols, x, mask=inside)


@idiom("reads up to 1 elements past the end of x_ptr")
def triangle_of_a_packed_matrix(fault: int) -> Made:
    """Row i has i + 1 elements; a diagonal too many reaches past the end."""
    n, full = 6, torch.randn(7, 7).tril()
    packed = full[:n, :n][torch.ones(n, n).tril().bool()]
    out = torch.empty(n, n)
    _triangle_kernel[(1,)](packed, out, n, FAULT=fault, BLOCK=8)
    return out, full[:n, :n]


@triton.jit
def _wrapped_kernel(x_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs % (n + FAULT))
    y = tl.load(x_ptr + tl.minimum(offs, n - 1))
    tl.store(out_ptr + offs, x + y, mask=offs < n)


@idiom("reads up to 1 elements past the end of x_ptr")
def remainder_or_minimum_in_place_of_a_mask(fault: int) -> Made:
    """Lanes past the end read what is there, and store nothing."""
    x, out = torch.randn(13), torch.empty(13)
    _wrapped_kernel[(2,)](x, out, 13, FAULT=fault, BLOCK=8)
    return out, 2 * x


@triton.jit
def _narrowed_kernel(x_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < n + FAULT
    mask &= offs % 2 == 0
    mask = mask & (offs != 4)
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    x = tl.where(mask & (x > 0), x, 0.0)
    tl.store(out_ptr + offs, x, mask=offs < n)


@idiom("reads up to 1 elements past the end of x_ptr")
def mask_narrowed_step_by_step(fault: int) -> Made:
    """&= and a comparison of what was loaded."""
    x, out = torch.randn(14), torch.empty(14)
    _narrowed_kernel[(1,)](x, out, 14, FAULT=fault, BLOCK=16)
    right = x.clamp(min=0)
    right[1::2], right[4] = 0, 0
    return out, right


@triton.jit
def _product_kernel(x_ptr, out_ptr, m, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    mask = (row < m) * (cols < n)
    x = tl.load(x_ptr + row * n + cols, mask=(row < m + FAULT) * (cols < n), other=0.0)
    tl.store(out_ptr + row * n + cols, x, mask=mask)


@idiom("reads up to 13 elements past the end of x_ptr")
def product_of_masks(fault: int) -> Made:
    """As `and` of bits."""
    x, out = torch.randn(3, 13), torch.empty(3, 13)
    _product_kernel[(4,)](x, out, 3, 13, FAULT=fault, BLOCK=16)
    return out, x
