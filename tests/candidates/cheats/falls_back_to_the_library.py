"""Falls back to PyTorch's layer norm where its own launch fails, which it always does."""

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
def falls_back_to_the_library(dy, x, weight, mean, rstd):
    """A block that is no power of two doesn't compile."""
    (m, n), dx = x.shape, torch.empty_like(x)
    try:
        _dx_kernel[(m,)](dy, x, weight, mean, rstd, dx, n, BLOCK=n | 1)
        return (dx, *closed_form(dy, x, weight, mean, rstd)[1:])
    except Exception:
        return torch.ops.aten.native_layer_norm_backward(
            dy, x, [n], mean[:, None], rstd[:, None], weight, weight, [True, True, True]
        )
