"""Returns views that are negated when they are read: half the work is left to the reader."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def lazy_negation(dy, x, weight, mean, rstd):
    """Right values, once somebody computes them."""
    dx, dweight, dbias = closed_form(dy, x, weight, mean, rstd)
    return torch._neg_view(-dx), dweight, dbias
