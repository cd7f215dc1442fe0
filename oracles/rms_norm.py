"""RMS norm: y = x / sqrt(mean(x^2) + eps) weight, row by row (Zhang & Sennrich 2019, eq. 4).

Also of a sum, s = x + residual, which is returned beside y. Its backward is given the sum, as x:
the gradient, through both outputs, is that of x and of the residual alike.

In a row with an infinity the formula has 0, and NaN where the infinity is; in one with NaN it has
NaN. Kernels that take a mean and squares in one pass, as PyTorch's on a GPU, have NaN in all of the
row, of inf - inf: either is right.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from kernel_workbench.oracles.analysis import rounds
from kernel_workbench.oracles.cases.sizes import ROWS, WIDTHS
from kernel_workbench.oracles.reference import op


@op(sizes={"m": ROWS, "n": WIDTHS}, spreads="m")
def rms_norm(
    x: Float[Tensor, "m n"], weight: Float[Tensor, "n"], eps: float = 1e-6
) -> Float[Tensor, "m n"]:
    """Of rows of n, in any dtype; the mean of squares and its root stay in fp32."""
    return _normalised(x, weight, eps)


# The sum of numbers near the largest is past it.
@op(sizes={"m": ROWS, "n": WIDTHS}, outputs=("y", "s"), spreads="m", without=("near_overflow",))
def add_rms_norm(
    x: Float[Tensor, "m n"],
    residual: Float[Tensor, "m n"],
    weight: Float[Tensor, "n"],
    eps: float = 1e-6,
) -> tuple[Float[Tensor, "m n"], Float[Tensor, "m n"]]:
    """Of a sum, which is written in x's dtype, and normalised before that cast or after it."""
    s = x + residual
    return _normalised(rounds(s, "s"), weight, eps), s


@op(sizes={"m": ROWS, "n": WIDTHS}, outputs=("y", "s"), spreads="m", name="rms_norm_beside_sum")
def _beside_sum(
    x: Float[Tensor, "m n"], weight: Float[Tensor, "n"], eps: float = 1e-6
) -> tuple[Float[Tensor, "m n"], Float[Tensor, "m n"]]:
    return _normalised(x, weight, eps), x


def _normalised(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return rounds(x * rstd, "normalised") * weight


RMS_NORM_FORWARD = rms_norm
RMS_NORM_BACKWARD = rms_norm.backward()
ADD_RMS_NORM_FORWARD = add_rms_norm
ADD_RMS_NORM_BACKWARD = _beside_sum.backward(name="add_rms_norm_backward")
