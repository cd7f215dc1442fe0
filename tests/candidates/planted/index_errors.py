# ruff: noqa: F722, F821  # shapes in annotations
"""Ops with whole numbers that have a structure; of each a kernel that is wrong, and its twin."""

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor

from kernel_workbench import Domain, Sizes, kernel, op

_DOMAIN = Domain(dtypes=(torch.float32,))


def _some(*values):
    return Sizes("some", {"some": values}, lambda _: "some")


_SIZES = {"t": _some(12, 20), "b": _some(4, 3), "n": _some(8, 6)}


@op(sizes=_SIZES, pointers={"ends": "t"}, name="planted_segments")
def planted_segments(x: Float[Tensor, "t n"], ends: Int32[Tensor, "b+1"]) -> Float[Tensor, "b n"]:
    """Sums of the rows of each part."""
    before = torch.cat([torch.zeros_like(x[:1]), x.cumsum(0)])
    return before[ends[1:].long()] - before[ends[:-1].long()]


def _segments(x, ends, *, skips_empty):
    made, last = [], torch.zeros_like(x[0])
    for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        is_kept = skips_empty and begin == end
        last = last if is_kept else x[begin:end].sum(0)
        made.append(last)
    return torch.stack(made)


@kernel(planted_segments, _DOMAIN, name="empty_is_the_one_before")
def empty_is_the_one_before(x, ends):
    """An empty part keeps the sum of the one before it."""
    return _segments(x, ends, skips_empty=True)


@kernel(planted_segments, _DOMAIN, name="empty_is_zero")
def empty_is_zero(x, ends):
    """Its twin."""
    return _segments(x, ends, skips_empty=False)


@op(sizes=_SIZES, labels={"slot": "t"}, name="planted_write")
def planted_write(
    cache: Float[Tensor, "t n"], new: Float[Tensor, "b n"], slot: Int[Tensor, "b"]
) -> Float[Tensor, "t n"]:
    """The cache with new rows in some slots, which are distinct, as is found."""
    return cache.index_put((slot,), new)


@kernel(planted_write, _DOMAIN, name="adds_to_the_slot")
def adds_to_the_slot(cache, new, slot):
    """The old row times 0 is added: where it holds NaN, so does the new one."""
    made = cache.clone()
    made[slot] = cache[slot] * 0 + new
    return made


@kernel(planted_write, _DOMAIN, name="replaces_the_slot")
def replaces_the_slot(cache, new, slot):
    """Its twin."""
    made = cache.clone()
    made[slot] = new
    return made


@op(sizes=_SIZES, labels={"slot": "t", "last": "b"}, name="planted_read")
def planted_read(
    cache: Float[Tensor, "t n"], slot: Int[Tensor, "b"], last: Int[Tensor, "b"]
) -> Float[Tensor, "n"]:
    """The sum of the rows that slots 0 to the last one name."""
    seen = torch.arange(slot.shape[0], device=slot.device) <= last[0]
    return torch.where(seen[:, None], cache[slot], 0.0).sum(0)


@kernel(planted_read, _DOMAIN, name="masks_by_a_product")
def masks_by_a_product(cache, slot, last):
    """Rows past the last are multiplied by 0."""
    seen = torch.arange(slot.shape[0], device=slot.device) <= last[0]
    return (cache[slot] * seen[:, None]).sum(0)


@kernel(planted_read, _DOMAIN, name="masks_by_a_choice")
def masks_by_a_choice(cache, slot, last):
    """Its twin."""
    seen = torch.arange(slot.shape[0], device=slot.device) <= last[0]
    return torch.where(seen[:, None], cache[slot], 0.0).sum(0)
