"""Declares a roundoff of 1/2: every bound is wider than the numbers that it is about."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, Numerics, kernel


@kernel(
    LAYER_NORM_BACKWARD,
    Domain(dtypes=(torch.float32,), strides="contiguous"),
    numerics=Numerics(accumulation_roundoff=0.5),
)
def declares_too_much(dy, x, weight, mean, rstd):
    """Zeros, within a wide bound."""
    del dy, mean, rstd
    return torch.zeros_like(x), torch.zeros_like(weight), torch.zeros_like(weight)
