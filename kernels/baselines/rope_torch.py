"""Rotary position embedding in PyTorch's operations, in fp32."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.baselines.autograd_torch import DTYPES
from kernels.registry import Domain, kernel
from oracles import ROPE_FORWARD


@kernel(ROPE_FORWARD, Domain(dtypes=DTYPES), priority=-10)
def torch_eager(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The formula."""
    low, high = x.float().chunk(2, -1)
    turned = torch.cat((-high, low), -1)
    return (x.float() * cos.float()[:, None] + turned * sin.float()[:, None]).to(x.dtype)
