"""Two partial states of attention are merged: right, and wrong where both are empty."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from kernel_workbench import COLUMNS, ROWS, Domain, kernel, op

_DOMAIN = Domain(dtypes=(torch.float32, torch.bfloat16))


@op(sizes={"m": ROWS, "n": COLUMNS}, outputs=("v", "s"))
def merge(
    va: Float[Tensor, "m n"],
    sa: Float32[Tensor, "m"],
    vb: Float[Tensor, "m n"],
    sb: Float32[Tensor, "m"],
) -> tuple[Float[Tensor, "m n"], Float32[Tensor, "m"]]:
    """Merge by logarithms of sums; the union of empty states, whose logarithm is -inf, is empty."""
    most = torch.maximum(sa, sb)
    most = torch.where(torch.isneginf(most), 0.0, most)
    a, b = torch.exp(sa - most), torch.exp(sb - most)
    total = a + b
    safe = torch.where(total == 0, 1.0, total)
    v = va * (a / safe)[:, None] + vb * (b / safe)[:, None]
    return v, torch.where(total == 0, -math.inf, most + torch.log(safe))


def _merged(va, sa, vb, sb, *, guards):
    most = torch.maximum(sa, sb)
    if guards:
        most = torch.where(most.isneginf(), 0.0, most)
    a, b = torch.exp(sa - most), torch.exp(sb - most)
    total = a + b
    shared = torch.where(total == 0, 1.0, total) if guards else total
    v = va.float() * (a / shared)[:, None] + vb.float() * (b / shared)[:, None]
    return v.to(va.dtype), most + torch.log(total)


@kernel(merge, _DOMAIN)
def right(va, sa, vb, sb):
    """By the larger logarithm, or by 0 where both are -inf."""
    return _merged(va, sa, vb, sb, guards=True)


@kernel(merge, _DOMAIN)
def nan_of_empty(va, sa, vb, sb):
    """By the larger logarithm, even where it is -inf."""
    return _merged(va, sa, vb, sb, guards=False)
