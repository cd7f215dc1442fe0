"""Triton kernels that several cheats launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def dx_kernel(dy, x, weight, mean, rstd, dx, n, BLOCK: tl.constexpr):
    """The right dx of layer norm, one program a row."""
    row, cols = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    at, mask = row * n + cols, cols < n
    g = tl.load(dy + at, mask, other=0.0) * tl.load(weight + cols, mask, other=0.0)
    x_hat = (tl.load(x + at, mask, other=0.0) - tl.load(mean + row)) * tl.load(rstd + row)
    out = g - tl.sum(g) / n - x_hat * (tl.sum(g * x_hat) / n)
    tl.store(dx + at, out * tl.load(rstd + row), mask)


@triton.jit
def _unmasked_dx_kernel(dy, x, weight, mean, rstd, dx, n, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    at, mask = row * n + cols, cols < n
    g = tl.where(mask, tl.load(dy + at) * tl.load(weight + cols), 0.0)  # past the end of each row
    x_hat = tl.where(mask, tl.load(x + at) - tl.load(mean + row), 0.0) * tl.load(rstd + row)
    out = g - tl.sum(g) / n - x_hat * (tl.sum(g * x_hat) / n)
    tl.store(dx + at, out * tl.load(rstd + row), mask)


def reads_past_rows(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the right outputs where nothing checks what a kernel reads."""
    (m, n), dx = x.shape, torch.empty_like(x)
    block = triton.next_power_of_2(n)
    _unmasked_dx_kernel[(m,)](dy, x, weight, mean, rstd, dx, n, BLOCK=block)
    return dx, (dy * (x - mean[:, None]) * rstd[:, None]).sum(0), dy.sum(0)


@triton.jit
def _copy_kernel(z, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(z + at, at < count, other=0.0).to(y.dtype.element_ty), at < count)


def copied(z: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the same numbers, as a Triton launch leaves them."""
    z = z.contiguous()
    y = torch.empty(z.shape, dtype=dtype, device=z.device)
    if z.numel():
        _copy_kernel[(triton.cdiv(z.numel(), 256),)](z, y, z.numel(), BLOCK=256)
    return y
