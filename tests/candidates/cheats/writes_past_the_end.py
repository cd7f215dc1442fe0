"""Writes one element past the end of its output, as compiled code may, without a word."""

import ctypes

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


def closed_form(dy, x, weight, mean, rstd):
    """The honest outputs."""
    x_hat = (x - mean[:, None]) * rstd[:, None]
    g = dy * weight
    c1, c2 = g.mean(1, keepdim=True), (g * x_hat).mean(1, keepdim=True)
    return (g - c1 - x_hat * c2) * rstd[:, None], (dy * x_hat).sum(0), dy.sum(0)


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def writes_past_the_end(dy, x, weight, mean, rstd):
    """What comes after dx is none of its own."""
    made = tuple(
        torch.empty_like(each).copy_(each) for each in closed_form(dy, x, weight, mean, rstd)
    )
    ctypes.memset(made[0].data_ptr() + made[0].nbytes, 0, 4)
    return made
