"""PyTorch's layer-norm backward: its native kernels, and the formula in eager operations."""

from __future__ import annotations

import torch
from torch import Tensor

from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import LAYER_NORM_BACKWARD, LayerNormNumerics
from kernel_workbench.oracles.op import Case

Gradients = tuple[Tensor, Tensor | None, Tensor | None]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def rms_norm_without_bias(case: Case) -> str | None:
    """Return the refusal of RMS norm's gradients with a bias's, or None."""
    if "rms_norm" in case.options and not case.options & {"no_bias", "no_weight"}:
        return "serves RMS norm without a bias"
    return None


@kernel(
    LAYER_NORM_BACKWARD,
    Domain(
        dtypes=DTYPES,
        features=frozenset({"no_weight", "no_bias", "rms_norm"}),
        devices=("cuda",),
        also=rms_norm_without_bias,
    ),
    priority=-10,
    name="torch_native",
    profiled=True,
)
@kernel(
    LAYER_NORM_BACKWARD,
    Domain(
        dtypes=DTYPES,
        # With weights in the half it asks for statistics in the half too, and those would be
        # another computation; without weights it asks the same of half activations.
        weight_dtypes=(torch.float32,),
        features=frozenset({"no_bias"}),
        devices=("cpu",),
    ),
    # On a CPU dx is rstd g + b x + c, with b and c made once for each row.
    numerics=LayerNormNumerics(distributed_normalisation=True),
    priority=-10,
    name="torch_native_cpu",
)
def torch_native(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    *,
    has_bias: bool = True,
) -> Gradients:
    """Call `aten::native_layer_norm_backward`; gradients that the case lacks are None.

    Without a mean it calls `aten::_fused_rms_norm_backward`.
    """
    affine, shape = weight is not None, [x.shape[-1]]
    if mean is None:
        gradients = torch.ops.aten._fused_rms_norm_backward(  # noqa: SLF001  (autograd's own)
            dy, x, shape, rstd.unsqueeze(-1), weight, [True, affine]
        )
        return gradients[0], gradients[1] if affine else None, None
    # The operator only uses a bias's dtype and never reads its values.
    bias = None if weight is None else torch.zeros_like(weight)
    dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
        dy,
        x,
        shape,
        mean.unsqueeze(-1),
        rstd.unsqueeze(-1),
        weight,
        bias,
        [True, affine, affine and has_bias],
    )
    return dx, dweight if affine else None, dbias if affine and has_bias else None


@kernel(
    LAYER_NORM_BACKWARD,
    Domain(
        dtypes=DTYPES,
        weight_dtypes=DTYPES,
        features=frozenset(LAYER_NORM_BACKWARD.options) - {"device_independent"},
    ),
    priority=-20,
)
def torch_eager(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    *,
    dresidual: Tensor | None = None,
    dweight: Tensor | None = None,
    dbias: Tensor | None = None,
    has_bias: bool = True,
    zero_centred: bool = False,
) -> Gradients:
    """Compute the closed form in fp32, one PyTorch operation after the other."""
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

    weight_gradient = _added((wide_dy * x_hat).sum(rows), dweight, weight.dtype)
    bias_gradient = _added(wide_dy.sum(rows), dbias, weight.dtype) if has_bias else None
    return dx.to(x.dtype), weight_gradient, bias_gradient


def _added(total: Tensor, existing: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the fp32 `total` in `dtype`, or add it in fp32 to an existing gradient, in place."""
    return total.to(dtype) if existing is None else existing.copy_(existing.float() + total)
