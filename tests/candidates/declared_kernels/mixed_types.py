"""Layer norm whose output, and with it dy, has the weight's type, whatever x's; in plain torch.

The cast is that of apex's mixed form, whose forward returns the weight's type: the gradient that it
is given lost there what that type doesn't hold. All else is fp32.
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
        features=frozenset({"no_bias", "zero_centred", "residual", "accumulate"}),
    ),
    numerics=Numerics(casts="gradient"),
)
def mixed_types(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    rstd: Tensor,
    dresidual: Tensor | None = None,
    dweight: Tensor | None = None,
    dbias: Tensor | None = None,
    *,
    has_bias: bool = True,
    zero_centred: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The closed form of a dy that has the weight's type."""
    rows, r = tuple(range(x.dim() - 1)), rstd.unsqueeze(-1)
    dz = dy.to(weight.dtype).float()
    acting = 1 + weight.float() if zero_centred else weight.float()
    x_hat, g = (x.float() - mean.unsqueeze(-1)) * r, dz * acting
    c1, c2 = g.mean(-1, keepdim=True), (g * x_hat).mean(-1, keepdim=True)
    dx = (g - c1 - x_hat * c2) * r
    if dresidual is not None:
        dx = dx + dresidual.float()
    of_weight = _into(dweight, (dz * x_hat).sum(rows), weight)
    of_bias = _into(dbias, dz.sum(rows), weight) if has_bias else None
    return dx.to(x.dtype), of_weight, of_bias


def _into(earlier: Tensor | None, total: Tensor, weight: Tensor) -> Tensor:
    """The sum in the weight's type; added in place to an earlier gradient, where there is one."""
    if earlier is None:
        return total.to(weight.dtype)
    return earlier.copy_(total + earlier.float())
