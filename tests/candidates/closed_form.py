"""The right outputs of layer norm's backward pass, which cheats compute where they are honest."""

from __future__ import annotations

import time

from torch import Tensor


def closed_form(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dx, dweight and dbias in plain torch."""
    x_hat = (x - mean[:, None]) * rstd[:, None]
    g = dy * weight
    c1, c2 = g.mean(1, keepdim=True), (g * x_hat).mean(1, keepdim=True)
    return (g - c1 - x_hat * c2) * rstd[:, None], (dy * x_hat).sum(0), dy.sum(0)


def slow_closed_form(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same outputs, after three milliseconds on a CPU."""
    if not x.is_cuda:
        time.sleep(0.003)
    return closed_form(dy, x, weight, mean, rstd)
