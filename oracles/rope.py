"""Rotary position embedding: pairs of columns half a row apart, turned (Su et al. 2021, eq. 34)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from oracles.cases.sizes import ROWS, Sizes
from oracles.reference import op

HEADS = Sizes(
    "heads",
    {"several": (3, 2, 5), "one": (1,)},
    lambda h: "one" if h == 1 else "several",
    large=(32, 8, 1),
    timed=(32, 8, 32, 16),
)
HALVED = Sizes(
    "columns",
    {"a power of two": (64, 32, 128), "even": (80, 96, 34), "under 8": (2, 4, 6)},
    lambda d: "under 8" if d < 8 else "even" if d & (d - 1) else "a power of two",
    large=(128, 64, 80, 256),
    timed=(128, 128, 64, 256),
    multiple=2,
)


@op(sizes={"s": ROWS, "h": HEADS, "d": HALVED})
def rope(
    x: Float[Tensor, "s h d"], cos: Float[Tensor, "s d"], sin: Float[Tensor, "s d"]
) -> Float[Tensor, "s h d"]:
    """cos and sin as tables, of each position and column."""
    low, high = x.chunk(2, -1)
    turned = torch.cat((-high, low), -1)
    return x * cos[:, None] + turned * sin[:, None]


ROPE_FORWARD = rope
ROPE_BACKWARD = rope.backward(of=("x",), unread=("x",))
