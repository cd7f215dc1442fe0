"""Replaces the method of tensors that outputs are kept with."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def replaces_clone(dy, x, weight, mean, rstd):
    """Whoever clones a tensor from here on calls the cheat."""
    torch.Tensor.clone = torch.Tensor.contiguous
    return closed_form(dy, x, weight, mean, rstd)
