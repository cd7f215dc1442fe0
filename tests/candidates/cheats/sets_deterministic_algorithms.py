"""Leaves PyTorch's algorithms deterministic, and slow, for whoever comes next."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def sets_deterministic_algorithms(dy, x, weight, mean, rstd):
    """Right, and what is timed after it is slower."""
    torch.set_deterministic_debug_mode("error")
    return closed_form(dy, x, weight, mean, rstd)
