"""Attention over slots of a cache: right, and wrong where a slot that nobody owns holds NaN."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernel_workbench import Domain, Sizes, kernel, op

_DOMAIN = Domain(dtypes=(torch.float32, torch.bfloat16))


def _sizes(*values):
    return Sizes("count", {"some": values}, lambda _: "some")


@op(
    sizes={"b": _sizes(3, 5), "n": _sizes(64, 200), "l": _sizes(21, 32), "d": _sizes(24, 64)},
    labels={"table": "n", "last": "l"},
)
def decode(
    q: Float[Tensor, "b d"],
    k: Float[Tensor, "n d"],
    v: Float[Tensor, "n d"],
    table: Int[Tensor, "b l"],
    last: Int[Tensor, "b"],
) -> Float[Tensor, "b d"]:
    """Each query attends to the slots table[0..last] of its row."""
    seen = torch.arange(table.shape[1], device=q.device) <= last[:, None]
    scores = (k[table] * q[:, None]).sum(-1) * q.shape[1] ** -0.5
    p = torch.softmax(torch.where(seen, scores, -math.inf), -1)
    return (p[..., None] * torch.where(seen[..., None], v[table], 0.0)).sum(1)


def _decoded(q, k, v, table, last, *, hides):
    seen = torch.arange(table.shape[1], device=q.device) <= last[:, None]
    scores = (k[table].float() * q[:, None].float()).sum(-1) * q.shape[1] ** -0.5
    p = torch.softmax(torch.where(seen, scores, -math.inf), -1)
    values = v[table].float()
    if hides:
        values = torch.where(seen[..., None], values, 0.0)
    return (p[..., None] * values).sum(1).to(q.dtype)


@kernel(decode, _DOMAIN)
def right(q, k, v, table, last):
    """Values past the end are 0."""
    return _decoded(q, k, v, table, last, hides=True)


@kernel(decode, _DOMAIN)
def multiplies_unread(q, k, v, table, last):
    """Values past the end are multiplied by a weight of 0."""
    return _decoded(q, k, v, table, last, hides=False)
