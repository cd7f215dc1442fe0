"""The gradient of a distance of distributions: right, and wrong where two numbers are equal."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from kernel_workbench import COLUMNS, ROWS, Domain, kernel, op

_DOMAIN = Domain(dtypes=(torch.float32, torch.float16, torch.bfloat16))


@op(sizes={"m": ROWS, "n": COLUMNS}, outputs=("dp",), name="distance_backward")
def distance_backward(
    dloss: Float32[Tensor, "m"], p: Float[Tensor, "m n"], q: Float[Tensor, "m n"]
) -> Float[Tensor, "m n"]:
    """Return the gradient by p of half the sum of |p - q|, row by row."""
    return torch.sign(p - q) * dloss[:, None] / 2


@kernel(distance_backward, _DOMAIN)
def right(dloss, p, q):
    """By the sign of a difference in fp32."""
    return (torch.sign(p.float() - q.float()) * dloss[:, None] * 0.5).to(p.dtype)


@kernel(distance_backward, _DOMAIN)
def half_at_ties(dloss, p, q):
    """By a comparison, which makes -1/2 of two equal numbers."""
    sign = torch.where(p > q, 0.5, -0.5)
    sign = torch.where(p.isnan() | q.isnan(), torch.nan, sign)
    return (sign * dloss[:, None]).to(p.dtype)
