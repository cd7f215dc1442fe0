"""Gradients by PyTorch's autograd, of a function in fp32: what baselines of several ops share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def gradients(function: Callable[..., Tensor], dy: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    """The gradients of `of`, each in its dtype, where dy is the gradient of what is returned.

    In the halves PyTorch keeps a result of its forward, rounded; in fp32 nothing is rounded but
    the gradients.
    """
    with torch.enable_grad():
        wide = [each.detach().float().requires_grad_() for each in of]
        made = torch.autograd.grad(function(*wide), wide, dy.float())
    return tuple(each.to(like.dtype) for each, like in zip(made, of, strict=True))
