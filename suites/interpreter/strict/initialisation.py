"""Track unwritten memory: memory that a call allocates, until a kernel or torch stores there.

A storage that was allocated uninitialised has a bool for each element. Stores of Triton kernels,
and torch operations that change a tensor in the storage, set exactly the bools that they write. A
kernel's load of an unset element is an error even if its value reaches no output, as in
compute-sanitizer's initcheck on a GPU. So a tile that is read whole and cut by tl.where afterwards
is an error too; a mask on the load costs nothing, and states the intent.

Writes that bypass torch, for example by numpy through a tensor's `numpy()`, aren't tracked.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, UntypedStorage

Array = np.ndarray[Any, Any]

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's number; Python 3.13 has the name
_PAGED = 2**24  # bytes; larger arrays are allocated page by page
_LARGE = 2**22  # bytes; a larger range isn't tested as a whole


@dataclass(slots=True)
class Fresh:
    """A storage that was allocated uninitialised; `whole` is True once all of it is written."""

    storage: weakref.ref[UntypedStorage]
    start: int
    nbytes: int
    itemsize: int
    written: Array | None = None
    whole: bool = False

    def elements(self, at: Array, itemsize: int) -> Array:
        """Return the places of the bools for elements `at`, which are counted in `itemsize`."""
        if itemsize == self.itemsize:
            return at
        if itemsize < self.itemsize:
            return at // (self.itemsize // itemsize)
        parts = itemsize // self.itemsize
        return (at.reshape(-1, 1) * parts + np.arange(parts)).reshape(-1)

    def unwritten(self, at: Array, itemsize: int) -> Array | None:
        """Return the offsets in bytes of unwritten elements, or None if all of `at` is written.

        `at` is counted in `itemsize`. The offsets are those of the storage's elements if these are
        smaller, so that elements of any size can be counted from them.
        """
        if self.whole:
            return None
        elements = self.elements(at, itemsize)
        offsets = elements * self.itemsize if itemsize > self.itemsize else at * itemsize
        if self.written is not None:
            offsets = offsets[~self.written[elements]]
        return offsets if offsets.size else None

    def wrote(self, at: Array, itemsize: int) -> None:
        """Note that elements were written."""
        if not self.whole:
            self._log()[self.elements(at, itemsize)] = True

    def settles(self, start: int, end: int) -> bool:
        """Return True if every byte from address `start` to `end` is known to be written."""
        if self.whole or self.written is None or end - start > _LARGE:
            return self.whole
        first = (start - self.start) // self.itemsize
        return bool(self.written[first : -(-(end - self.start) // self.itemsize)].all())

    def changed(self, tensor: Tensor) -> None:
        """Note that a torch operation wrote all of `tensor`, a tensor in this storage."""
        if tensor.nbytes >= self.nbytes and tensor.is_contiguous():
            self.whole = True
            return
        if self.whole or not tensor.numel():
            return
        first, log = tensor.data_ptr() - self.start, self._log()
        steps, size = tensor.stride(), tensor.element_size()
        if size == self.itemsize and first % size == 0:
            # A bool is a byte, so that strides in elements are strides in bytes.
            np.lib.stride_tricks.as_strided(log[first // size :], tensor.shape, steps)[...] = True
            return
        pairs = zip(tensor.shape, steps, strict=True)
        reached = size * (1 + sum((n - 1) * step for n, step in pairs))
        log[first // self.itemsize : -(-(first + reached) // self.itemsize)] = True

    def _log(self) -> Array:
        if self.written is None:
            self.written = zeros(-(-self.nbytes // self.itemsize), np.bool_)
        return self.written


_FRESH: dict[int, Fresh] = {}  # by the address of the storage
_WATCHING = [False]


def watch(*, on: bool) -> None:
    """Begin to track allocated memory, or forget all of it."""
    _WATCHING[0] = on
    _FRESH.clear()


def allocated(tensor: Tensor, nbytes: int | None = None) -> None:
    """Note that `tensor` was allocated uninitialised, even if it has been filled since.

    `nbytes` is the requested part of its storage; None means all.
    """
    if not _WATCHING[0] or tensor.device.type != "cpu" or not tensor.nbytes:
        return
    storage = tensor.untyped_storage()
    start = storage.data_ptr()
    size = storage.nbytes() if nbytes is None else nbytes
    _FRESH[start] = Fresh(weakref.ref(storage), start, size, tensor.element_size())


def fresh_at(address: int) -> Fresh | None:
    """Return the tracked storage at an address, or None if it was freed or never tracked."""
    fresh = _FRESH.get(address)
    if fresh is None:
        return None
    storage = fresh.storage()
    if storage is None or storage.data_ptr() != address:  # freed, or moved by a resize
        del _FRESH[address]
        return None
    return fresh


def operated(operation: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Note the tensors that a finished torch operation has changed as written."""
    if not _FRESH:
        return
    for index, name in _changes(operation):
        value = args[index] if index < len(args) else kwargs.get(name)
        for tensor in value if isinstance(value, list | tuple) else (value,):
            if isinstance(tensor, Tensor):
                fresh = fresh_at(tensor.untyped_storage().data_ptr())
                if fresh is not None:
                    fresh.changed(tensor)


@cache
def _changes(operation: Any) -> tuple[tuple[int, str], ...]:
    """Return the place and name of the arguments whose elements an operation changes."""
    if torch.Tag.inplace_view in operation.tags:  # the operation changes only the view
        return ()
    return tuple(
        (index, argument.name)
        for index, argument in enumerate(operation._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def zeros(count: int, kind: type) -> Array:
    """Return `count` zeros of numpy's type `kind`; only touched pages use memory."""
    nbytes = count * np.dtype(kind).itemsize
    if nbytes <= _PAGED:
        return np.zeros(count, kind)
    # numpy would request huge pages, so that one element takes 2 MiB.
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, kind, count)
