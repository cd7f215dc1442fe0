"""Keeps its outputs by the inputs' shapes, and replays them."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form

_kept = {}


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def cached_by_shape(dy, x, weight, mean, rstd):
    """Computed once for each shape."""
    key = tuple(x.shape)
    if key not in _kept:
        _kept[key] = closed_form(dy, x, weight, mean, rstd)
    return tuple(each.clone() for each in _kept[key])
