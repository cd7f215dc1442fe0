"""RMS norm: y = x / sqrt(mean(x^2) + eps) weight, row by row (Zhang & Sennrich 2019, eq. 4).

Also of a sum, s = x + residual, which is returned beside y. Its backward is given the sum, as x:
the gradient, through both outputs, is that of x and of the residual alike. Both backward ops
compute rstd, and then layer norm's gradients without a mean (oracles/layer_norm/reference.py).

In a row with an infinity the formula has 0, and NaN where the infinity is; in one with NaN it has
NaN. Kernels that take a mean and squares in one pass, as PyTorch's on a GPU, have NaN in all of the
row, of inf - inf: either is right.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from kernel_workbench.oracles.analysis import rounds
from kernel_workbench.oracles.cases.sizes import ROWS, WIDTHS
from kernel_workbench.oracles.layer_norm.reference import Form, layer_norm_backward
from kernel_workbench.oracles.op import Case
from kernel_workbench.oracles.reference import op

_FORM = Form(weighting="weight", gradient=None, has_bias=False, distributed=False, apart=True)


@op(sizes={"m": ROWS, "n": WIDTHS}, spreads="m")
def rms_norm(
    x: Float[Tensor, "m n"], weight: Float[Tensor, "n"], eps: float = 1e-6
) -> Float[Tensor, "m n"]:
    """RMS norm of rows of n, in any dtype; the mean of squares and its root stay in fp32."""
    return _normalised(x, weight, eps)


# The sum of numbers near the largest is past it.
@op(sizes={"m": ROWS, "n": WIDTHS}, outputs=("y", "s"), spreads="m", without=("near_overflow",))
def add_rms_norm(
    x: Float[Tensor, "m n"],
    residual: Float[Tensor, "m n"],
    weight: Float[Tensor, "n"],
    eps: float = 1e-6,
) -> tuple[Float[Tensor, "m n"], Float[Tensor, "m n"]]:
    """RMS norm of x + residual, which is written in x's dtype, and normalised before or after."""
    s = x + residual
    return _normalised(rounds(s, "s"), weight, eps), s


@op(
    sizes={"m": ROWS, "n": WIDTHS},
    outputs=("dx", "dweight"),
    spreads="m",
    gradients=("dy",),
    name="rms_norm_backward",
)
def rms_norm_backward(
    dy: Float[Tensor, "m n"], x: Float[Tensor, "m n"], weight: Float[Tensor, "n"], eps: float = 1e-6
) -> tuple[Float[Tensor, "m n"], Float[Tensor, "n"]]:
    """Compute rstd, and then what layer norm's backward does without a mean."""
    return _gradients(dy, x, weight, eps)


@op(
    sizes={"m": ROWS, "n": WIDTHS},
    outputs=("dx", "dweight"),
    spreads="m",
    gradients=("dy", "ds"),
    name="add_rms_norm_backward",
)
def add_rms_norm_backward(
    dy: Float[Tensor, "m n"],
    ds: Float[Tensor, "m n"],
    x: Float[Tensor, "m n"],
    weight: Float[Tensor, "n"],
    eps: float = 1e-6,
) -> tuple[Float[Tensor, "m n"], Float[Tensor, "n"]]:
    """Compute the same for the sum x = s, to whose gradient its own output's is added."""
    return _gradients(dy, x, weight, eps, dresidual=ds)


def _gradients(
    dy: Tensor, x: Tensor, weight: Tensor, eps: float, dresidual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    dx, dweight = layer_norm_backward(
        dy=dy, x=x, weight=weight, mean=None, rstd=rstd, dresidual=dresidual, form=_FORM
    )
    return dx, dweight


def _normalised(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return rounds(x * rstd, "normalised") * weight


RMS_NORM_FORWARD = rms_norm


def _flops(each_element: int, case: Case) -> int:
    """Count as autograd's gradients do, by which records of these ops are compared."""
    m, n = case.size("m"), case.size("n")
    return each_element * m * n + 5 * m


RMS_NORM_BACKWARD = replace(rms_norm_backward, flops=partial(_flops, 15))
ADD_RMS_NORM_FORWARD = add_rms_norm
ADD_RMS_NORM_BACKWARD = replace(add_rms_norm_backward, flops=partial(_flops, 16))
