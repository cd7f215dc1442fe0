# ruff: noqa: F722, F821, UP037  # shapes in annotations
"""Masks that keep nothing of a row, and parts without rows; `wrong` ones must fail."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor

from kernel_workbench import Domain, Sizes, kernel, op


def some(*values: int) -> Sizes:
    """Sizes of one level."""
    return Sizes("some", {"some": values}, lambda _: "some")


_DOMAIN = Domain(dtypes=(torch.float32,))


@op(sizes={"m": some(9, 5), "n": some(64, 33)})
def masked_softmax(x: Float[Tensor, "m n"], mask: Bool[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    """Softmax of the numbers that a mask keeps; 0 in a row of which it keeps none."""
    kept = mask.any(-1, keepdim=True)
    highest = torch.where(kept, torch.where(mask, x, -torch.inf).amax(-1, keepdim=True), 0.0)
    e = torch.where(mask, torch.exp(torch.where(mask, x, highest) - highest), 0.0)
    return e / torch.where(kept, e.sum(-1, keepdim=True), 1.0)


@kernel(masked_softmax, _DOMAIN)
def right_softmax(x: Tensor, mask: Tensor) -> Tensor:
    """By PyTorch's, whose empty rows are NaN."""
    y = torch.where(mask, x, -torch.inf).softmax(-1)
    return torch.where(mask.any(-1, keepdim=True), y, 0.0)


@kernel(masked_softmax, _DOMAIN)
def wrong_empty_row(x: Tensor, mask: Tensor) -> Tensor:
    """Write -1e9 for what is left out: the weights of an empty row are all equal."""
    return torch.where(mask, x, -1e9).softmax(-1)


@kernel(masked_softmax, _DOMAIN)
def wrong_first_tile(x: Tensor, mask: Tensor) -> Tensor:
    """Take what a row's first half keeps for what the row keeps."""
    y = right_softmax(x, mask)
    return torch.where(mask[:, : x.shape[1] // 2].any(-1, keepdim=True), y, 0.0)


@op(sizes={"t": some(9, 40), "b": some(4, 3), "n": some(16, 33)}, pointers={"ends": "t"})
def means_of_parts(x: Float[Tensor, "t n"], ends: Int32[Tensor, "b+1"]) -> Float[Tensor, "b n"]:
    """Means of the rows of each part; 0 of a part without rows."""
    bounds = zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    return torch.stack([x[one:other].sum(0) / max(other - one, 1) for one, other in bounds])


@kernel(means_of_parts, _DOMAIN)
def right_means(x: Tensor, ends: Tensor) -> Tensor:
    """Means of each part alone."""
    bounds = zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    return torch.stack([x[one:other].sum(0) / max(other - one, 1) for one, other in bounds])


@kernel(means_of_parts, _DOMAIN)
def wrong_last_part(x: Tensor, ends: Tensor) -> Tensor:
    """Read the last row for a last part without rows."""
    y = right_means(x, ends)
    if ends[-2] == ends[-1]:
        y[-1] = x[-1]
    return y


@kernel(means_of_parts, _DOMAIN)
def wrong_long_part(x: Tensor, ends: Tensor) -> Tensor:
    """Take 32 rows of a part at most."""
    bounds = zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    return torch.stack(
        [x[one : min(other, one + 32)].sum(0) / max(other - one, 1) for one, other in bounds]
    )
