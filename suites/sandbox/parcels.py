"""Inputs as bytes: packed by the judge, unpacked by a worker into memory of its own.

They go through an arena: memory that the judge owns and a worker sees. The judge says where in it
everything lies, and reads back as many bytes as an output must have, whatever the worker did with
the rest. On a CPU it is an anonymous file in memory, mapped by both, whose size is sealed: a worker
that cuts the file short would end whoever reads past the cut. On a GPU it is the judge's device
memory, opened by the worker through an IPC handle of CUDA; where that isn't to be had, the
anonymous file again.

A buffer goes whole, its poison and its place past a multiple of 256 bytes included, and comes back
whole after the call, to be compared with what was sent. Of a buffer of gigabytes, whose gaps are
memory that nothing touched, go the elements that its tensor reaches, one after the other.

Between a host and a GPU all of them go in one copy, and come back in one: each copy waits for the
GPU, which processes beside this one keep busy.
"""

from __future__ import annotations

import base64
import fcntl
import mmap
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.oracles.cases.layouts import LARGEST_POISONED_BUFFER
from kernel_workbench.oracles.op import Inputs, Op, dtype_name

_ALIGNMENT = 256  # bytes; what a layout's element offset is counted from
_POISON = 255  # a byte of which NaN is made in every floating-point type
_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
"""Types to compare bytes by, the widest first."""
_MOST_TOGETHER = 2**26  # bytes that go to a GPU, or come from there, in one copy
_LEAST = 2**24
_MOST_KEPT = 2**30  # a larger one is given back once it isn't needed
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class ArenaError(RuntimeError):
    """The memory can't be opened in another process."""


def aligned(nbytes: int) -> int:
    """`nbytes`, or the next multiple of 256."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class Arena:
    """Some bytes on a device. spec: what a worker needs to open it, in JSON."""

    def __init__(self, memory: Tensor, spec: dict[str, Any], descriptor: int = -1) -> None:
        self._bytes, self.spec, self.descriptor = memory, spec, descriptor
        self.nbytes, self.device = memory.numel(), memory.device

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What goes with the spec."""
        return () if self.descriptor < 0 else (self.descriptor,)

    def at(self, offset: int, nbytes: int) -> Tensor:
        """The bytes from `offset` on, uint8 [nbytes], in place."""
        return self._bytes[offset : offset + nbytes]

    def close(self) -> None:
        """Give the memory back; what was read of it must have been copied."""
        self._bytes = torch.empty(0, dtype=torch.uint8)
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _mapped(descriptor: int, nbytes: int) -> Tensor:
    with warnings.catch_warnings(action="ignore"):  # of read-only memory, which this isn't
        return torch.frombuffer(mmap.mmap(descriptor, nbytes), dtype=torch.uint8)


def _spec(memory: Tensor, handle: list[object] | None = None) -> dict[str, Any]:
    return {"device": memory.device.type, "nbytes": memory.numel(), "handle": handle}


def _in_text(value: object) -> object:
    return {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _from_text(value: object) -> object:
    return base64.b64decode(value["bytes"]) if isinstance(value, dict) else value


def make_arena(nbytes: int, device: torch.device) -> Arena:
    """Memory of the judge's, of at least so many bytes."""
    room = max(_LEAST, 1 << (nbytes - 1).bit_length() if nbytes < _MOST_KEPT else nbytes)
    if device.type == "cuda":
        memory = torch.empty(room, dtype=torch.uint8, device=device)
        handle = memory.untyped_storage()._share_cuda_()
        return Arena(memory, _spec(memory, list(map(_in_text, handle))))
    descriptor = os.memfd_create("workbench", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, room)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    memory = _mapped(descriptor, room)
    return Arena(memory, _spec(memory), descriptor)


def open_arena(spec: dict[str, Any], descriptors: tuple[int, ...]) -> Arena:
    """In a worker: the judge's memory.

    Raises ArenaError where the GPU's driver doesn't share it, OutOfMemoryError where it is full.
    """
    if spec["handle"] is None:
        (descriptor,) = descriptors
        memory = _mapped(descriptor, spec["nbytes"])
        os.close(descriptor)
        return Arena(memory, {})
    try:
        torch.cuda.init()
        handle = map(_from_text, spec["handle"])
        storage = torch.UntypedStorage._new_shared_cuda(*handle)  # noqa: SLF001
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if "out of memory" in str(error):  # of a context, which isn't the allocator's to say
            raise torch.OutOfMemoryError(str(error)) from error
        raise ArenaError(" ".join(str(error).split())[:200]) from error
    memory = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return Arena(memory.set_(storage)[: spec["nbytes"]], {})


def fitting(arenas: dict[str, Arena], nbytes: int, device: torch.device, name: str) -> Arena:
    """Return the arena of that name, or another one in its place where it doesn't fit.

    An arena fits where it has room and isn't far too large. `arenas` never has one that is closed:
    where there is no memory for another one it has none, and torch.OutOfMemoryError is raised.
    """
    arena = arenas.get(name)
    if arena is not None:
        if nbytes <= arena.nbytes <= max(_MOST_KEPT, nbytes):
            return arena
        # Both at one time could be too much.
        del arenas[name]
        arena.close()
    arenas[name] = make_arena(nbytes, device)
    arenas[name].spec["name"] = name
    return arenas[name]


@dataclass(frozen=True, slots=True)
class Place:
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
        start = int(typed.storage_offset()) + self.start  # which as_strided counts from the storage
        return typed.as_strided(self.shape, self.strides, start)

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
    def of(cls, message: dict[str, Any]) -> Place:
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

    start: int  # in the parcel's bytes, a multiple of 256
    nbytes: int
    lead: int  # bytes past a multiple of 256
    room: int

    @property
    def whole(self) -> bool:
        return self.nbytes == self.room


@dataclass(frozen=True, slots=True)
class Parcel:
    """The inputs of one call, as the judge keeps them: no worker can write here."""

    places: dict[str, Place]
    others: Inputs  # arguments that aren't tensors
    buffers: tuple[_Buffer, ...]
    content: Tensor  # uint8: what is sent of all buffers, on the device of the arena
    home: torch.device  # of the inputs that it was made of, where outputs go to be judged

    @classmethod
    def of(cls, inputs: Inputs, device: torch.device) -> Parcel:
        """The bytes of `inputs`, copied to `device`."""
        places: dict[str, Place] = {}
        buffers: list[_Buffer] = []
        sent: list[Callable[[], Tensor]] = []  # each buffer's bytes
        known: dict[int, int] = {}  # by the storage's address: its number
        size = 0
        for name, value in inputs.items():
            if not isinstance(value, Tensor):
                continue
            storage = value.untyped_storage()
            whole = storage.nbytes() <= LARGEST_POISONED_BUFFER
            number = known.get(storage.data_ptr()) if whole and storage.nbytes() else None
            if number is None:
                number = len(buffers)
                known[storage.data_ptr()] = number
                nbytes = storage.nbytes() if whole else value.numel() * value.element_size()
                lead = storage.data_ptr() % _ALIGNMENT
                buffers.append(_Buffer(size, nbytes, lead, storage.nbytes()))
                sent.append(partial(bits_of if whole else _packed, value))
                size += aligned(nbytes)
            places[name] = Place(
                number,
                value.dtype,
                tuple(value.shape),
                tuple(value.stride()),
                int(value.storage_offset()),
            )
        others: Inputs = {
            name: each for name, each in inputs.items() if not isinstance(each, Tensor)
        }
        home = next(each.device for each in inputs.values() if isinstance(each, Tensor))
        content = torch.zeros(size, dtype=torch.uint8, device=device)
        for each, made in zip(buffers, sent, strict=True):
            _part(content, each).copy_(made())
        return cls(places, others, tuple(buffers), content, home)

    @property
    def device(self) -> torch.device:
        """Of the arena that it goes through."""
        return self.content.device

    def seen(self) -> Inputs:
        """Its arguments, tensors in place."""
        seen: Inputs = dict(self.others)
        for name, place in self.places.items():
            buffer = self.buffers[place.buffer]
            seen[name] = place.seen_in(_part(self.content, buffer), whole=buffer.whole)
        return seen

    def change(self, change: Callable[[Inputs], None]) -> None:
        """Change its tensors in place."""
        change(self.seen())

    @property
    def nbytes(self) -> int:
        """What it takes in an arena."""
        return self.content.numel()

    def to(self, device: torch.device) -> Parcel:
        """The same, to go through an arena there."""
        return replace(self, content=self.content.to(device))

    def parts(self) -> list[Tensor]:
        """Return what is sent of each buffer, uint8, in place."""
        return [_part(self.content, buffer) for buffer in self.buffers]

    def put(self, arena: Arena, at: int = 0) -> dict[str, Any]:
        """Copy the bytes to `arena`, from `at` on; return what a worker has to know, in JSON."""
        arena.at(at, self.nbytes).copy_(self.content)
        return {"at": at} | self.described()

    def described(self) -> dict[str, Any]:
        """Describe buffers and arguments in JSON."""
        buffers = [
            {"bytes": each.nbytes, "lead": each.lead, "room": each.room} for each in self.buffers
        ]
        others = {
            name: {"tuple": each} if isinstance(each, tuple) else each
            for name, each in self.others.items()
        }
        tensors = {name: each.message for name, each in self.places.items()}
        return {"buffers": buffers, "tensors": tensors, "others": others}

    def differs(self, arena: Arena) -> str | None:
        """The name of an input whose bytes, as they came back, aren't those that were sent."""
        now = arena.at(0, self.nbytes)
        if torch.equal(now.view(torch.int64), self.content.view(torch.int64)):
            return None
        for number, each in enumerate(self.buffers):
            word = next(word for word in _WORDS if each.nbytes % word.itemsize == 0)
            mine, back = (_part(whole, each).view(word) for whole in (self.content, now))
            if not torch.equal(mine, back):
                return next(name for name, at in self.places.items() if at.buffer == number)
        return None  # between two buffers, where nothing of a call's is

    def changed(self, arena: Arena, op: Op) -> str | None:
        """A sentence where a call of `op` wrote to what it must not; None where it didn't."""
        name = self.differs(arena)
        where = "around" if name in op.updates else "or around"
        return None if name is None else f"it wrote to memory {where} input {name}"


class Unpacked:
    """The inputs of one call, where it is made: in fresh memory on its device.

    updates: by name, what the call may change: where it lies, whatever becomes of the argument, and
    what it was.
    """

    def __init__(
        self, arena: Arena, message: dict[str, Any], updates: tuple[str, ...], device: torch.device
    ) -> None:
        sizes = [each["bytes"] for each in message["buffers"]]
        self._sent = arena.at(message["at"], sum(map(aligned, sizes)))
        self._at_hand = _at_hand(self._sent, device)
        places = {name: Place.of(each) for name, each in message["tensors"].items()}
        self._returned: list[tuple[Tensor, Tensor]] = []  # a buffer, and where it goes back to
        arguments: Inputs = {
            name: tuple(each["tuple"]) if isinstance(each, dict) else each
            for name, each in message["others"].items()
        }
        offset = 0
        for number, each in enumerate(message["buffers"]):
            mine = {name: place for name, place in places.items() if place.buffer == number}
            home = self._at_hand[offset : offset + each["bytes"]]
            buffer = _buffer(each["room"], each["lead"], device)
            for name, place in mine.items():
                start = buffer.storage_offset() // place.dtype.itemsize + place.start
                tensor = torch.empty(0, dtype=place.dtype, device=device)
                tensor.set_(buffer.untyped_storage(), start, place.shape, place.strides)
                arguments[name] = tensor
                if each["bytes"] < each["room"]:
                    elements = home.view(place.dtype).view(place.shape)
                    _once(tensor, tensor).copy_(_once(elements, tensor))
                    self._returned.append((tensor, elements))
            if each["bytes"] == each["room"]:
                buffer.copy_(home)
                self._returned.append((buffer, home))
            offset += aligned(each["bytes"])
        self.device = torch.empty(0, device=device).device  # with its index
        self.arguments = {name: arguments[name] for name in (*places, *message["others"])}
        self.updates: dict[str, tuple[Tensor, Tensor]] = {}
        for name in updates:
            value = self.arguments.get(name)
            if isinstance(value, Tensor):
                self.updates[name] = value.view(value.shape), value.clone()

    @property
    def nbytes(self) -> int:
        """What the buffers take."""
        return sum(now.untyped_storage().nbytes() for now, _ in self._returned)

    def take_values(self, other: Unpacked) -> None:
        """Put the values of another call's arguments where this call's arguments lie."""
        for name, value in other.arguments.items():
            mine = self.arguments[name]
            if isinstance(value, Tensor) and isinstance(mine, Tensor):
                _once(mine, mine).copy_(_once(value, mine))
            else:
                self.arguments[name] = value
        self.updates = {name: (now, now.clone()) for name, (now, _) in self.updates.items()}

    def release(self) -> None:
        """Let go of the buffers."""
        self._returned.clear()
        self._at_hand = self._sent
        self.arguments.clear()
        self.updates.clear()

    def restore(self) -> None:
        """Undo what the call was to change."""
        for now, original in self.updates.values():
            now.copy_(original)

    def send_back(self) -> None:
        """Copy every buffer, as it is now, to where it came from."""
        for now, home in self._returned:
            home.copy_(now)
        if self._at_hand is not self._sent:
            self._sent.copy_(self._at_hand)


def lay_out(outputs: Mapping[str, Tensor], arena: Arena, offset: int) -> None:
    """Copy the outputs into the arena, one after the other, each at a multiple of 256 bytes."""
    if not outputs:
        return
    size = sum(aligned(each.nbytes) for each in outputs.values())
    home = arena.at(offset, size)
    at_hand = _at_hand(home, next(iter(outputs.values())).device)
    start = 0
    for each in outputs.values():
        part = at_hand[start : start + each.nbytes]
        part.view(each.dtype).view(each.shape).copy_(each)
        start += aligned(each.nbytes)
    if at_hand is not home:
        home.copy_(at_hand)


def _at_hand(content: Tensor, device: torch.device) -> Tensor:
    """`content`, or a copy on the device where it lies elsewhere and is small."""
    elsewhere = content.device.type != device.type
    return content.to(device) if elsewhere and content.numel() <= _MOST_TOGETHER else content


def _part(content: Tensor, buffer: _Buffer) -> Tensor:
    return content[buffer.start : buffer.start + buffer.nbytes]


def _buffer(nbytes: int, lead: int, device: torch.device) -> Tensor:
    """Fresh memory, uint8 [nbytes], `lead` bytes past a multiple of 256."""
    room = torch.empty(nbytes + _ALIGNMENT, dtype=torch.uint8, device=device)
    start = (lead - room.data_ptr()) % _ALIGNMENT
    if nbytes <= LARGEST_POISONED_BUFFER:
        room.fill_(_POISON)
    return room[start : start + nbytes]


def bits_of(tensor: Tensor) -> Tensor:
    """The whole buffer that `tensor` lies in, uint8."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _once(elements: Tensor, like: Tensor) -> Tensor:
    """`elements` without those that `like`, of the same shape, has at another one's place."""
    for axis, stride in enumerate(like.stride()):
        if stride == 0:
            elements = elements.narrow(axis, 0, min(1, elements.shape[axis]))
    return elements


def _packed(tensor: Tensor) -> Tensor:
    """The elements of `tensor` one after the other, uint8; where they lie so, in place."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
