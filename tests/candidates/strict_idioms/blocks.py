"""Block pointers, which Triton deprecates and libraries still use, and tensor descriptors."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.candidates.strict_idioms import Made, idiom


@triton.jit
def _tile_kernel(x_ptr, out_ptr, m, n, CHECKED: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    at = (tl.program_id(0) * M, tl.program_id(1) * N)
    x = tl.make_block_ptr(x_ptr, (m, n), (n, 1), at, (M, N), (1, 0))
    out = tl.make_block_ptr(out_ptr, (m, n), (n, 1), at, (M, N), (1, 0))
    if CHECKED:
        value = tl.load(x, boundary_check=(0, 1), padding_option="zero")
    else:
        value = tl.load(x, boundary_check=(1,), padding_option="zero")
    tl.store(out, value * 2, boundary_check=(0, 1))


@idiom("program (1, 0, 0) of _tile_kernel reads up to 8 elements past the end of x_ptr")
def block_pointer_checked_on_both_axes(fault: int) -> Made:
    """The fault leaves out the check of rows."""
    x, out = torch.randn(7, 11), torch.empty(7, 11)
    _tile_kernel[(2, 2)](x, out, 7, 11, CHECKED=not fault, M=4, N=8)
    return out, x * 2


@triton.jit
def _product_kernel(a_ptr, b_ptr, c_ptr, m, n, k, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    row, col = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    a = tl.make_block_ptr(a_ptr, (m, k), (k, 1), (row, 0), (BLOCK, BLOCK), (1, 0))
    # b is stored by columns
    b = tl.make_block_ptr(b_ptr, (k, n + FAULT), (1, k), (0, col), (BLOCK, BLOCK), (0, 1))
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for _ in range(0, k, BLOCK):
        left = tl.load(a, boundary_check=(0, 1), padding_option="zero")
        right = tl.load(b, boundary_check=(0, 1), padding_option="zero")
        total = tl.dot(left, right, total, input_precision="ieee")
        a = tl.advance(a, (0, BLOCK))
        b = tl.advance(b, (BLOCK, 0))
    c = tl.make_block_ptr(c_ptr, (m, n), (n, 1), (row, col), (BLOCK, BLOCK), (1, 0))
    tl.store(c, total.to(c_ptr.dtype.element_ty), boundary_check=(0, 1))


@idiom("program (0, 1, 0) of _product_kernel reads up to 16 elements past the end of b_ptr")
def block_pointers_that_advance(fault: int) -> Made:
    """Along k, one of them by columns; the fault says that b has a column more."""
    a, b, out = torch.randn(19, 21), torch.randn(18, 21).mT, torch.empty(19, 18)
    _product_kernel[(2, 2)](a, b, out, 19, 18, 21, FAULT=fault, BLOCK=16)
    return out, a @ b


@triton.jit
def _window_kernel(
    x_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr
):
    start = tl.program_id(0) * BLOCK
    total = tl.zeros((BLOCK,), tl.float32)
    for back in tl.static_range(WIDTH):
        x = tl.make_block_ptr(x_ptr, (n + FAULT,), (1,), (start - back,), (BLOCK,), (0,))
        total += tl.load(x, boundary_check=(0,), padding_option="zero")
    out = tl.make_block_ptr(out_ptr, (n,), (1,), (start,), (BLOCK,), (0,))
    tl.store(out, total, boundary_check=(0,))


@idiom("program (1, 0, 0) of _window_kernel reads up to 1 elements past the end of x_ptr")
def block_pointer_that_begins_before_the_tensor(fault: int) -> Made:
    """A short convolution: the first tile looks back at what isn't there."""
    x, out = torch.randn(13), torch.empty(13)
    _window_kernel[(2,)](x, out, 13, FAULT=fault, BLOCK=8, WIDTH=3)
    padded = torch.cat([torch.zeros(2), x])
    return out, padded.unfold(0, 3, 1).sum(1)


@triton.jit
def _described_kernel(x_ptr, out_ptr, m, n, FAULT: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [m + FAULT, n], [n, 1], [M, N])
    out = tl.make_tensor_descriptor(out_ptr, [m, n], [n, 1], [M, N])
    row = tl.program_id(0) * M
    for col in range(0, n, N):
        out.store([row, col], x.load([row, col]) + 1)


@idiom("program (1, 0, 0) of _described_kernel reads up to 8 elements past the end of x_ptr")
def descriptor_made_by_the_kernel(fault: int) -> Made:
    """Its last tile is cut on both axes; the fault says that there is a row more."""
    x, out = torch.randn(7, 12), torch.empty(7, 12)
    _described_kernel[(2,)](x, out, 7, 12, FAULT=fault, M=4, N=8)
    return out, x + 1


@triton.jit
def _given_kernel(x, out, FAULT: tl.constexpr, M: tl.constexpr):
    row = tl.program_id(0) * M
    value = tl.load_tensor_descriptor(x, [row, 0])
    tl.store_tensor_descriptor(out, [tl.program_id(0) * (M - FAULT), 0], value * 2)


@idiom("program (1, 0, 0) of _given_kernel writes element 48 of out's memory, which program (0")
def descriptor_made_by_the_host(fault: int) -> Made:
    """The fault stores a tile that overlaps the one of the program before."""
    x, out = torch.randn(8, 16), torch.zeros(8, 16)
    described = [TensorDescriptor(each, [8, 16], [16, 1], [4, 16]) for each in (x, out)]
    _given_kernel[(2,)](*described, FAULT=fault, M=4)
    return out, x * 2


@triton.jit
def _picked_kernel(x_ptr, rows_ptr, out_ptr, m, n, N: tl.constexpr, ROWS: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [m, n], [n, 1], [1, N])
    rows = tl.load(rows_ptr + tl.arange(0, ROWS))
    picked = x.gather(rows, 0)
    tl.store(out_ptr + tl.arange(0, ROWS)[:, None] * N + tl.arange(0, N)[None, :], picked)


@idiom("_picked_kernel reads up to 16 elements past the end of x_ptr")
def rows_gathered_by_a_descriptor(fault: int) -> Made:
    """The fault says that there is a row more, and asks for it."""
    rows = torch.tensor([3, 0, 4, 4, 1, 2, 0, 4 + fault]).int()
    x, out = torch.randn(5, 16), torch.empty(8, 16)
    _picked_kernel[(1,)](x, rows, out, 5 + fault, 16, N=16, ROWS=8)
    return out, x[rows.clamp(max=4)]


@triton.jit
def _laid_kernel(x_ptr, rows_ptr, out_ptr, m, n, N: tl.constexpr, ROWS: tl.constexpr):
    out = tl.make_tensor_descriptor(out_ptr, [m, n], [n, 1], [1, N])
    first = tl.program_id(0) * ROWS
    offs = first + tl.arange(0, ROWS)
    x = tl.load(x_ptr + offs[:, None] * N + tl.arange(0, N)[None, :])
    out.scatter(x, tl.load(rows_ptr + offs), 0)


@idiom("program (1, 0, 0) of _laid_kernel writes element 48 of out_ptr's memory, which program (0")
def rows_scattered_by_a_descriptor(fault: int) -> Made:
    """A permutation over two programs; the fault has one row twice."""
    rows = torch.arange(16).int().flip(0)
    if fault:
        rows[0] = rows[12] = 3
    x, out = torch.randn(16, 16), torch.zeros(16, 16)
    _laid_kernel[(2,)](x, rows, out, 16, 16, N=16, ROWS=8)
    return out, x[rows.long().argsort()]


@triton.jit
def _batched_kernel(x_ptr, out_ptr, b, m, n, FAULT: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [b, m, n], [m * n, n, 1], [1, M, N], padding_option="zero")
    batch = tl.program_id(0) + FAULT
    value = tl.reshape(x.load([tl.program_id(0), 0, 0]), (M, N))
    offs = tl.arange(0, M)[:, None] * n + tl.arange(0, N)[None, :]
    mask = (tl.arange(0, M)[:, None] < m) & (tl.arange(0, N)[None, :] < n)
    tl.store(out_ptr + batch * m * n + offs, value.to(tl.float32), mask=mask)


@idiom("program (2, 0, 0) of _batched_kernel writes up to 40 elements past the end of out_ptr")
def descriptor_of_three_axes(fault: int) -> Made:
    """A block of one batch, seen as a matrix; the fault stores to the next batch."""
    x, out = torch.randn(3, 5, 8).half(), torch.zeros(3, 5, 8)
    _batched_kernel[(3,)](x, out, 3, 5, 8, FAULT=fault, M=8, N=8)
    return out, x
