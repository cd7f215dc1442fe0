"""Keeps its outputs by a hash of its inputs, in the hope that they come again."""

import time

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form

_kept = {}


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
