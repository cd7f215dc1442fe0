"""Ops that pick, scatter or mask numbers, or read a list, each with a right and a wrong kernel."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from kernel_workbench import Domain, Sizes, kernel, op

ROWS = Sizes("rows", {"few": (12, 5), "many": (33,)}, lambda m: "few" if m < 30 else "many")
WIDTH = Sizes("width", {"even": (16, 32), "odd": (33, 7)}, lambda n: "odd" if n % 2 else "even")
_SIZES = {"m": ROWS, "n": WIDTH}
_DOMAIN = Domain(dtypes=(torch.float32,), strides="contiguous")


@op(sizes=_SIZES)
def masked(x: Float[Tensor, "m n"], mask: Bool[Tensor, "m n"]) -> Float[Tensor, "m"]:
    """The mean of what a mask keeps, by a product with it."""
    return (x * mask).sum(-1) / mask.sum(-1).clamp(min=1)


@kernel(masked, _DOMAIN, name="right")
def masked_right(x, mask):
    """Chosen, not multiplied."""
    return torch.where(mask, x, x * 0).sum(-1) / mask.sum(-1).clamp(min=1)


@kernel(masked, _DOMAIN, name="wrong")
def masked_wrong(x, mask):
    """By the width, not by how many there are."""
    return (x * mask).mean(-1)


@op(sizes=_SIZES, labels={"index": "m"})
def table(x: Float[Tensor, "m n"], index: Int[Tensor, "9 3"]) -> Float[Tensor, "9 3 n"]:
    """Rows of a table."""
    return x[index]


table_backward = table.backward(of=("x",))


@kernel(table_backward, _DOMAIN, name="right")
def table_right(dy, x, index):
    """Every gradient of a row is added to it."""
    return torch.zeros_like(x).index_add_(0, index.flatten(), dy.flatten(0, 1))


@kernel(table_backward, _DOMAIN, name="wrong")
def table_wrong(dy, x, index):
    """The last gradient of a row takes the place of the others."""
    return torch.zeros_like(x).index_copy_(0, index.flatten(), dy.flatten(0, 1))


@op(sizes=_SIZES)
def largest(x: Float[Tensor, "m n"]) -> Float[Tensor, "m"]:
    """The largest number of a row."""
    return x.amax(-1)


largest_backward = largest.backward()


@kernel(largest_backward, _DOMAIN, name="right")
def largest_right(dy, x):
    """Where several are the largest each has its share."""
    most = x == x.amax(-1, keepdim=True)
    return most * (dy / most.sum(-1))[:, None]


@kernel(largest_backward, _DOMAIN, name="wrong")
def largest_wrong(dy, x):
    """Each number has a share of the mean."""
    return (dy / x.shape[1])[:, None].expand(x.shape).contiguous()


@op(sizes=_SIZES, labels={"index": "m"})
def added(
    x: Float[Tensor, "m n"], rows: Float[Tensor, "9 n"], index: Int[Tensor, "9"]
) -> Float[Tensor, "m n"]:
    """Rows times 0.3 are added to some."""
    return x.index_add(0, index, rows, alpha=0.3)


@kernel(added, _DOMAIN, name="right")
def added_right(x, rows, index):
    """Multiplied first."""
    return x.index_add(0, index, rows * 0.3)


@kernel(added, _DOMAIN, name="wrong")
def added_wrong(x, rows, index):
    """The factor in three digits of binary."""
    return x.index_add(0, index, rows * 0.3125)


@op(sizes=_SIZES, labels={"index": "m"})
def averaged(
    x: Float[Tensor, "m n"], rows: Float[Tensor, "9 n"], index: Int[Tensor, "9 n"]
) -> Float[Tensor, "m n"]:
    """Means of what comes to each place, with what is there."""
    return x.scatter_reduce(0, index, rows, "mean")


@kernel(averaged, _DOMAIN, name="right")
def averaged_right(x, rows, index):
    """A sum, and a count."""
    count = torch.ones_like(x).scatter_add(0, index, torch.ones_like(rows))
    return x.scatter_add(0, index, rows) / count


@kernel(averaged, _DOMAIN, name="wrong")
def averaged_wrong(x, rows, index):
    """Leave the number that is already in x out of the count."""
    count = torch.zeros_like(x).scatter_add(0, index, torch.ones_like(rows))
    return x.scatter_add(0, index, rows) / count.clamp(min=1)


@op(sizes=_SIZES)
def causal(
    q: Float[Tensor, "m n"], k: Float[Tensor, "m n"], v: Float[Tensor, "m n"]
) -> Float[Tensor, "m n"]:
    """Causal, as PyTorch has it."""
    made = functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)
    return made[0]


def _attention(q, k, v, diagonal):
    scores = (q @ k.T) * q.shape[-1] ** -0.5
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(diagonal)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


@kernel(causal, _DOMAIN, name="right")
def attention_right(q, k, v):
    """A row sees itself and those before it."""
    return _attention(q, k, v, 1)


@kernel(causal, _DOMAIN, name="wrong")
def attention_wrong(q, k, v):
    """And the next one."""
    return _attention(q, k, v, 2)


@op(sizes=_SIZES, labels={"index": "m"})
def segments(x: Float[Tensor, "m n"], index: Int[Tensor, "5"]) -> Float[Tensor, "5 n"]:
    """Sums of the rows before each place of a list."""
    return torch.stack([x[: end + 1].sum(0) for end in index.tolist()])


@kernel(segments, _DOMAIN, name="right")
def segments_right(x, index):
    """By a mask."""
    seen = torch.arange(x.shape[0], device=x.device) <= index[:, None]
    return torch.where(seen[..., None], x, 0).sum(1)


@kernel(segments, _DOMAIN, name="wrong")
def segments_wrong(x, index):
    """Without the last row."""
    seen = torch.arange(x.shape[0], device=x.device) < index[:, None]
    return torch.where(seen[..., None], x, 0).sum(1)
