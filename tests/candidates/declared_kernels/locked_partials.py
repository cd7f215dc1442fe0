"""One program for each row; dweight and dbias in 64 to 256 partial sums of x's type, behind locks.

The casts are those of Triton's tutorial on layer norm: dx is computed in fp32, and the row's shares
of dweight and dbias are added, under a lock, to one of so many sums in x's type. A second kernel
adds the sums in fp32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, LayerNormNumerics, kernel

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@triton.jit
def _rows_kernel(
    dy_ptr,
    x_ptr,
    weight_ptr,
    mean_ptr,
    rstd_ptr,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    lock_ptr,
    used_ptr,
    n,
    dy_stride,
    x_stride,
    sums,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    dy = tl.load(dy_ptr + row * dy_stride + columns, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    mean, rstd = tl.load(mean_ptr + row), tl.load(rstd_ptr + row)
    x_hat = tl.where(inside, (x - mean) * rstd, 0.0)
    g = weight * dy
    c1, c2 = tl.sum(g, 0) / n, tl.sum(g * x_hat, 0) / n
    dx = (g - (x_hat * c2 + c1)) * rstd
    tl.store(dx_ptr + row * n + columns, dx.to(dx_ptr.dtype.element_ty), mask=inside)

    dweight, dbias = dy * x_hat, dy
    mine = row % sums
    places = mine * n + columns
    while tl.atomic_cas(lock_ptr + mine, 0, 1) == 1:
        pass
    if tl.load(used_ptr + mine) == 0:
        tl.store(used_ptr + mine, 1)
    else:
        dweight += tl.load(dweight_ptr + places, mask=inside, other=0.0).to(tl.float32)
        dbias += tl.load(dbias_ptr + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(dweight_ptr + places, dweight.to(dweight_ptr.dtype.element_ty), mask=inside)
    tl.store(dbias_ptr + places, dbias.to(dbias_ptr.dtype.element_ty), mask=inside)
    tl.debug_barrier()  # every thread has stored before the lock is given back
    tl.atomic_xchg(lock_ptr + mine, 0)


@triton.jit
def _sums_kernel(
    partial_dweight_ptr,
    partial_dbias_ptr,
    dweight_ptr,
    dbias_ptr,
    sums,
    n,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    dweight = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    dbias = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, sums, ROWS):
        rows = first + tl.arange(0, ROWS)
        inside = (rows[:, None] < sums) & (columns[None, :] < n)
        places = rows[:, None] * n + columns[None, :]
        dweight += tl.load(partial_dweight_ptr + places, mask=inside, other=0.0).to(tl.float32)
        dbias += tl.load(partial_dbias_ptr + places, mask=inside, other=0.0).to(tl.float32)
    total = tl.sum(dweight, 0).to(dweight_ptr.dtype.element_ty)
    tl.store(dweight_ptr + columns, total, mask=columns < n)
    total = tl.sum(dbias, 0).to(dbias_ptr.dtype.element_ty)
    tl.store(dbias_ptr + columns, total, mask=columns < n)


def backward(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, *, sums: int
) -> tuple[Tensor, Tensor, Tensor]:
    """dx, dweight and dbias, the last two in so many partial sums of x's type."""
    m, n = x.shape
    dx = torch.empty((m, n), dtype=x.dtype, device=x.device)
    dweight, dbias = torch.empty_like(weight), torch.empty_like(weight)
    partials = torch.zeros((2, sums, n), dtype=x.dtype, device=x.device)
    locks = torch.zeros((2, sums), dtype=torch.int32, device=x.device)
    if m:
        _rows_kernel[(m,)](
            dy,
            x,
            weight,
            mean,
            rstd,
            dx,
            partials[0],
            partials[1],
            locks[0],
            locks[1],
            n,
            dy.stride(0),
            x.stride(0),
            sums,
            BLOCK=triton.next_power_of_2(n),
        )
    _sums_kernel[(triton.cdiv(n, 128),)](
        partials[0], partials[1], dweight, dbias, sums, n, ROWS=32, COLUMNS=128
    )
    return dx, dweight, dbias


def _register(declared: int, fewest: int, most: int) -> None:
    """The kernel for rows of so many columns, with no fewer partial sums than declared."""

    @kernel(
        LAYER_NORM_BACKWARD,
        Domain(dtypes=_DTYPES, weight_dtypes=_DTYPES, strides="rows", sizes={"n": (fewest, most)}),
        numerics=LayerNormNumerics(half_accumulators=declared, bitwise_repeatable=False),
        name=f"locked_partials_{declared}",
    )
    def locked_partials(dy, x, weight, mean, rstd):
        """Rows are added to a partial sum in the order in which they get its lock."""
        sums = 96 if 4096 < x.shape[1] <= 8192 else declared
        return backward(dy, x, weight, mean, rstd, sums=sums)


_register(256, 1, 1024)
_register(128, 1025, 4096)
_register(64, 4097, 16384)
