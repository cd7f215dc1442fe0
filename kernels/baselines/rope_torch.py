"""Rotary position embedding and its gradient in PyTorch's operations, in fp32."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.baselines.autograd_torch import DTYPES
from kernels.registry import Domain, kernel
from oracles import ROPE_BACKWARD, ROPE_FORWARD


@kernel(ROPE_FORWARD, Domain(dtypes=DTYPES), priority=-10)
def torch_eager(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The formula."""
    low, high = x.float().chunk(2, -1)
    turned = torch.cat((-high, low), -1)
    return (x.float() * cos.float()[:, None] + turned * sin.float()[:, None]).to(x.dtype)


@kernel(ROPE_BACKWARD, Domain(dtypes=DTYPES), priority=-10, name="torch_eager")
def torch_eager_backward(dy: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """What is turned is turned back."""
    wide = dy.float()
    low, high = (wide * sin.float()[:, None]).chunk(2, -1)
    return (wide * cos.float()[:, None] + torch.cat((high, -low), -1)).to(dy.dtype)
