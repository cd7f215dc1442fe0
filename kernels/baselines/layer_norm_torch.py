"""PyTorch's layer-norm backward: its native kernels, and the formula in eager operations."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.registry import Domain, kernel
from oracles import LAYER_NORM_BACKWARD
from oracles.op import Numerics

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _native(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    *,
    has_bias: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """`aten::native_layer_norm_backward`; outputs that the case leaves out are None."""
    affine = weight is not None
    # The operator takes a bias for its dtype alone and never reads its values.
    bias = None if weight is None else torch.zeros_like(weight)
    dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
        dy,
        x,
        [x.shape[-1]],
        mean.unsqueeze(-1),
        rstd.unsqueeze(-1),
        weight,
        bias,
        [True, affine, affine and has_bias],
    )
    return dx, dweight if affine else None, dbias if affine and has_bias else None


@kernel(
    LAYER_NORM_BACKWARD,
    Domain(dtypes=_DTYPES, features=frozenset({"no_weight", "no_bias"}), devices=("cuda",)),
    priority=-10,
)
def torch_native(dy, x, weight, mean, rstd, has_bias=True):
    """`aten::native_layer_norm_backward` on a GPU."""
    return _native(dy, x, weight, mean, rstd, has_bias=has_bias)


@kernel(
    LAYER_NORM_BACKWARD,
    Domain(
        dtypes=_DTYPES,
        # With weights in the half it asks for statistics in the half too, and those would be
        # another computation; without weights it asks the same of half activations.
        weight_dtypes=(torch.float32,),
        features=frozenset({"no_bias"}),
        devices=("cpu",),
    ),
    numerics=Numerics(distributed_normalisation=True),
    priority=-10,
)
def torch_native_cpu(dy, x, weight, mean, rstd, has_bias=True):
    """`aten::native_layer_norm_backward` on a CPU: dx as rstd g + b x + c, b and c for each row."""
    return _native(dy, x, weight, mean, rstd, has_bias=has_bias)


@kernel(
    LAYER_NORM_BACKWARD,
    Domain(
        dtypes=_DTYPES,
        weight_dtypes=_DTYPES,
        features=frozenset(LAYER_NORM_BACKWARD.options) - {"device_independent"},
    ),
    priority=-20,
)
def torch_eager(
    dy,
    x,
    weight,
    mean,
    rstd,
    dresidual=None,
    dweight=None,
    dbias=None,
    has_bias=True,
    zero_centred=False,
):
    """The closed form in fp32, one PyTorch operation after the other."""
    wide_dy, rows = dy.float(), tuple(range(x.dim() - 1))
    centred = x.float() if mean is None else x.float() - mean.unsqueeze(-1)
    x_hat = centred * rstd.unsqueeze(-1)
    g = wide_dy
    if weight is not None:
        g = wide_dy * (weight.float() + 1 if zero_centred else weight.float())
    dx = g - x_hat * (g * x_hat).mean(-1, keepdim=True)
    if mean is not None:
        dx -= g.mean(-1, keepdim=True)
    dx *= rstd.unsqueeze(-1)
    if dresidual is not None:
        dx += dresidual.float()
    if weight is None:
        return dx.to(x.dtype), None, None

    def gradient(total, existing):
        if existing is None:
            return total.to(weight.dtype)
        return existing.copy_(existing.float() + total)

    weight_gradient = gradient((wide_dy * x_hat).sum(rows), dweight)
    bias_gradient = gradient(wide_dy.sum(rows), dbias) if has_bias else None
    return dx.to(x.dtype), weight_gradient, bias_gradient
