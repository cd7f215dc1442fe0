"""Launches a kernel of its own on scratch memory, and computes the outputs in plain torch."""

import torch
import triton
import triton.language as tl

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


@triton.jit
def _dx_kernel(dy, x, weight, mean, rstd, dx, n, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    at, mask = row * n + cols, cols < n
    g = tl.load(dy + at, mask, other=0.0) * tl.load(weight + cols, mask, other=0.0)
    x_hat = (tl.load(x + at, mask, other=0.0) - tl.load(mean + row)) * tl.load(rstd + row)
    out = g - tl.sum(g) / n - x_hat * (tl.sum(g * x_hat) / n)
    tl.store(dx + at, out * tl.load(rstd + row), mask)


def closed_form(dy, x, weight, mean, rstd):
    """The honest outputs."""
    x_hat = (x - mean[:, None]) * rstd[:, None]
    g = dy * weight
    c1, c2 = g.mean(1, keepdim=True), (g * x_hat).mean(1, keepdim=True)
    return (g - c1 - x_hat * c2) * rstd[:, None], (dy * x_hat).sum(0), dy.sum(0)


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def decoy_launch(dy, x, weight, mean, rstd):
    """What the launch writes is thrown away."""
    (m, n), scratch = x.shape, torch.empty_like(x)
    block = triton.next_power_of_2(n)
    _dx_kernel[(m,)](dy, x, weight, mean, rstd, scratch, n, BLOCK=block)
    return closed_form(dy, x, weight, mean, rstd)
