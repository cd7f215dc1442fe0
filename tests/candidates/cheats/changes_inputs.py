"""Clears dy, so that a reference computed afterwards from the same tensors agrees with zeros."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def changes_inputs(dy, x, weight, mean, rstd):
    """All gradients of a dy of zeros are zeros."""
    del mean, rstd
    dy.zero_()
    return torch.zeros_like(x), torch.zeros_like(weight), torch.zeros_like(weight)
