"""Is right, and changes PyTorch's default dtype when its output is let go of."""

import weakref

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def sets_default_dtype_later(dy, x, weight, mean, rstd):
    """The honest outputs, of which one has a finaliser."""
    x_hat = (x - mean[:, None]) * rstd[:, None]
    g = dy * weight
    c1, c2 = g.mean(1, keepdim=True), (g * x_hat).mean(1, keepdim=True)
    dx = (g - c1 - x_hat * c2) * rstd[:, None]
    weakref.finalize(dx, torch.set_default_dtype, torch.float64)
    return dx, (dy * x_hat).sum(0), dy.sum(0)
