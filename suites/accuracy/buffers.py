"""Buffers as bytes: what a tensor lies in, a copy of it elsewhere, and the tensor in that copy."""

from __future__ import annotations

import torch
from torch import Tensor

ALIGNMENT = 256  # bytes; what a layout's element offset is counted from
POISON = 255  # a byte of which NaN is made in every floating-point type
WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
"""Types to compare bytes by, the widest first."""


def bits_of(tensor: Tensor) -> Tensor:
    """The whole buffer that `tensor` lies in, uint8."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def packed(tensor: Tensor) -> Tensor:
    """The elements of `tensor` one after the other, uint8; where they lie so, in place."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def copied(bits: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The same bytes in memory of their own, as far past a multiple of 256 as before.

    Returns them, and what else their buffer has: nothing, or a few bytes of POISON on either side.
    """
    room = torch.empty_like(bits)
    if (bits.data_ptr() - room.data_ptr()) % ALIGNMENT == 0:
        return room.copy_(bits), ()
    size = bits.numel()
    room = torch.empty(size + ALIGNMENT, dtype=torch.uint8, device=bits.device)
    lead = (bits.data_ptr() - room.data_ptr()) % ALIGNMENT
    around = room[:lead].fill_(POISON), room[lead + size :].fill_(POISON)
    return room[lead : lead + size].copy_(bits), around


def seen_as(original: Tensor, copy: Tensor) -> Tensor:
    """A tensor that lies in `copy`, uint8, as `original` does in its own buffer."""
    start = copy.storage_offset() // original.element_size() + original.storage_offset()
    tensor = torch.empty(0, dtype=original.dtype, device=original.device)
    return tensor.set_(copy.untyped_storage(), start, original.shape, original.stride())
