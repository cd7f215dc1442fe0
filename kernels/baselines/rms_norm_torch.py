"""PyTorch's RMS norm and its gradients: its own function, and the formula in eager operations.

Of a sum it is two operations, the first of which casts.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernel_workbench.kernels.baselines.autograd_torch import DTYPES, gradients
from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import (
    ADD_RMS_NORM_BACKWARD,
    ADD_RMS_NORM_FORWARD,
    RMS_NORM_BACKWARD,
    RMS_NORM_FORWARD,
)
from kernel_workbench.oracles.op import Numerics


@kernel(RMS_NORM_FORWARD, Domain(dtypes=DTYPES), priority=-10)
def torch_native(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """`torch.nn.functional.rms_norm`."""
    return functional.rms_norm(x, weight.shape, weight, eps)


@kernel(RMS_NORM_FORWARD, Domain(dtypes=DTYPES, weight_dtypes=DTYPES), priority=-20)
def torch_eager(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """The formula in fp32, one PyTorch operation after the other."""
    wide = x.float()
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * rstd * weight.float()).to(x.dtype)


@kernel(RMS_NORM_BACKWARD, Domain(dtypes=DTYPES), priority=-10, name="torch_native")
def torch_native_backward(
    dy: Tensor, x: Tensor, weight: Tensor, *, eps: float
) -> tuple[Tensor, ...]:
    """Autograd's gradients of `torch.nn.functional.rms_norm`."""
    with torch.enable_grad():
        leaves = x.detach().requires_grad_(), weight.detach().requires_grad_()
        y = functional.rms_norm(leaves[0], weight.shape, leaves[1], eps)
        return torch.autograd.grad(y, leaves, dy)


@kernel(
    ADD_RMS_NORM_FORWARD,
    Domain(dtypes=DTYPES),
    numerics=Numerics(casts="s"),
    priority=-10,
    name="torch_native",
)
def of_sum(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, ...]:
    """A sum, and `torch.nn.functional.rms_norm`."""
    s = x + residual
    return torch_native(s, weight, eps=eps), s


@kernel(ADD_RMS_NORM_BACKWARD, Domain(dtypes=DTYPES), priority=-10, name="torch_native")
def of_sum_backward(
    dy: Tensor, ds: Tensor, x: Tensor, weight: Tensor, *, eps: float
) -> tuple[Tensor, ...]:
    """Autograd's gradients in fp32."""

    def outputs(s: Tensor, scale: Tensor) -> Tensor:
        return torch.stack((functional.rms_norm(s, scale.shape, scale, eps), s))

    return gradients(outputs, torch.stack((dy, ds)), x, weight)
