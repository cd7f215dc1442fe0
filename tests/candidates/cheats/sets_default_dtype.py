"""Leaves torch's default dtype at float64 for whoever comes next."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def sets_default_dtype(dy, x, weight, mean, rstd):
    """Right, and nothing that is made after it is."""
    torch.set_default_dtype(torch.float64)
    return closed_form(dy, x, weight, mean, rstd)
