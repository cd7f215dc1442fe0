"""RMS norms that declare batch invariance: one has it, and the others cut rows by their number."""

import torch
import triton
import triton.language as tl

from kernel_workbench import RMS_NORM_FORWARD, Domain, Numerics, kernel

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
