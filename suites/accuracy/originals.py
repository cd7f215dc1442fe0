"""The inputs of a case, drawn once, and a copy of them for each call.

A candidate gets buffers of its own at every call: the same values, poison and place within 256
bytes, at another address than at the call before. After the call each buffer is compared, bit by
bit, with the original, which no candidate is ever given.

Where a buffer is of gigabytes (its gaps are memory that nothing touched, or two of it are too
many) the case's inputs are drawn anew for each call instead; of such a buffer only what its tensor
reaches is compared, with a packed copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.inputs import LARGEST_POISONED_BUFFER
from oracles.op import Case, Inputs, Op

_ALIGNMENT = 256  # bytes; what a layout's element offset is counted from
_POISON = 255  # a byte of which NaN is made in every floating-point type
_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


@dataclass(frozen=True, slots=True)
class _Witness:
    """What the memory of an input held before a call, as bytes, and where it lies now."""

    name: str
    before: Tensor
    now: Tensor  # the bytes themselves; of a buffer of gigabytes the view that reaches into it
    around: tuple[Tensor, ...] = ()  # the rest of the bytes of its buffer, all _POISON

    def differs(self) -> Tensor:
        """Whether a bit has changed, as a tensor of one element on the input's device."""
        now = self.now if self.now.dtype == torch.uint8 else _packed(self.now)
        word = next(each for each in _WORDS if now.numel() % each.itemsize == 0)
        changed = (now.view(word) != self.before.view(word)).any()
        for each in self.around:
            changed = changed | (each != _POISON).any()
        return changed


@dataclass(frozen=True, slots=True)
class Given:
    """One call's inputs, and what shows afterwards whether memory in or around them changed."""

    arguments: Inputs
    device: torch.device
    # By name, what may change: where it lies, whatever became of the argument, and what it was.
    updates: dict[str, tuple[Tensor, Tensor]]
    witnesses: tuple[_Witness, ...]

    def changed(self) -> str | None:
        """The name of an input whose memory changed, but for the elements that were to change."""
        for now, original in self.updates.values():
            now.copy_(original)
        differ = [each.differs().to(self.device) for each in self.witnesses]
        known = torch.stack(differ).tolist() if differ else []  # one transfer for all
        return next(
            (each.name for each, bad in zip(self.witnesses, known, strict=True) if bad), None
        )


class Originals:
    """The inputs of one case on one device."""

    def __init__(
        self, op: Op, case: Case, device: torch.device, drawn: Inputs | None = None
    ) -> None:
        """Of the case's own inputs, or of those that were `drawn` for it, small ones."""
        self.op, self.case = op, case
        drawn = op.inputs(case, device) if drawn is None else drawn
        self.device = next(each.device for _, each in _tensors(drawn))  # with its index
        largest = max((each.untyped_storage().nbytes() for _, each in _tensors(drawn)), default=0)
        self._kept = drawn if largest <= LARGEST_POISONED_BUFFER else None
        self._last: Given | None = None

    def read(self) -> Inputs:
        """The inputs for oracle and bound, which change nothing."""
        return self.op.inputs(self.case, self.device) if self._kept is None else self._kept

    def give(self) -> Given:
        """The inputs for one call of a candidate."""
        return self._drawn_anew() if self._kept is None else self._copied(self._kept)

    def _copied(self, kept: Inputs) -> Given:
        arguments = dict(kept)
        updates: dict[str, tuple[Tensor, Tensor]] = {}
        copies: dict[int, _Witness] = {}  # by the original buffer's address
        for name, original in _tensors(kept):
            bits = _bits(original)
            copy = copies.get(bits.data_ptr())
            if copy is None:
                copy = copies[bits.data_ptr()] = _copy(name, bits)
            arguments[name] = _seen_as(original, copy.now)
            if name in self.op.updates:
                updates[name] = _seen_as(original, copy.now), original
        # Replaced only now, so that no buffer lies where one of the call before did.
        self._last = Given(arguments, self.device, updates, tuple(copies.values()))
        return self._last

    def _drawn_anew(self) -> Given:
        arguments, witnesses = self.op.inputs(self.case, self.device), []
        updates = {}
        for name, tensor in _tensors(arguments):
            if name in self.op.updates:
                updates[name] = tensor.view(tensor.shape), tensor.clone()
            if tensor.untyped_storage().nbytes() <= LARGEST_POISONED_BUFFER:
                witnesses.append(_Witness(name, _bits(tensor).clone(), _bits(tensor)))
            else:
                packed = _packed(tensor.clone(memory_format=torch.contiguous_format))
                witnesses.append(_Witness(name, packed, tensor.view(tensor.shape)))
        return Given(arguments, self.device, updates, tuple(witnesses))


def _tensors(inputs: Inputs) -> Iterator[tuple[str, Tensor]]:
    return ((name, value) for name, value in inputs.items() if isinstance(value, Tensor))


def _bits(tensor: Tensor) -> Tensor:
    """The whole buffer that `tensor` lies in, as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _packed(tensor: Tensor) -> Tensor:
    """The elements of `tensor` one after the other, as bytes."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _copy(name: str, bits: Tensor) -> _Witness:
    """The same bytes in a buffer of their own, as far past a multiple of 256 as the original."""
    size = bits.numel()
    room = torch.empty_like(bits)
    if (bits.data_ptr() - room.data_ptr()) % _ALIGNMENT == 0:
        return _Witness(name, bits, room.copy_(bits))
    room = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device=bits.device)
    lead = (bits.data_ptr() - room.data_ptr()) % _ALIGNMENT
    around = room[:lead].fill_(_POISON), room[lead + size :].fill_(_POISON)
    return _Witness(name, bits, room[lead : lead + size].copy_(bits), around)


def _seen_as(original: Tensor, copy: Tensor) -> Tensor:
    """A tensor that lies in `copy`, bytes, as `original` does in its own buffer."""
    start = copy.storage_offset() // original.element_size() + original.storage_offset()
    tensor = torch.empty(0, dtype=original.dtype, device=original.device)
    return tensor.set_(copy.untyped_storage(), start, original.shape, original.stride())
