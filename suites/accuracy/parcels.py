"""Inputs as bytes: packed by the judge, unpacked by a worker into memory of its own.

They lie where the arena does that they go through: on the host or on the GPU.

A buffer goes whole, its poison and its place past a multiple of 256 bytes included, and comes back
whole after the call, to be compared with what was sent. Of a buffer of gigabytes, whose gaps are
memory that nothing touched, go the elements that its tensor reaches, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from oracles.inputs import LARGEST_POISONED_BUFFER
from oracles.op import Inputs, dtype_name
from suites.accuracy.arena import ALIGNMENT, Arena, aligned
from suites.accuracy.originals import Given

_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
_POISON = 255  # a byte of which NaN is made in every floating-point type


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor lies: buffer's number, then as torch counts, in elements of its dtype."""

    buffer: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int

    def seen_in(self, content: Tensor, *, whole: bool) -> Tensor:
        """The tensor in its buffer's content, uint8; packed unless the content is whole."""
        typed = content.view(self.dtype)
        if not whole:
            return typed.view(self.shape)
        return typed.as_strided(self.shape, self.strides, self.start)

    @property
    def message(self) -> dict[str, Any]:
        """In JSON."""
        return {
            "buffer": self.buffer,
            "dtype": dtype_name(self.dtype),
            "shape": self.shape,
            "strides": self.strides,
            "start": self.start,
        }

    @classmethod
    def of(cls, message: dict[str, Any]) -> _Place:
        """From JSON."""
        return cls(
            message["buffer"],
            getattr(torch, message["dtype"]),
            tuple(message["shape"]),
            tuple(message["strides"]),
            message["start"],
        )


@dataclass(frozen=True, slots=True)
class _Buffer:
    """What is sent of a buffer. room: its bytes, more than are sent where it isn't whole."""

    content: Tensor  # uint8
    lead: int  # bytes past a multiple of 256
    room: int

    @property
    def whole(self) -> bool:
        return self.content.numel() == self.room


@dataclass(frozen=True, slots=True)
class Parcel:
    """The inputs of one call, as the judge keeps them: no worker can write here."""

    places: dict[str, _Place]
    others: Inputs  # arguments that aren't tensors
    buffers: tuple[_Buffer, ...]
    device: torch.device  # of the arena
    home: torch.device  # of the inputs that it was made of, where outputs go to be judged

    @classmethod
    def of(cls, inputs: Inputs, device: torch.device) -> Parcel:
        """The bytes of `inputs`, copied to `device`."""
        places: dict[str, _Place] = {}
        buffers: list[_Buffer] = []
        known: dict[int, int] = {}  # by the storage's address: its number
        for name, value in inputs.items():
            if not isinstance(value, Tensor):
                continue
            storage = value.untyped_storage()
            whole = storage.nbytes() <= LARGEST_POISONED_BUFFER
            number = known.get(storage.data_ptr()) if whole and storage.nbytes() else None
            if number is None:
                number = len(buffers)
                known[storage.data_ptr()] = number
                content = _bytes(value) if whole else _packed(value)
                lead = storage.data_ptr() % ALIGNMENT
                apart = content.to(device, copy=True)
                buffers.append(_Buffer(apart, lead, storage.nbytes()))
            start = int(value.storage_offset())
            places[name] = _Place(
                number, value.dtype, tuple(value.shape), tuple(value.stride()), start
            )
        others: Inputs = {
            name: each for name, each in inputs.items() if not isinstance(each, Tensor)
        }
        home = next(each.device for each in inputs.values() if isinstance(each, Tensor))
        return cls(places, others, tuple(buffers), device, home)

    def change(self, change: Callable[[Inputs], None]) -> None:
        """Change its tensors in place."""
        seen: Inputs = dict(self.others)
        for name, place in self.places.items():
            buffer = self.buffers[place.buffer]
            seen[name] = place.seen_in(buffer.content, whole=buffer.whole)
        change(seen)

    @property
    def nbytes(self) -> int:
        """What it takes in an arena."""
        return sum(aligned(each.content.numel()) for each in self.buffers)

    def to(self, device: torch.device) -> Parcel:
        """The same, to go through an arena there."""
        moved = tuple(replace(each, content=each.content.to(device)) for each in self.buffers)
        return replace(self, buffers=moved, device=device)

    def put(self, arena: Arena, at: int = 0) -> dict[str, Any]:
        """Copy the bytes to `arena`, from `at` on; returns what a worker has to know, in JSON."""
        buffers = []
        for each, place in zip(self.buffers, self._in(arena, at), strict=True):
            place.copy_(each.content)
            buffers.append({"bytes": each.content.numel(), "lead": each.lead, "room": each.room})
        others = {
            name: {"tuple": each} if isinstance(each, tuple) else each
            for name, each in self.others.items()
        }
        tensors = {name: each.message for name, each in self.places.items()}
        return {"at": at, "buffers": buffers, "tensors": tensors, "others": others}

    def differs(self, arena: Arena) -> str | None:
        """The name of an input whose bytes, as they came back, aren't those that were sent."""
        for number, (each, now) in enumerate(zip(self.buffers, self._in(arena), strict=True)):
            size = each.content.numel()
            word = next(word for word in _WORDS if size % word.itemsize == 0)
            if not torch.equal(now.view(word), each.content.view(word)):
                return next(name for name, at in self.places.items() if at.buffer == number)
        return None

    def _in(self, arena: Arena, offset: int = 0) -> Iterator[Tensor]:
        for each in self.buffers:
            yield arena.at(offset, each.content.numel())
            offset += aligned(each.content.numel())


class Unpacked:
    """In a worker: the inputs of one call in fresh memory on its device."""

    def __init__(
        self, arena: Arena, message: dict[str, Any], updates: tuple[str, ...], device: torch.device
    ) -> None:
        self._arena = arena
        places = {name: _Place.of(each) for name, each in message["tensors"].items()}
        self._returned: list[tuple[Tensor, Tensor]] = []  # a buffer, and where it goes back to
        arguments: Inputs = {
            name: tuple(each["tuple"]) if isinstance(each, dict) else each
            for name, each in message["others"].items()
        }
        offset = message["at"]
        for number, each in enumerate(message["buffers"]):
            mine = {name: place for name, place in places.items() if place.buffer == number}
            home = arena.at(offset, each["bytes"])
            buffer = _buffer(each["room"], each["lead"], device)
            for name, place in mine.items():
                start = buffer.storage_offset() // place.dtype.itemsize + place.start
                tensor = torch.empty(0, dtype=place.dtype, device=device)
                tensor.set_(buffer.untyped_storage(), start, place.shape, place.strides)
                arguments[name] = tensor
                if each["bytes"] < each["room"]:
                    tensor.copy_(home.view(place.dtype).view(place.shape))
                    self._returned.append((tensor, home.view(place.dtype).view(place.shape)))
            if each["bytes"] == each["room"]:
                buffer.copy_(home)
                self._returned.append((buffer, home))
            offset += aligned(each["bytes"])
        ordered = {name: arguments[name] for name in (*places, *message["others"])}
        kept = {}
        for name in updates:
            value = ordered.get(name)
            if isinstance(value, Tensor):
                kept[name] = value.view(value.shape), value.clone()
        self.given = Given(ordered, _with_index(device), kept, ())

    @property
    def nbytes(self) -> int:
        """What the buffers take."""
        return sum(now.untyped_storage().nbytes() for now, _ in self._returned)

    def release(self) -> None:
        """Let go of the buffers."""
        self._returned.clear()
        self.given.arguments.clear()
        self.given.updates.clear()

    def send_back(self) -> None:
        """Copy every buffer, as it is now, to where it came from."""
        for now, home in self._returned:
            home.copy_(now)


def _with_index(device: torch.device) -> torch.device:
    return torch.empty(0, device=device).device


def _bytes(tensor: Tensor) -> Tensor:
    """The whole buffer that `tensor` lies in, uint8."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _packed(tensor: Tensor) -> Tensor:
    """The elements of `tensor` one after the other, uint8, in memory of their own."""
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def _buffer(nbytes: int, lead: int, device: torch.device) -> Tensor:
    """Fresh memory, uint8 [nbytes], `lead` bytes past a multiple of 256."""
    room = torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8, device=device)
    start = (lead - room.data_ptr()) % ALIGNMENT
    if nbytes <= LARGEST_POISONED_BUFFER:
        room.fill_(_POISON)
    return room[start : start + nbytes]
