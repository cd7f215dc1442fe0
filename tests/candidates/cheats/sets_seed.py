"""Leaves PyTorch's random numbers seeded for whoever comes next."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def sets_seed(dy, x, weight, mean, rstd):
    """Right, and the dropout after it draws what it drew before."""
    torch.manual_seed(0)
    return closed_form(dy, x, weight, mean, rstd)
