"""Inputs as bytes: the judge packs them, and a worker unpacks them into memory of its own.

The bytes travel through an arena: memory that the judge owns and a worker maps. The judge chooses
the position of everything in the arena, and reads exactly the bytes of each output, whatever the
worker wrote elsewhere. On a CPU the arena is an anonymous file in memory that both processes map.
The file's size is sealed, because a worker that shortened the file would end the process that reads
past its end. On a GPU the arena is device memory of the judge, which the worker opens through an
IPC handle of CUDA; if the driver doesn't support that, the anonymous file serves instead.

A buffer travels whole, with its poison and its distance from a multiple of 256 bytes. After the
call the worker sends the whole buffer back, and the judge compares it with the original. The gaps
of a buffer of gigabytes were never written, so only the elements of its tensor travel, in order.

All buffers travel between a host and a GPU in one copy, because each copy waits for the GPU, which
other processes may keep busy.
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

_ALIGNMENT = 256  # bytes; a layout counts element offsets from a multiple of this
_POISON = 255  # repeated, this byte is NaN in every floating-point type
_MOST_TOGETHER = 2**26  # bytes that one copy moves to or from a GPU
_LEAST = 2**24
_MOST_KEPT = 2**30  # a larger arena is freed when a smaller one is enough
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class ArenaError(RuntimeError):
    """Another process can't open the memory."""


def aligned(nbytes: int) -> int:
    """Return `nbytes` rounded up to a multiple of 256.

    >>> aligned(257)
    512
    """
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class Arena:
    """Bytes on a device that two processes share.

    spec         the description in JSON from which a worker opens the arena
    descriptor   the file descriptor of an arena in host memory, else -1
    nbytes       size
    device       device
    """

    def __init__(self, memory: Tensor, spec: dict[str, Any], descriptor: int = -1) -> None:
        self._bytes, self.spec, self.descriptor = memory, spec, descriptor
        self.nbytes, self.device = memory.numel(), memory.device

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The file descriptors that a worker needs beside the spec."""
        return () if self.descriptor < 0 else (self.descriptor,)

    def at(self, offset: int, nbytes: int) -> Tensor:
        """Return a view of the bytes from `offset` on, uint8 [nbytes]."""
        return self._bytes[offset : offset + nbytes]

    def close(self) -> None:
        """Free the memory; the caller must have copied what it needs."""
        self._bytes = torch.empty(0, dtype=torch.uint8)
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _mapped(descriptor: int, nbytes: int) -> Tensor:
    with warnings.catch_warnings(action="ignore"):  # about read-only memory
        return torch.frombuffer(mmap.mmap(descriptor, nbytes), dtype=torch.uint8)


def _spec(memory: Tensor, handle: list[object] | None = None) -> dict[str, Any]:
    return {"device": memory.device.type, "nbytes": memory.numel(), "handle": handle}


def _in_text(value: object) -> object:
    return {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _from_text(value: object) -> object:
    return base64.b64decode(value["bytes"]) if isinstance(value, dict) else value


def make_arena(nbytes: int, device: torch.device) -> Arena:
    """Return a new arena of the judge.

    Args:
        nbytes: the least size, in bytes.
        device: where the memory is.
    """
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
    """Open the judge's arena in a worker.

    Args:
        spec: the arena's `spec`.
        descriptors: the arena's `descriptors`.

    Raises:
        ArenaError: if the GPU's driver doesn't share memory.
        torch.OutOfMemoryError: if the GPU has no memory left.
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
        if "out of memory" in str(error):  # CUDA couldn't create a context
            raise torch.OutOfMemoryError(str(error)) from error
        raise ArenaError(" ".join(str(error).split())[:200]) from error
    memory = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return Arena(memory.set_(storage)[: spec["nbytes"]], {})


def fitting(arenas: dict[str, Arena], nbytes: int, device: torch.device, name: str) -> Arena:
    """Return the arena with that name, or a new one in its place if its size doesn't fit.

    An arena fits if it has room and isn't much too large. `arenas` never contains a closed arena.

    Args:
        arenas: the open arenas by name; a new arena is added.
        nbytes: the bytes that the arena must have room for.
        device: where a new arena is made.
        name: the arena's name.

    Raises:
        torch.OutOfMemoryError: if there is no memory for a new arena.
    """
    arena = arenas.get(name)
    if arena is not None:
        if nbytes <= arena.nbytes <= max(_MOST_KEPT, nbytes):
            return arena
        # Both at one time may not fit into memory.
        del arenas[name]
        arena.close()
    arenas[name] = make_arena(nbytes, device)
    arenas[name].spec["name"] = name
    return arenas[name]


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a tensor.

    buffer          index of the buffer
    start, strides  in elements of the dtype, as torch counts
    """

    buffer: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int

    def seen_in(self, content: Tensor, *, whole: bool) -> Tensor:
        """Return the tensor as a view of its buffer's content.

        Args:
            content: the bytes of the buffer, uint8.
            whole: the content is the whole buffer; otherwise it is the tensor's elements in order.
        """
        typed = content.view(self.dtype)
        if not whole:
            return typed.view(self.shape)
        start = int(typed.storage_offset()) + self.start  # as_strided counts from the storage
        return typed.as_strided(self.shape, self.strides, start)

    @property
    def message(self) -> dict[str, Any]:
        """The place in JSON."""
        return {
            "buffer": self.buffer,
            "dtype": dtype_name(self.dtype),
            "shape": self.shape,
            "strides": self.strides,
            "start": self.start,
        }

    @classmethod
    def of(cls, message: dict[str, Any]) -> Place:
        """Return the place that a message describes."""
        return cls(
            message["buffer"],
            getattr(torch, message["dtype"]),
            tuple(message["shape"]),
            tuple(message["strides"]),
            message["start"],
        )


@dataclass(frozen=True, slots=True)
class _Buffer:
    """The part of a buffer that is sent.

    start   position in the parcel's bytes, a multiple of 256
    nbytes  the bytes that are sent
    lead    the buffer's distance from a multiple of 256 bytes
    room    the size of the whole buffer
    whole   the whole buffer is sent; otherwise the elements of its tensor, in order
    """

    start: int
    nbytes: int
    lead: int
    room: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Parcel:
    """The inputs of one call in the judge's own memory: no worker can write there.

    places   position of each tensor, by the argument's name
    scalars  arguments that aren't tensors
    buffers  the parts of `content`
    content  the bytes of all buffers, uint8, on the arena's device
    home     the device of the original inputs, where outputs are judged
    """

    places: dict[str, Place]
    scalars: Inputs
    buffers: tuple[_Buffer, ...]
    content: Tensor
    home: torch.device

    @classmethod
    def of(cls, inputs: Inputs, device: torch.device) -> Parcel:
        """Pack copies of `inputs` on `device`."""
        places: dict[str, Place] = {}
        buffers: list[_Buffer] = []
        sent: list[Callable[[], Tensor]] = []  # each buffer's bytes
        numbers: dict[int, int] = {}  # buffer numbers by the storage's address
        size = 0
        for name, value in inputs.items():
            if not isinstance(value, Tensor):
                continue
            storage = value.untyped_storage()
            whole = storage.nbytes() <= LARGEST_POISONED_BUFFER
            number = numbers.get(storage.data_ptr()) if whole and storage.nbytes() else None
            if number is None:
                number = len(buffers)
                numbers[storage.data_ptr()] = number
                nbytes = storage.nbytes() if whole else value.numel() * value.element_size()
                lead = storage.data_ptr() % _ALIGNMENT
                buffers.append(_Buffer(size, nbytes, lead, storage.nbytes(), whole))
                sent.append(partial(bits_of if whole else _packed, value))
                size += aligned(nbytes)
            places[name] = Place(
                number,
                value.dtype,
                tuple(value.shape),
                tuple(value.stride()),
                int(value.storage_offset()),
            )
        scalars: Inputs = {
            name: value for name, value in inputs.items() if not isinstance(value, Tensor)
        }
        home = next(value.device for value in inputs.values() if isinstance(value, Tensor))
        content = torch.zeros(size, dtype=torch.uint8, device=device)
        for buffer, content_of in zip(buffers, sent, strict=True):
            _part(content, buffer).copy_(content_of())
        return cls(places, scalars, tuple(buffers), content, home)

    @property
    def device(self) -> torch.device:
        """The device of the arena."""
        return self.content.device

    def seen(self) -> Inputs:
        """Return the arguments, with tensors as views of the parcel."""
        seen: Inputs = dict(self.scalars)
        for name, place in self.places.items():
            buffer = self.buffers[place.buffer]
            seen[name] = place.seen_in(_part(self.content, buffer), whole=buffer.whole)
        return seen

    def change(self, change: Callable[[Inputs], None]) -> None:
        """Change the tensors in place by calling `change` with the arguments."""
        change(self.seen())

    @property
    def nbytes(self) -> int:
        """The bytes that the parcel takes in an arena."""
        return self.content.numel()

    def to(self, device: torch.device) -> Parcel:
        """Return a copy whose content is on another device."""
        return replace(self, content=self.content.to(device))

    def parts(self) -> list[Tensor]:
        """Return the bytes of each buffer, uint8, as views."""
        return [_part(self.content, buffer) for buffer in self.buffers]

    def put(self, arena: Arena, at: int = 0) -> dict[str, Any]:
        """Copy the bytes to `arena`, from `at` on.

        Returns:
            A message in JSON from which a worker unpacks the inputs.
        """
        arena.at(at, self.nbytes).copy_(self.content)
        return {"at": at} | self.described()

    def described(self) -> dict[str, Any]:
        """Return buffers and arguments in JSON."""
        buffers = [
            {
                "bytes": buffer.nbytes,
                "lead": buffer.lead,
                "room": buffer.room,
                "whole": buffer.whole,
            }
            for buffer in self.buffers
        ]
        scalars = {
            name: {"tuple": value} if isinstance(value, tuple) else value
            for name, value in self.scalars.items()
        }
        tensors = {name: place.message for name, place in self.places.items()}
        return {"buffers": buffers, "tensors": tensors, "others": scalars}

    def differs(self, arena: Arena) -> str | None:
        """Return the name of an input whose bytes came back changed, or None."""
        now = arena.at(0, self.nbytes)
        if torch.equal(now.view(torch.int64), self.content.view(torch.int64)):
            return None
        for number, buffer in enumerate(self.buffers):
            if not torch.equal(_part(self.content, buffer), _part(now, buffer)):
                return next(name for name, at in self.places.items() if at.buffer == number)
        return None  # the change is between two buffers, in bytes that no input uses

    def changed(self, arena: Arena, op: Op) -> str | None:
        """Return a sentence if a call of `op` wrote to memory that it must not change."""
        name = self.differs(arena)
        where = "around" if name in op.updates else "in or around"
        return None if name is None else f"it wrote to memory {where} input {name}"


class Unpacked:
    """The inputs of one call in a worker: in fresh memory on its device.

    arguments  the arguments by name
    updates    by name: the memory of an argument that the call may change, and a copy of its values
    followed   whether another call follows, which must leave this one's outputs as they are
    earlier    by address: the memory of the outputs of the call before
    """

    def __init__(
        self, arena: Arena, message: dict[str, Any], updates: tuple[str, ...], device: torch.device
    ) -> None:
        sizes = [buffer["bytes"] for buffer in message["buffers"]]
        self._sent = arena.at(message["at"], sum(map(aligned, sizes)))
        self._at_hand = _at_hand(self._sent, device)
        places = {name: Place.of(place) for name, place in message["tensors"].items()}
        self._returned: list[tuple[Tensor, Tensor]] = []  # (buffer, its place)
        arguments: Inputs = {
            name: tuple(value["tuple"]) if isinstance(value, dict) else value
            for name, value in message["others"].items()
        }
        offset = 0
        for number, sent in enumerate(message["buffers"]):
            mine = {name: place for name, place in places.items() if place.buffer == number}
            home = self._at_hand[offset : offset + sent["bytes"]]
            buffer = _buffer(sent["room"], sent["lead"], device)
            for name, place in mine.items():
                start = buffer.storage_offset() // place.dtype.itemsize + place.start
                tensor = torch.empty(0, dtype=place.dtype, device=device)
                tensor.set_(buffer.untyped_storage(), start, place.shape, place.strides)
                arguments[name] = tensor
                if not sent["whole"]:
                    elements = home.view(place.dtype).view(place.shape)
                    _once(tensor, tensor).copy_(_once(elements, tensor))
                    self._returned.append((tensor, elements))
            if sent["whole"]:
                buffer.copy_(home)
                self._returned.append((buffer, home))
            offset += aligned(sent["bytes"])
        self.device = torch.empty(0, device=device).device  # with its index
        self.arguments = {name: arguments[name] for name in (*places, *message["others"])}
        self.followed = False
        self.earlier: dict[int, Tensor] = {}
        self.updates: dict[str, tuple[Tensor, Tensor]] = {}
        for name in updates:
            value = self.arguments.get(name)
            if isinstance(value, Tensor):
                self.updates[name] = value.view(value.shape), value.clone()

    @property
    def nbytes(self) -> int:
        """The bytes of the buffers."""
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
        """Free the buffers."""
        self._returned.clear()
        self._at_hand = self._sent
        self.arguments.clear()
        self.updates.clear()
        self.earlier.clear()

    def restore(self) -> None:
        """Restore the arguments that the call was allowed to change."""
        for now, original in self.updates.values():
            now.copy_(original)

    def send_back(self) -> None:
        """Copy the present content of every buffer to its place in the arena."""
        for now, home in self._returned:
            home.copy_(now)
        if self._at_hand is not self._sent:
            self._sent.copy_(self._at_hand)


def lay_out(outputs: Mapping[str, Tensor], arena: Arena, offset: int) -> None:
    """Copy the outputs into the arena in order, each at a multiple of 256 bytes.

    Args:
        outputs: the outputs by name.
        arena: the arena.
        offset: position of the first output, in bytes.
    """
    if not outputs:
        return
    size = sum(aligned(value.nbytes) for value in outputs.values())
    home = arena.at(offset, size)
    at_hand = _at_hand(home, next(iter(outputs.values())).device)
    start = 0
    for output in outputs.values():
        part = at_hand[start : start + output.nbytes]
        part.view(output.dtype).view(output.shape).copy_(output)
        start += aligned(output.nbytes)
    if at_hand is not home:
        home.copy_(at_hand)


def _at_hand(content: Tensor, device: torch.device) -> Tensor:
    """Return `content`, or a copy on the device if the content is small and on another device."""
    elsewhere = content.device.type != device.type
    return content.to(device) if elsewhere and content.numel() <= _MOST_TOGETHER else content


def _part(content: Tensor, buffer: _Buffer) -> Tensor:
    return content[buffer.start : buffer.start + buffer.nbytes]


def _buffer(nbytes: int, lead: int, device: torch.device) -> Tensor:
    """Return fresh memory, uint8 [nbytes], `lead` bytes past a multiple of 256."""
    room = torch.empty(nbytes + _ALIGNMENT, dtype=torch.uint8, device=device)
    start = (lead - room.data_ptr()) % _ALIGNMENT
    if nbytes <= LARGEST_POISONED_BUFFER:
        room.fill_(_POISON)
    return room[start : start + nbytes]


def bits_of(tensor: Tensor) -> Tensor:
    """Return the whole buffer of `tensor`, uint8."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _once(elements: Tensor, like: Tensor) -> Tensor:
    """Return one of the `elements` for each address in `like`, which has their shape."""
    for axis, stride in enumerate(like.stride()):
        if stride == 0:
            elements = elements.narrow(axis, 0, min(1, elements.shape[axis]))
    return elements


def _packed(tensor: Tensor) -> Tensor:
    """Return the elements of `tensor` in order, uint8; a view if the tensor is contiguous."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
