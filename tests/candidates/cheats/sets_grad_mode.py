"""Leaves gradients switched off for whoever comes next."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def sets_grad_mode(dy, x, weight, mean, rstd):
    """Right, and the next backward pass fails."""
    torch.set_grad_enabled(False)
    return closed_form(dy, x, weight, mean, rstd)
