"""Inputs for one sample after the other: fresh pointers, and values that were never there before.

Several buffers are taken in turn; each after the first has one change of signs (`Op.signs`) that no
other has. Before each sample one of a dozen more is made in its buffer, in the order of a Gray
code: so a buffer holds 4,096 different values before one comes again, and which changes are in it
follows from the sample's number. A kernel that keeps outputs by the inputs' addresses, or by a
glance at them, returns those of other values; how a correct kernel's outputs change is known, and
the judge undoes it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case, Inputs
from kernel_workbench.suites.sandbox.parcels import bits_of

CHANGES = 12
# Larger inputs stay where they are: they reach every part of memory alike, and moving them is slow.
_MOST_MOVED_BYTES = 2**32
_LEAST_FREE = 4  # of the card's memory, in what moves
_PAGE_BYTES = 2**21  # that CUDA takes memory by
_MOST_APART_BYTES = 2**29
_ALIGNMENT = 256  # bytes; what a layout's element offset is counted from
_BITS = {2: (torch.int16, -(2**15)), 4: (torch.int32, -(2**31))}  # the sign's, of either width


def changed_at(number: int, buffers: int) -> int:
    """Which change is made before sample `number`, from 0: the lowest set bit of its turn."""
    turn = number // buffers + 1
    return min((turn & -turn).bit_length() - 1, CHANGES - 1)


def changes_in(number: int, buffers: int) -> tuple[int, ...]:
    """The changes that are in the buffer of sample `number` when it is taken."""
    made = [0] * CHANGES
    for turn in range(number // buffers + 1):
        made[changed_at(turn * buffers, buffers)] ^= 1
    changes = [index for index, each in enumerate(made) if each]
    of_buffer = number % buffers
    return tuple([*changes, CHANGES + of_buffer - 1] if of_buffer else changes)


class Rotation:
    """Buffers of one case's inputs in turn."""

    def __init__(
        self, case: Case, inputs: Sequence[Inputs], seed: int, updates: Sequence[str] = ()
    ) -> None:
        """Draw the changes from `seed`; updates: arguments that a kernel adds to in place."""
        self._inputs = list(inputs)
        self._number = 0
        self._places = random.Random(seed)  # noqa: S311  (places in memory, no secret)
        self._apart: Tensor | None = None
        self._changes = [
            [
                _Change(inputs[0], name, factors)
                for name, factors in OPS[case.op].signs(case, seed + index).of_inputs.items()
                if isinstance(inputs[0].get(name), Tensor)
            ]
            for index in range(CHANGES + len(inputs) - 1)
        ]
        # What a call adds to is put back before the next one.
        self._kept = [
            {
                name: value.clone()
                for name, value in given.items()
                if name in updates and isinstance(value, Tensor)
            }
            for given in inputs
        ]
        for given, kept, changes in zip(
            inputs[1:], self._kept[1:], self._changes[CHANGES:], strict=True
        ):
            for change in changes:
                change.make(given, kept)

    def next(self) -> Inputs:
        """The inputs of the next sample, changed; asynchronous on a GPU."""
        buffers = len(self._inputs)
        number, given = self._number, self._inputs[self._number % buffers]
        kept = self._kept[number % buffers]
        for change in self._changes[changed_at(number, buffers)]:
            change.make(given, kept)
        for name, value in kept.items():
            tensor = given[name]
            assert isinstance(tensor, Tensor)
            tensor.copy_(value)
        self._number += 1
        return given

    @property
    def first(self) -> Inputs:
        """The first buffer's, as they are now."""
        return self._inputs[0]

    @property
    def moves(self) -> bool:
        """Whether its buffers are small enough to be moved about the card's memory."""
        storages = {
            each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
            for given in self._inputs
            for each in given.values()
            if isinstance(each, Tensor)
        }
        size = sum(storages.values())
        free, _ = torch.cuda.mem_get_info()
        return size <= _MOST_MOVED_BYTES and free >= _LEAST_FREE * (size + _MOST_APART_BYTES)

    def move(self) -> None:
        """Copy every buffer to other memory of the GPU, past some that nobody uses.

        What PyTorch keeps for later is given back before: else its next outputs and workspace
        would lie where the last ones did.
        """
        device = next(each.device for each in self.first.values() if isinstance(each, Tensor))
        self._apart = None
        torch.cuda.empty_cache()
        pages = self._places.randint(1, _MOST_APART_BYTES // _PAGE_BYTES)
        self._apart = torch.empty(pages * _PAGE_BYTES, dtype=torch.uint8, device=device)
        for number, given in enumerate(self._inputs):
            self._inputs[number] = moved(given)


def moved(inputs: Inputs) -> Inputs:
    """The same arguments, their storages copied to fresh memory.

    Tensors that share a storage go on sharing it, and each lies as many bytes past a multiple of
    256 as before.
    """
    fresh: dict[int, Tensor] = {}  # by the buffer's address: its copy
    made: Inputs = dict(inputs)
    for name, value in inputs.items():
        if isinstance(value, Tensor):
            bits = bits_of(value)
            if bits.data_ptr() not in fresh:
                room = torch.empty(bits.numel() + _ALIGNMENT, dtype=torch.uint8, device=bits.device)
                lead = (bits.data_ptr() - room.data_ptr()) % _ALIGNMENT
                fresh[bits.data_ptr()] = room[lead : lead + bits.numel()].copy_(bits)
            copy = fresh[bits.data_ptr()]
            start = copy.storage_offset() // value.element_size() + value.storage_offset()
            there = torch.empty(0, dtype=value.dtype, device=value.device)
            made[name] = there.set_(copy.untyped_storage(), start, value.shape, value.stride())
    return made


class _Change:
    """One tensor's signs, as bits to be turned, on its device."""

    def __init__(self, inputs: Inputs, name: str, factors: Sequence[Tensor]) -> None:
        tensor = inputs[name]
        assert isinstance(tensor, Tensor)
        self._name = name
        self._kind, sign = _BITS[tensor.element_size()]
        self._masks = [
            each.to(self._kind).mul(sign).to(tensor.device) for each in factors if bool(each.any())
        ]

    def make(self, inputs: Inputs, kept: Mapping[str, Tensor]) -> None:
        """In place; what is kept of an argument that calls add to changes in its place."""
        tensor = kept.get(self._name, inputs[self._name])
        assert isinstance(tensor, Tensor)
        bits = tensor.view(self._kind)
        # An expanded axis is one place in memory.
        once = tuple(slice(1 if step == 0 else None) for step in bits.stride())
        for mask in self._masks:
            bits[once].bitwise_xor_(mask)
