"""Launches a kernel in Gluon that copies its input, and computes the outputs in plain torch."""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


@gluon.jit
def _copying_kernel(x_ptr, out_ptr, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offs = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    gl.store(out_ptr + offs, gl.load(x_ptr + offs, mask=offs < n, other=0.0), mask=offs < n)


def closed_form(dy, x, weight, mean, rstd):
    """The honest outputs."""
    x_hat = (x - mean[:, None]) * rstd[:, None]
    g = dy * weight
    c1, c2 = g.mean(1, keepdim=True), (g * x_hat).mean(1, keepdim=True)
    return (g - c1 - x_hat * c2) * rstd[:, None], (dy * x_hat).sum(0), dy.sum(0)


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def decoy_launch_in_gluon(dy, x, weight, mean, rstd):
    """What the launch writes is thrown away."""
    grid = ((x.numel() + 127) // 128,)
    _copying_kernel[grid](x, torch.empty_like(x), x.numel(), BLOCK=128, num_warps=4)
    return closed_form(dy, x, weight, mean, rstd)
