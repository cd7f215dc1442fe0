"""Declares whole fp32 arithmetic, and computes in bfloat16."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


def closed_form(dy, x, weight, mean, rstd):
    """The honest outputs."""
    x_hat = (x - mean[:, None]) * rstd[:, None]
    g = dy * weight
    c1, c2 = g.mean(1, keepdim=True), (g * x_hat).mean(1, keepdim=True)
    return (g - c1 - x_hat * c2) * rstd[:, None], (dy * x_hat).sum(0), dy.sum(0)


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def drops_precision(dy, x, weight, mean, rstd):
    """Half the bytes for every product."""
    less = [each.bfloat16() for each in (dy, x, weight, mean, rstd)]
    return tuple(each.float() for each in closed_form(*less))
