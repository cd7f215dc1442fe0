"""Right kernels that have PyTorch compute a part, or copy what a launch of theirs computed."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_workbench import (
    ADD_RMS_NORM_FORWARD,
    LAYER_NORM_BACKWARD,
    MATMUL_FORWARD,
    SOFTMAX_FORWARD,
    Domain,
    Numerics,
    kernel,
)

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@triton.jit
def copy_kernel(z, y, count, BLOCK: tl.constexpr):
    """y = z."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(z + at, at < count, other=0.0).to(y.dtype.element_ty), at < count)


def copied(z, dtype):
    """The same numbers in another dtype."""
    y = torch.empty(z.shape, dtype=dtype, device=z.device)
    if z.numel():
        copy_kernel[(triton.cdiv(z.numel(), 256),)](z, y, z.numel(), BLOCK=256)
    return y


@triton.jit
def softmax_kernel(x, y, n, stride_m, stride_n, BLOCK: tl.constexpr):
    """A row a program, in fp32."""
    row, cols = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    read = tl.load(x + row * stride_m + cols * stride_n, cols < n, other=float("-inf"))
    wide = read.to(tl.float32)
    e = tl.exp(wide - tl.max(wide, 0))
    tl.store(y + row * n + cols, e / tl.sum(e, 0), cols < n)


@kernel(SOFTMAX_FORWARD, Domain(dtypes=_DTYPES))
def cast_by_a_launch(x):
    """One launch computes, the other one casts."""
    m, n = x.shape
    wide = torch.empty((m, n), dtype=torch.float32, device=x.device)
    if m:
        softmax_kernel[(m,)](x, wide, n, *x.stride(), BLOCK=triton.next_power_of_2(n))
    return copied(wide, x.dtype)


@triton.jit
def part_kernel(a, b, c, m, n, k, am, ak, bk, bn, PARTS: tl.constexpr, TILE: tl.constexpr):
    """A tile of one part's sum over k."""
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    part, total = tl.program_id(2), tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(part * TILE, k, PARTS * TILE):
        depth = start + tl.arange(0, TILE)
        left = tl.load(
            a + rows[:, None] * am + depth[None, :] * ak,
            mask=(rows[:, None] < m) & (depth[None, :] < k),
            other=0.0,
        )
        right = tl.load(
            b + depth[:, None] * bk + columns[None, :] * bn,
            mask=(depth[:, None] < k) & (columns[None, :] < n),
            other=0.0,
        )
        total += tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision="ieee")
    at = (part * m + rows[:, None]).to(tl.int64) * n + columns[None, :]
    tl.store(c + at, total, mask=(rows[:, None] < m) & (columns[None, :] < n))


@kernel(MATMUL_FORWARD, Domain(dtypes=_DTYPES), numerics=Numerics(accumulation_roundoff=2.0**-23))
def parts_summed_by_torch(a, b):
    """Two parts of k, which PyTorch adds up."""
    (m, k), n = a.shape, b.shape[1]
    parts = torch.zeros((2, m, n), dtype=torch.float32, device=a.device)
    if parts.numel():
        grid = triton.cdiv(m, 32), triton.cdiv(n, 32), 2
        part_kernel[grid](a, b, parts, m, n, k, *a.stride(), *b.stride(), PARTS=2, TILE=32)
    return parts.sum(0).to(a.dtype)


@kernel(
    MATMUL_FORWARD,
    Domain(dtypes=_DTYPES),
    numerics=Numerics(accumulation_roundoff=2.0**-23),
)
def parts_summed_and_cast(a, b):
    """PyTorch adds the parts up, and a launch casts the sum."""
    (m, k), n = a.shape, b.shape[1]
    parts = torch.zeros((2, m, n), dtype=torch.float32, device=a.device)
    if parts.numel():
        grid = triton.cdiv(m, 32), triton.cdiv(n, 32), 2
        part_kernel[grid](a, b, parts, m, n, k, *a.stride(), *b.stride(), PARTS=2, TILE=32)
    return copied(parts.sum(0), a.dtype)


@triton.jit
def norm_kernel(s, weight, y, n, eps, BLOCK: tl.constexpr):
    """A row of an RMS norm."""
    at, cols = tl.program_id(0).to(tl.int64) * n, tl.arange(0, BLOCK)
    wide = tl.load(s + at + cols, cols < n, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(wide * wide, 0) / n + eps)
    scaled = wide * rstd * tl.load(weight + cols, cols < n, other=0.0).to(tl.float32)
    tl.store(y + at + cols, scaled.to(y.dtype.element_ty), cols < n)


@kernel(ADD_RMS_NORM_FORWARD, Domain(dtypes=_DTYPES, weight_dtypes=_DTYPES))
def sum_by_torch(x, residual, weight, *, eps: float):
    """PyTorch adds, and the launch that reads the sum norms it."""
    total = (x.float() + residual.float()).contiguous()
    (m, n), y = total.shape, torch.empty(total.shape, dtype=x.dtype, device=x.device)
    if m:
        norm_kernel[(m,)](total, weight.contiguous(), y, n, eps, BLOCK=triton.next_power_of_2(n))
    return y, total.to(x.dtype)


@triton.jit
def dx_kernel(dy, x, weight, mean, rstd, dx, n, gm, gn, xm, xn, BLOCK: tl.constexpr):
    """A row of dx."""
    row, cols = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    mask = cols < n
    g = tl.load(dy + row * gm + cols * gn, mask, other=0.0).to(tl.float32)
    g *= tl.load(weight + cols, mask, other=0.0).to(tl.float32)
    read = tl.load(x + row * xm + cols * xn, mask, other=0.0).to(tl.float32)
    x_hat = tl.where(mask, (read - tl.load(mean + row)) * tl.load(rstd + row), 0.0)
    out = (g - tl.sum(g, 0) / n - x_hat * (tl.sum(g * x_hat, 0) / n)) * tl.load(rstd + row)
    tl.store(dx + row * n + cols, out.to(dx.dtype.element_ty), mask)


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="rows"))
def sums_by_torch(dy, x, weight, mean, rstd: Tensor):
    """PyTorch adds up what every row has a part in."""
    (m, n), dx = x.shape, torch.empty(x.shape, device=x.device)
    block = triton.next_power_of_2(n)
    if m:
        dx_kernel[(m,)](*(dy, x, weight, mean, rstd, dx, n), *dy.stride(), *x.stride(), BLOCK=block)
    x_hat = (x - mean[:, None]) * rstd[:, None]
    return dx, (dy * x_hat).sum(0), dy.sum(0)
