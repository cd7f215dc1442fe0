"""Layer norm, and RMS norm, whose products with dy are in x's type, in plain torch.

The casts are those of Llama's RMS norm, whose output is weight * x^.to(x's type): x^ is cast on its
way to dweight, and so are dy x^ and g = weight dy, which are products of two halves where the
weight is one, while dx is computed of an x^ in fp32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, Numerics, kernel

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@kernel(
    LAYER_NORM_BACKWARD,
    Domain(
        dtypes=_DTYPES,
        weight_dtypes=_DTYPES,
        features=frozenset({"rms_norm", "no_bias", "residual"}),
    ),
    numerics=Numerics(casts="normalised products dnormalised"),
)
def half_products(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    dresidual: Tensor | None = None,
    *,
    has_bias: bool = True,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients that autograd makes of weight * x^.to(x.dtype), from mean and rstd."""
    rows, r = tuple(range(x.dim() - 1)), rstd.unsqueeze(-1)
    x_hat = x.float() * r if mean is None else (x.float() - mean.unsqueeze(-1)) * r
    dweight = (dy * x_hat.to(x.dtype)).float().sum(rows)
    g = (dy * weight).to(x.dtype).float()
    dx = g - x_hat * (g * x_hat).mean(-1, keepdim=True)
    if mean is not None:
        dx = dx - g.mean(-1, keepdim=True)
    dx = dx * r
    if dresidual is not None:
        dx = dx + dresidual.float()
    dbias = dy.float().sum(rows).to(weight.dtype) if has_bias else None
    return dx.to(x.dtype), dweight.to(weight.dtype), dbias
