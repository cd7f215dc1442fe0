"""Memory that the judge owns and a worker sees: inputs go out and outputs come back through it.

The judge says where in it everything lies, and reads back as many bytes as an output must have,
whatever the worker did with the rest. On a CPU it is an anonymous file in memory, mapped by both,
whose size is sealed: a worker that cuts the file short would end whoever reads past the cut. On a
GPU it is the judge's device memory, opened by the worker through an IPC handle of CUDA; where that
isn't to be had, the anonymous file again.
"""

from __future__ import annotations

import base64
import fcntl
import mmap
import os
import warnings
from typing import Any

import torch
from torch import Tensor

from suites.accuracy.buffers import ALIGNMENT

_LEAST = 2**24
_MOST_KEPT = 2**30  # a larger one is given back once it isn't needed
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class ArenaError(RuntimeError):
    """The memory can't be opened in another process."""


def aligned(nbytes: int) -> int:
    """`nbytes`, or the next multiple of 256."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


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
    """In a worker: the judge's memory. Raises ArenaError where the GPU's driver won't have it."""
    if spec["handle"] is None:
        (descriptor,) = descriptors
        memory = _mapped(descriptor, spec["nbytes"])
        os.close(descriptor)
        return Arena(memory, {})
    try:
        torch.cuda.init()
        handle = map(_from_text, spec["handle"])
        storage = torch.UntypedStorage._new_shared_cuda(*handle)  # noqa: SLF001
    except RuntimeError as error:
        raise ArenaError(" ".join(str(error).split())[:200]) from error
    memory = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return Arena(memory.set_(storage)[: spec["nbytes"]], {})


def fitting(arena: Arena | None, nbytes: int, device: torch.device) -> Arena:
    """`arena` where it has room and isn't far too large, else another one in its place."""
    if arena is not None:
        if nbytes <= arena.nbytes <= max(_MOST_KEPT, nbytes):
            return arena
        arena.close()
    return make_arena(nbytes, device)
