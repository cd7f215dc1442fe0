"""One call of an attention op for the peers: its mask, and tensors that they can read.

A query may attend to an interval of keys under every mask: with its own position p = i + shift
among the keys, and shift = s_kv - s_q at the bottom right corner, 0 at the top left,

    first_i = max(0, p - left)          last_i = min(s_kv - 1, p + right, p if causal)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from kernel_workbench.oracles.attention import options
from kernel_workbench.oracles.attention.geometry import AXES, geometry
from kernel_workbench.oracles.attention.options import Window
from kernel_workbench.oracles.op import Case

Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]

BROADCAST_BIAS = frozenset({"bias", "bias_over_batch", "bias_over_heads", "bias_over_queries"})

_INT32 = 2**31
_VECTOR_BYTES = 16  # the widest load that PyTorch's kernels issue unchecked


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMask:
    """The arguments of the contract that determine the keys of a query."""

    causal: bool = False
    window: Window | None = None
    corner: str = "top_left"

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """The numbers of keys behind and ahead of its own that a query may attend to; None: all."""
        left, right = self.window or (None, None)
        if self.causal:
            right = 0 if right is None else min(right, 0)
        return left, right

    def shift(self, s_q: int, s_kv: int) -> int:
        """Return the position of the first query among the keys."""
        return s_kv - s_q if self.corner == "bottom_right" else 0

    def key_ranges(self, s_q: int, s_kv: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return first and last key, [s_q] each, of each query; no key if last < first."""
        position = torch.arange(s_q, device=device) + self.shift(s_q, s_kv)
        left, right = self.reach
        first = torch.zeros_like(position)
        last = torch.full_like(position, s_kv - 1)
        if left is not None:
            first = first.maximum(position - left)
        if right is not None:
            last = last.minimum(position + right)
        return first, last

    def pairs(self, s_q: int, s_kv: int, device: torch.device) -> Tensor | None:
        """Return True for query i and key j, [s_q, s_kv], if i may attend to j; None: all pairs."""
        if not self.causal and self.window is None:
            return None
        first, last = self.key_ranges(s_q, s_kv, device)
        key = torch.arange(s_kv, device=device)
        return (first[:, None] <= key) & (key <= last[:, None])

    def leaves_rows_without_keys(self, s_q: int, s_kv: int) -> bool:
        """Return True if some query may attend to no key: the first one or the last, if any."""
        if not s_q or not s_kv:
            return bool(s_q)
        shift, (left, right) = self.shift(s_q, s_kv), self.reach
        first_is_early = right is not None and shift + right < 0
        return first_is_early or (left is not None and s_q + shift - left > s_kv)

    def rows_without_keys(self, s_q: int, s_kv: int, device: torch.device) -> Tensor:
        """Return True for query i, [s_q], if i may attend to no key."""
        first, last = self.key_ranges(s_q, s_kv, device)
        return last < first


class PeerOptions(options.Options):
    """The optional arguments of the attention ops, with their mask."""

    @property
    def mask(self) -> KeyMask:
        """The mask of the options."""
        return KeyMask(causal=self.causal, window=self.window, corner=self.corner)


def spans(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield the queries and the keys of each sequence, as slices of their axis."""
    queries, keys = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for index in range(len(queries) - 1):
        yield (
            slice(queries[index], queries[index + 1]),
            slice(keys[index], keys[index + 1]),
        )


def may_lack_keys(mask: KeyMask, q: Tensor, k: Tensor, cu_seqlens_q: Tensor | None) -> bool:
    """Return True if a query may have no key, which only the GPU's memory knows under varlen."""
    return cu_seqlens_q is not None or mask.leaves_rows_without_keys(q.shape[1], k.shape[1])


@cache
def undrawn(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return unused memory for a generator's state, for calls without dropout."""
    return torch.zeros(shape, dtype=dtype, device=device)


def packed(tensor: Tensor) -> Tensor:
    """Return `tensor` contiguous and at a 16-byte address: itself, or a copy.

    PyTorch's CUDA kernels assume that a contiguous gradient is aligned; if it isn't, the load
    faults and the process loses the GPU.
    """
    contiguous = tensor.contiguous()
    return contiguous if contiguous.data_ptr() % _VECTOR_BYTES == 0 else contiguous.clone()


def reduced_like(gradient: Tensor, argument: Tensor) -> Tensor:
    """Return `gradient` summed in fp32 over the axes along which `argument` was broadcast to it."""
    axes = [
        axis
        for axis, (full, own) in enumerate(zip(gradient.shape, argument.shape, strict=True))
        if full != own
    ]
    if not axes:
        return gradient
    return gradient.float().sum(axes, keepdim=True).to(gradient.dtype)


def is_positional(case: Case) -> bool:
    """Return True if a score depends on positions, so that the corner matters."""
    return bool(case.options & {"causal", "window", "alibi"})


def reject_corner(case: Case) -> str | None:
    """Return the refusal of a kernel whose only corner is the bottom right, or None.

    If every sequence has as many queries as keys, the two corners are one.
    """
    if not is_positional(case) or "bottom_right" in case.options:
        return None
    if case.size("s_q") == case.size("s_kv"):
        return None
    return (
        "counts positions from the bottom right corner, "
        f"got s_q = {case.size('s_q')} and s_kv = {case.size('s_kv')}"
    )


def reject_bottom_right(case: Case) -> str | None:
    """Return the refusal of a kernel whose causal masks start only at the top left, or None."""
    if {"causal", "bottom_right"} <= case.options and case.size("s_q") != case.size("s_kv"):
        return "has causal masks from the top left alone, got one from the bottom right"
    return None


def reject_reach(case: Case, axes: str) -> str | None:
    """Return the refusal of offsets of 2^31 elements and more along `axes`, letters of "bsh"."""
    for name, laid_out in geometry(case).items():
        for axis, extent, stride in zip(AXES[name], laid_out.shape, laid_out.strides, strict=True):
            if axis in axes and (extent - 1) * stride >= _INT32:
                reach = (extent - 1) * stride
                return f"serves offsets below 2^31 along {axis}, got {reach} in {name}"
    return None
