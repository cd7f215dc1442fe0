"""Declares that each of its additions may be wrong by any amount, so that no bound holds it."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, Numerics, kernel


@kernel(
    LAYER_NORM_BACKWARD,
    Domain(dtypes=(torch.float32,), strides="contiguous"),
    numerics=Numerics(accumulation_roundoff=float("inf")),
)
def declares_no_arithmetic(dy, x, weight, mean, rstd):
    """Zeros, within an infinite bound."""
    del dy, mean, rstd
    return torch.zeros_like(x), torch.zeros_like(weight), torch.zeros_like(weight)
