"""Ends its process at the sixth call."""

import os

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel

_calls = []


def closed_form(dy, x, weight, mean, rstd):
    """The honest outputs."""
    x_hat = (x - mean[:, None]) * rstd[:, None]
    g = dy * weight
    c1, c2 = g.mean(1, keepdim=True), (g * x_hat).mean(1, keepdim=True)
    return (g - c1 - x_hat * c2) * rstd[:, None], (dy * x_hat).sum(0), dy.sum(0)


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def dies_when_timed(dy, x, weight, mean, rstd):
    """With the status of a process that did well."""
    _calls.append(1)
    if len(_calls) > 5:
        os._exit(0)
    return closed_form(dy, x, weight, mean, rstd)
