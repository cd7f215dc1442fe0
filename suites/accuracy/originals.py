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
from suites.accuracy.buffers import POISON, WORDS, bits_of, copied, packed, seen_as


@dataclass(frozen=True, slots=True)
class _Witness:
    """What the memory of an input held before a call, as bytes, and where it lies now."""

    name: str
    before: Tensor
    now: Tensor  # the bytes themselves; of a buffer of gigabytes the view that reaches into it
    around: tuple[Tensor, ...] = ()  # the rest of the bytes of its buffer, all POISON

    def differs(self) -> Tensor:
        """Whether a bit has changed, as a tensor of one element on the input's device."""
        now = self.now if self.now.dtype == torch.uint8 else packed(self.now)
        word = next(each for each in WORDS if now.numel() % each.itemsize == 0)
        changed = (now.view(word) != self.before.view(word)).any()
        for each in self.around:
            changed = changed | (each != POISON).any()
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

    def give(self, updates: tuple[str, ...] | None = None) -> Given:
        """The inputs for one call of a candidate, which updates these; None: all of the op's."""
        updates = self.op.updates if updates is None else updates
        if self._kept is None:
            return self._drawn_anew(updates)
        return self._copied(self._kept, updates)

    def _copied(self, kept: Inputs, changing: tuple[str, ...]) -> Given:
        arguments = dict(kept)
        updates: dict[str, tuple[Tensor, Tensor]] = {}
        copies: dict[int, _Witness] = {}  # by the original buffer's address
        for name, original in _tensors(kept):
            bits = bits_of(original)
            copy = copies.get(bits.data_ptr())
            if copy is None:
                copy = copies[bits.data_ptr()] = _Witness(name, bits, *copied(bits))
            arguments[name] = seen_as(original, copy.now)
            if name in changing:
                updates[name] = seen_as(original, copy.now), original
        # Replaced only now, so that no buffer lies where one of the call before did.
        self._last = Given(arguments, self.device, updates, tuple(copies.values()))
        return self._last

    def _drawn_anew(self, changing: tuple[str, ...]) -> Given:
        arguments, witnesses = self.op.inputs(self.case, self.device), []
        updates = {}
        for name, tensor in _tensors(arguments):
            if name in changing:
                updates[name] = tensor.view(tensor.shape), tensor.clone()
            if tensor.untyped_storage().nbytes() <= LARGEST_POISONED_BUFFER:
                witnesses.append(_Witness(name, bits_of(tensor).clone(), bits_of(tensor)))
            else:
                before = packed(tensor.clone(memory_format=torch.contiguous_format))
                witnesses.append(_Witness(name, before, tensor.view(tensor.shape)))
        return Given(arguments, self.device, updates, tuple(witnesses))


def _tensors(inputs: Inputs) -> Iterator[tuple[str, Tensor]]:
    return ((name, value) for name, value in inputs.items() if isinstance(value, Tensor))
