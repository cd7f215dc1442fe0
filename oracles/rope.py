"""Rotary position embedding: pairs of columns half a row apart, turned (Su et al. 2021, eq. 34)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from kernel_workbench.oracles.cases.sizes import ROWS, Sizes
from kernel_workbench.oracles.reference import op

HEADS = Sizes(
    "heads",
    {"several": (3, 5, 2), "one": (1,)},
    lambda h: "one" if h == 1 else "several",
    large=(32, 8, 1),
    timed=(32, 8, 32, 16),
    once=(11,),
)
PAIRS = Sizes(
    "pairs of columns",
    {"a power of two": (32, 16, 64), "no power of two": (40, 17, 37, 48), "under 4": (2, 1, 3)},
    lambda p: "under 4" if p < 4 else "no power of two" if p & (p - 1) else "a power of two",
    large=(64, 32, 40, 128),
    timed=(64, 64, 32, 128),
    once=(67,),
)


@op(sizes={"s": ROWS, "h": HEADS, "p": PAIRS})
def rope(
    x: Float[Tensor, "s h 2*p"], cos: Float[Tensor, "s p"], sin: Float[Tensor, "s p"]
) -> Float[Tensor, "s h 2*p"]:
    """cos and sin as tables, of each position and pair."""
    low, high = x.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


ROPE_FORWARD = rope
ROPE_BACKWARD = rope.backward(of=("x",), unread=("x",))
