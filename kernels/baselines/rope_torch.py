"""Rotary position embedding and its gradient in PyTorch's operations, in fp32."""

from __future__ import annotations

import torch
from torch import Tensor

from kernel_workbench.kernels.baselines.autograd_torch import DTYPES
from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import ROPE_BACKWARD, ROPE_FORWARD


@kernel(ROPE_FORWARD, Domain(dtypes=DTYPES), priority=-10)
def torch_eager(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The formula."""
    low, high = x.float().chunk(2, -1)
    c, s = cos.float()[:, None], sin.float()[:, None]
    return torch.cat((low * c - high * s, high * c + low * s), -1).to(x.dtype)


@kernel(ROPE_BACKWARD, Domain(dtypes=DTYPES), priority=-10, name="torch_eager")
def torch_eager_backward(dy: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """What is turned is turned back."""
    return torch_eager(dy, cos, -sin)
