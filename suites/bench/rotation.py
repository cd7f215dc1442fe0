"""Inputs for successive samples: other pointers, and values that no earlier sample had.

Several buffers take turns; each buffer after the first has one change of signs (`Op.signs`) of its
own. Before each sample one of a dozen further changes is made in its buffer, in the order of a Gray
code: so a buffer has 4,096 different values before one recurs, and the sample's number determines
the changes in it. A kernel that keeps outputs by the inputs' addresses, or by a few of their
values, returns outputs of other values. The change of a correct kernel's outputs is known, and the
judge undoes it.
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
# Larger inputs stay in place: they cover memory evenly, and moving them is slow.
_MOST_MOVED_BYTES = 2**32
_LEAST_FREE = 4  # free memory, in multiples of the moved bytes
_PAGE_BYTES = 2**21  # CUDA's unit of memory
_MOST_APART_BYTES = 2**29
_ALIGNMENT = 256  # bytes; a layout counts element offsets from a multiple of this
_BITS = {
    2: (torch.int16, -(2**15)),
    4: (torch.int32, -(2**31)),
}  # the sign's bit, by an element's bytes


def changed_at(number: int, buffers: int) -> int:
    """Return the index of the change before sample `number`: the lowest set bit of its turn."""
    turn = number // buffers + 1
    return min((turn & -turn).bit_length() - 1, CHANGES - 1)


def changes_in(number: int, buffers: int) -> tuple[int, ...]:
    """Return the indices of the changes in the buffer of sample `number`."""
    parity = [0] * CHANGES
    for turn in range(number // buffers + 1):
        parity[changed_at(turn * buffers, buffers)] ^= 1
    changes = [index for index, is_set in enumerate(parity) if is_set]
    of_buffer = number % buffers
    return tuple([*changes, CHANGES + of_buffer - 1] if of_buffer else changes)


class Rotation:
    """Buffers of one case's inputs, in turn."""

    def __init__(
        self, case: Case, inputs: Sequence[Inputs], seed: int, updates: Sequence[str] = ()
    ) -> None:
        """Draw the changes from `seed`; updates: arguments that a kernel adds to in place."""
        self._inputs = list(inputs)
        self._number = 0
        self._places = random.Random(seed)  # noqa: S311  (places in memory aren't secret)
        self._apart: Tensor | None = None
        self._changes = [
            [
                _Change(inputs[0], name, factors)
                for name, factors in OPS[case.op].signs(case, seed + index).of_inputs.items()
                if isinstance(inputs[0].get(name), Tensor)
            ]
            for index in range(CHANGES + len(inputs) - 1)
        ]
        # Arguments that a call adds to are restored before the next call.
        self._kept = [
            {
                name: value.clone()
                for name, value in buffer.items()
                if name in updates and isinstance(value, Tensor)
            }
            for buffer in inputs
        ]
        for buffer, kept, changes in zip(
            inputs[1:], self._kept[1:], self._changes[CHANGES:], strict=True
        ):
            for change in changes:
                change.make(buffer, kept)

    def next(self) -> Inputs:
        """Return the changed inputs of the next sample; asynchronous on a GPU."""
        buffers = len(self._inputs)
        number, buffer = self._number, self._inputs[self._number % buffers]
        kept = self._kept[number % buffers]
        for change in self._changes[changed_at(number, buffers)]:
            change.make(buffer, kept)
        for name, value in kept.items():
            tensor = buffer[name]
            assert isinstance(tensor, Tensor)
            tensor.copy_(value)
        self._number += 1
        return buffer

    @property
    def first(self) -> Inputs:
        """The inputs of the first buffer, with their present changes."""
        return self._inputs[0]

    @property
    def moves(self) -> bool:
        """True if the buffers are small enough to be moved in the card's memory."""
        storages = {
            value.untyped_storage().data_ptr(): value.untyped_storage().nbytes()
            for buffer in self._inputs
            for value in buffer.values()
            if isinstance(value, Tensor)
        }
        size = sum(storages.values())
        free, _ = torch.cuda.mem_get_info()
        return size <= _MOST_MOVED_BYTES and free >= _LEAST_FREE * (size + _MOST_APART_BYTES)

    def move(self) -> None:
        """Copy every buffer to other memory of the GPU, beyond a gap of random size.

        PyTorch's cached memory is freed before: otherwise its next outputs and workspace would get
        the same addresses.
        """
        device = next(value.device for value in self.first.values() if isinstance(value, Tensor))
        self._apart = None
        torch.cuda.empty_cache()
        pages = self._places.randint(1, _MOST_APART_BYTES // _PAGE_BYTES)
        self._apart = torch.empty(pages * _PAGE_BYTES, dtype=torch.uint8, device=device)
        for number, buffer in enumerate(self._inputs):
            self._inputs[number] = moved(buffer)


def moved(inputs: Inputs) -> Inputs:
    """Return the same arguments with their storages copied to fresh memory.

    Tensors that share a storage still share it, and keep their distance from a multiple of 256
    bytes.
    """
    fresh: dict[int, Tensor] = {}  # copies by the buffer's address
    arguments: Inputs = dict(inputs)
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
            arguments[name] = there.set_(copy.untyped_storage(), start, value.shape, value.stride())
    return arguments


class _Change:
    """The changed signs of one tensor, as bit masks on its device."""

    def __init__(self, inputs: Inputs, name: str, factors: Sequence[Tensor]) -> None:
        tensor = inputs[name]
        assert isinstance(tensor, Tensor)
        self._name = name
        self._kind, sign = _BITS[tensor.element_size()]
        self._masks = [
            factor.to(self._kind).mul(sign).to(tensor.device)
            for factor in factors
            if bool(factor.any())
        ]

    def make(self, inputs: Inputs, kept: Mapping[str, Tensor]) -> None:
        """Change the signs in place; an argument that calls add to changes in its stored copy."""
        tensor = kept.get(self._name, inputs[self._name])
        assert isinstance(tensor, Tensor)
        bits = tensor.view(self._kind)
        # An expanded axis has one element in memory.
        once = tuple(slice(1 if step == 0 else None) for step in bits.stride())
        for mask in self._masks:
            bits[once].bitwise_xor_(mask)
