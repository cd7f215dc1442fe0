"""Memory that the judge owns and a worker sees: inputs go out and outputs come back through it.

An anonymous file in memory, mapped by both. The judge says where in it everything lies, and reads
back as many bytes as an output must have, whatever the worker did with the rest. Its size is
sealed: a worker that cuts the file short would end whoever reads past the cut.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import warnings

import torch
from torch import Tensor

ALIGNMENT = 256  # bytes; what a layout's element offset is counted from
_LEAST = 2**24
_MOST_KEPT = 2**30  # a larger one is given back once it isn't needed
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def aligned(nbytes: int) -> int:
    """`nbytes`, or the next multiple of 256."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Arena:
    """Bytes of one size: made by the judge, or of the descriptor that a worker was given."""

    def __init__(self, nbytes: int, descriptor: int | None = None) -> None:
        """Make the memory, or map that of `descriptor`, which is closed."""
        made = descriptor is None
        if descriptor is None:
            descriptor = os.memfd_create("workbench", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, nbytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        self.nbytes = nbytes
        with warnings.catch_warnings(action="ignore"):  # of read-only memory, which this isn't
            self._bytes = torch.frombuffer(mmap.mmap(descriptor, nbytes), dtype=torch.uint8)
        self.descriptor = descriptor if made else -1
        if not made:
            os.close(descriptor)

    def at(self, offset: int, nbytes: int) -> Tensor:
        """The bytes from `offset` on, uint8 [nbytes], in place."""
        return self._bytes[offset : offset + nbytes]

    def close(self) -> None:
        """Give the memory back; what was read of it must have been copied."""
        self._bytes = torch.empty(0, dtype=torch.uint8)
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def fitting(arena: Arena | None, nbytes: int) -> Arena:
    """`arena` where it has room and isn't far too large, else another one."""
    if arena is not None and nbytes <= arena.nbytes <= max(_MOST_KEPT, nbytes):
        return arena
    if arena is not None:
        arena.close()
    return Arena(max(_LEAST, 1 << (nbytes - 1).bit_length() if nbytes < _MOST_KEPT else nbytes))
