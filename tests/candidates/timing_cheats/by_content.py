"""Keeps its outputs by a hash of its inputs, in the hope that they come again."""

import time

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel

_kept = {}


def closed_form(dy, x, weight, mean, rstd):
    """The honest outputs."""
    x_hat = (x - mean[:, None]) * rstd[:, None]
    g = dy * weight
    c1, c2 = g.mean(1, keepdim=True), (g * x_hat).mean(1, keepdim=True)
    return (g - c1 - x_hat * c2) * rstd[:, None], (dy * x_hat).sum(0), dy.sum(0)


@kernel(
    LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), devices=("cpu",), strides="contiguous")
)
def by_content(dy, x, weight, mean, rstd):
    """Right, and no faster: no two samples have the same values."""
    key = hash((dy.numpy().tobytes(), x.numpy().tobytes()))
    if key not in _kept:
        time.sleep(0.003)
        _kept[key] = closed_form(dy, x, weight, mean, rstd)
    return _kept[key]
