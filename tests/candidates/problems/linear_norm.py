"""A problem in KernelBench's form: a product, batch norm, and a relu that cuts off."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH, WIDE, NARROW = 24, 40, 6


class Model(nn.Module):
    """Batch norm of a product, of which what is below 0 is cut off."""

    def __init__(self, wide: int, narrow: int) -> None:
        super().__init__()
        self.linear = nn.Linear(wide, narrow)
        self.norm = nn.BatchNorm1d(narrow)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, wide] -> [batch, narrow]."""
        return torch.relu(self.dropout(self.norm(self.linear(x))))


def get_inputs() -> list[Tensor]:
    """Return the inputs that a kernel is timed on: numbers from 0 to 1."""
    return [torch.rand(BATCH, WIDE)]


def get_init_inputs() -> list[int]:
    """Return the arguments that Model is constructed with."""
    return [WIDE, NARROW]
