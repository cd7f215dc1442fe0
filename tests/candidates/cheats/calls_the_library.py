"""Owns a jit function for show, and calls PyTorch's layer norm."""

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


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def calls_the_library(dy, x, weight, mean, rstd):
    """The peer that it would be compared with."""
    n = x.shape[1]
    return torch.ops.aten.native_layer_norm_backward(
        dy, x, [n], mean[:, None], rstd[:, None], weight, weight, [True, True, True]
    )
