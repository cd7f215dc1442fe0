"""Launches a kernel in Gluon that copies its input, and computes the outputs in plain torch."""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


@gluon.jit
def _copying_kernel(x_ptr, out_ptr, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offs = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    gl.store(out_ptr + offs, gl.load(x_ptr + offs, mask=offs < n, other=0.0), mask=offs < n)


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def decoy_launch_in_gluon(dy, x, weight, mean, rstd):
    """The launch's output is thrown away."""
    grid = ((x.numel() + 127) // 128,)
    _copying_kernel[grid](x, torch.empty_like(x), x.numel(), BLOCK=128, num_warps=4)
    return closed_form(dy, x, weight, mean, rstd)
