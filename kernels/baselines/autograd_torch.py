"""Gradients by PyTorch's autograd in fp32, for baselines of several ops."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def gradients(function: Callable[..., Tensor], dy: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of `of`, each in its dtype; dy is the gradient of the function's result.

    In 16-bit dtypes PyTorch would keep a rounded result of its forward; in fp32 only the gradients
    are rounded.
    """
    with torch.enable_grad():
        wide = [tensor.detach().float().requires_grad_() for tensor in of]
        wide_gradients = torch.autograd.grad(function(*wide), wide, dy.float())
    return tuple(gradient.to(like.dtype) for gradient, like in zip(wide_gradients, of, strict=True))
