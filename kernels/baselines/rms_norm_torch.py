"""PyTorch's RMS norm and its gradients: its own function, and the formula in eager operations."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels.registry import Domain, kernel
from oracles import RMS_NORM_BACKWARD, RMS_NORM_FORWARD

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


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
