"""Run a launch on changed numbers: random elements of its arguments get the other sign.

After the launch, each element that it didn't write gets its old value back, so only the launch's
stores remain. Zeros and integers don't change: a launch that raises a flag, counts, or fills memory
works as before. A launch that computes outputs computes them from other numbers.

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

# Integer types by an element's bytes, and the integer whose only bit is the sign.
_BITS = {
    1: (torch.int8, -(2**7)),
    2: (torch.int16, -(2**15)),
    4: (torch.int32, -(2**31)),
    8: (torch.int64, -(2**63)),
}
_ODD = (0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64)  # constants of splitmix64


@contextmanager
def scrambled(
    arguments: Iterable[object], handed: HandedTensors | None = None, kernel: int = 0
) -> Iterator[None]:
    """Flip random signs of the arguments for a launch within the context.

    Arguments may overlap in memory: all are changed before the launch, and elements that still
    equal the changed numbers after it weren't written.

    Args:
        arguments: arguments of the launch.
        handed: records copies of the arguments.
        kernel: identifies the kernel in `handed`.
    """
    with _disable_current_modes():
        tensors = list(_tensors(arguments))
        for place, tensor in enumerate(tensors):
            if handed is not None:
                handed.note(kernel, place, tensor)
        parts = [_once(tensor) for tensor in tensors]
        before = [part.clone() for part in parts]
        for part in parts:
            _flip_(part)
        changed = [part.clone() for part in parts]
    yield
    with _disable_current_modes():
        for tensor, now, old, sent in zip(tensors, parts, before, changed, strict=True):
            if handed is not None and not torch.equal(now, sent):
                handed.note_written(tensor)
            now.copy_(torch.where(now == sent, old, now))


def _tensors(arguments: Iterable[object]) -> Iterator[Tensor]:
    """Yield the floating-point tensors among the arguments, in tuples and descriptors too."""
    for argument in arguments:
        if isinstance(argument, tuple | list):
            yield from _tensors(argument)
            continue
        of = argument if isinstance(argument, Tensor) else getattr(argument, "base", None)
        if isinstance(of, Tensor) and of.is_floating_point() and of.numel():
            yield of.detach()


def _once(tensor: Tensor) -> Tensor:
    """Return the bits as integers, without elements that share an address."""
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
