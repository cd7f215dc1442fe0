"""Softmax of rows: y_j = exp(x_j - max x) / sum_k exp(x_k - max x)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from kernel_workbench.oracles.cases.sizes import ROWS, WIDTHS
from kernel_workbench.oracles.reference import op


@op(sizes={"m": ROWS, "n": WIDTHS})
def softmax(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    """Over the last axis."""
    return torch.softmax(x, -1)


SOFTMAX_FORWARD = softmax
SOFTMAX_BACKWARD = softmax.backward()
