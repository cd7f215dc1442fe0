"""Kernels that declare batch invariance: one has it, and the others go by other rows or places."""

import torch
import triton
import triton.language as tl

from kernel_workbench import (
    MATMUL_FORWARD,
    RMS_NORM_FORWARD,
    SOFTMAX_FORWARD,
    Domain,
    Numerics,
    kernel,
)

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_DOMAIN = Domain(dtypes=_DTYPES, weight_dtypes=_DTYPES, strides="contiguous")
_INVARIANT = Numerics(batch_invariant=True)


@triton.jit
def _rows_kernel(x_ptr, w_ptr, y_ptr, n, eps, BLOCK: tl.constexpr):
    """A row a program, block by block."""
    at, lanes = tl.program_id(0).to(tl.int64) * n, tl.arange(0, BLOCK)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + at + start + lanes, start + lanes < n, other=0.0).to(tl.float32)
        squares += x * x
    rstd = tl.rsqrt(tl.sum(squares) / n + eps)
    for start in range(0, n, BLOCK):
        columns = start + lanes
        x = tl.load(x_ptr + at + columns, columns < n, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + columns, columns < n, other=0.0).to(tl.float32)
        tl.store(y_ptr + at + columns, x * rstd * w, columns < n)


def _normalised(x, weight, eps, block):
    (m, n), y = x.shape, torch.empty_like(x)
    if m and n:
        _rows_kernel[(m,)](x, weight, y, n, eps, BLOCK=block)
    return y


@kernel(RMS_NORM_FORWARD, _DOMAIN, numerics=_INVARIANT)
def rows_apart(x, weight, *, eps):
    """One block, whatever lies beside a row."""
    return _normalised(x, weight, eps, 256)


@kernel(RMS_NORM_FORWARD, _DOMAIN, numerics=_INVARIANT)
def block_of_many_rows(x, weight, *, eps):
    """Smaller blocks from 256 rows on."""
    return _normalised(x, weight, eps, 64 if x.shape[0] >= 256 else 1024)


@kernel(RMS_NORM_FORWARD, _DOMAIN, numerics=_INVARIANT)
def block_of_one_row(x, weight, *, eps):
    """Larger blocks for a row alone."""
    return _normalised(x, weight, eps, 1024 if x.shape[0] == 1 else 64)


@triton.jit
def _softmax_kernel(x_ptr, y_ptr, n, first, BLOCK: tl.constexpr):
    """A row a program, from row `first` on, whose sum goes block by block."""
    at, lanes = (first + tl.program_id(0)).to(tl.int64) * n, tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + at + start + lanes, start + lanes < n, other=float("-inf"))
        top = tl.maximum(top, x.to(tl.float32))
    largest, sums = tl.max(top), tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + at + start + lanes, start + lanes < n, other=float("-inf"))
        sums += tl.exp(x.to(tl.float32) - largest)
    total = tl.sum(sums)
    for start in range(0, n, BLOCK):
        columns = start + lanes
        x = tl.load(x_ptr + at + columns, columns < n, other=0.0).to(tl.float32)
        tl.store(y_ptr + at + columns, tl.exp(x - largest) / total, columns < n)


@kernel(SOFTMAX_FORWARD, _DOMAIN, numerics=_INVARIANT)
def other_block_past_64_rows(x):
    """Rows past the last 64 have other blocks, so that a row's bits depend on its place."""
    (m, n), y = x.shape, torch.empty_like(x)
    whole = m // 64 * 64
    if n and whole:
        _softmax_kernel[(whole,)](x, y, n, 0, BLOCK=1024)
    if n and m - whole:
        _softmax_kernel[(m - whole,)](x, y, n, whole, BLOCK=64)
    return y


@triton.jit
def _product_kernel(a_ptr, b_ptr, c_ptr, n, k, BLOCK: tl.constexpr):
    """An element a program, whose sum goes block by block."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lanes, sums = tl.arange(0, BLOCK), tl.zeros((BLOCK,), tl.float32)
    for start in range(0, k, BLOCK):
        at = start + lanes
        a = tl.load(a_ptr + row * k + at, at < k, other=0.0).to(tl.float32)
        b = tl.load(b_ptr + at * n + column, at < k, other=0.0).to(tl.float32)
        sums += a * b
    tl.store(c_ptr + row * n + column, tl.sum(sums))


@kernel(MATMUL_FORWARD, _DOMAIN, numerics=_INVARIANT)
def split_by_rows(a, b):
    """Longer blocks of k where few rows would leave a GPU idle."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.zeros((m, n), dtype=a.dtype, device=a.device)
    if m and n and k:
        _product_kernel[(m, n)](a, b, c, n, k, BLOCK=16 if m < 32 else 64)
    return c
