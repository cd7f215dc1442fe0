"""Layer norm, forward: y = (x - mean) / sqrt(var + eps) weight + bias (Ba, Kiros & Hinton 2016)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from kernel_workbench.oracles.cases.sizes import ROWS, WIDTHS
from kernel_workbench.oracles.reference import op


@op(sizes={"m": ROWS, "n": WIDTHS})
def layer_norm(
    x: Float[Tensor, "m n"],
    weight: Float[Tensor, "n"],
    bias: Float[Tensor, "n"],
    eps: float = 1e-5,
) -> Float[Tensor, "m n"]:
    """Layer norm of rows of n; the variance is the mean of the centred squares."""
    centred = x - x.mean(-1, keepdim=True)
    rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return centred * rstd * weight + bias


LAYER_NORM_FORWARD = layer_norm
