"""RMS norm: y = x / sqrt(mean(x^2) + eps) weight, row by row (Zhang & Sennrich 2019, eq. 4)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from oracles.cases.sizes import ROWS, WIDTHS
from oracles.reference import op


@op(sizes={"m": ROWS, "n": WIDTHS})
def rms_norm(
    x: Float[Tensor, "m n"], weight: Float[Tensor, "n"], eps: float = 1e-6
) -> Float[Tensor, "m n"]:
    """Of rows of n, in any dtype; the mean of squares and its root stay in fp32."""
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x * rstd * weight


RMS_NORM_FORWARD = rms_norm
RMS_NORM_BACKWARD = rms_norm.backward()
