"""Work on another stream of the GPU, so that a candidate's programs don't have it to themselves."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

_EXTENT = 4096
_PRODUCTS = 10  # about 2 ms of an H200: longer than most calls


@cache
def _held(device: torch.device) -> tuple[torch.cuda.Stream, Tensor, Tensor]:
    square = torch.ones(_EXTENT, _EXTENT, dtype=torch.float16, device=device)
    return torch.cuda.Stream(device), square, torch.empty_like(square)


def keep_busy(device: torch.device) -> None:
    """Enqueue some milliseconds of products, and return at once. Needs a CUDA device."""
    stream, square, product = _held(device)
    with torch.cuda.stream(stream):
        for _ in range(_PRODUCTS):
            torch.mm(square, square, out=product)
