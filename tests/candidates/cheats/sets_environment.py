"""Leaves a variable of the environment set, so that Triton interprets nothing."""

import os

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


def closed_form(dy, x, weight, mean, rstd):
    """The honest outputs."""
    x_hat = (x - mean[:, None]) * rstd[:, None]
    g = dy * weight
    c1, c2 = g.mean(1, keepdim=True), (g * x_hat).mean(1, keepdim=True)
    return (g - c1 - x_hat * c2) * rstd[:, None], (dy * x_hat).sum(0), dy.sum(0)


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def sets_environment(dy, x, weight, mean, rstd):
    """Right, and Triton does something else after it."""
    os.environ["TRITON_INTERPRET"] = "0"
    return closed_form(dy, x, weight, mean, rstd)
