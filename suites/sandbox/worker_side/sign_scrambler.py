"""A launch that runs on changed numbers: random ones of what it reads have the other sign.

Afterwards each element that the launch didn't write is as it was, so that whoever looks at its
arguments finds nothing changed but what the launch stored. Zeros and integers stay as they are: a
launch that raises a flag, counts, or fills memory does all of that. One that computes outputs
computes them of other numbers.

Signs are drawn by arithmetic on the device, in the stream of the launch: nothing waits.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from kernel_workbench.suites.sandbox.worker_side.handed_tensors import HandedTensors

# Integers as wide as a number, and the one whose single bit is the sign's.
_BITS = {
    1: (torch.int8, -(2**7)),
    2: (torch.int16, -(2**15)),
    4: (torch.int32, -(2**31)),
    8: (torch.int64, -(2**63)),
}
_ODD = (0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64)  # of splitmix64's mixing


@contextmanager
def scrambled(
    arguments: Iterable[object], handed: HandedTensors | None = None, kernel: int = 0
) -> Iterator[None]:
    """Flip random signs of these arguments for a launch inside; handed: note what they were.

    Two arguments may lie in one another's memory: all are changed before the launch, and what
    equals the changed numbers after it is what it didn't write.
    """
    with _disable_current_modes():
        tensors = list(_tensors(arguments))
        for place, tensor in enumerate(tensors):
            if handed is not None:
                handed.note(kernel, place, tensor)
        parts = [_once(each) for each in tensors]
        before = [each.clone() for each in parts]
        for each in parts:
            _flip_(each)
        changed = [each.clone() for each in parts]
    yield
    with _disable_current_modes():
        for tensor, now, old, sent in zip(tensors, parts, before, changed, strict=True):
            if handed is not None and not torch.equal(now, sent):
                handed.note_written(tensor)
            now.copy_(torch.where(now == sent, old, now))


def _tensors(arguments: Iterable[object]) -> Iterator[Tensor]:
    """Those with numbers that have a sign, of tuples and of descriptors too."""
    for each in arguments:
        if isinstance(each, tuple | list):
            yield from _tensors(each)
            continue
        of = each if isinstance(each, Tensor) else getattr(each, "base", None)
        if isinstance(of, Tensor) and of.is_floating_point() and of.numel():
            yield of.detach()


def _once(tensor: Tensor) -> Tensor:
    """Its bits, as integers, with one entry of each axis that it sees one entry of throughout."""
    kind, _ = _BITS[tensor.element_size()]
    return tensor.view(kind)[tuple(slice(1 if step == 0 else None) for step in tensor.stride())]


def _flip_(bits: Tensor) -> None:
    _, sign = _BITS[bits.element_size()]
    mixed = torch.arange(bits.numel(), device=bits.device) + secrets.randbits(62)
    for odd in _ODD:
        mixed = mixed * odd
        mixed = mixed ^ (mixed >> 29)
    coin = ((mixed >> 40) & 1).to(torch.bool).view(bits.shape)
    is_zero = (bits & ~sign) == 0  # of either sign
    bits.bitwise_xor_(torch.where(coin & ~is_zero, sign, 0).to(bits.dtype))
