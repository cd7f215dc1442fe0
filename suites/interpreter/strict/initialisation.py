"""Memory that nothing has written yet: what a call allocates, until a kernel or torch stores there.

An uninitialised tensor is known by its storage, with a bool for each element: set by the stores of
Triton kernels and by every operation of torch that changes a tensor in it, exactly where it does.
A kernel's load of an element that isn't set is found, whether or not its value reaches an output:
what compute-sanitizer's initcheck says on a GPU. So a tile that is read whole and cut by tl.where
afterwards is found too; a mask on the load costs nothing, and says what is meant.

What writes behind torch's back, as numpy does through a tensor's `numpy()`, isn't seen here.
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
_PAGED = 2**24  # bytes  # from which on a page is taken at a time
_LARGE = 2**22  # bytes of a tensor whose elements aren't asked about all at once


@dataclass(slots=True)
class Fresh:
    """A storage that was allocated uninitialised; `whole`: all of it has been written since."""

    storage: weakref.ref[UntypedStorage]
    start: int
    nbytes: int
    itemsize: int
    written: Array | None = None
    whole: bool = False

    def elements(self, at: Array, itemsize: int) -> Array:
        """Of elements of `itemsize` bytes, counted in those, the bools that stand for them."""
        if itemsize == self.itemsize:
            return at
        if itemsize < self.itemsize:
            return at // (self.itemsize // itemsize)
        parts = itemsize // self.itemsize
        return (at.reshape(-1, 1) * parts + np.arange(parts)).reshape(-1)

    def unwritten(self, at: Array, itemsize: int) -> tuple[int, int] | None:
        """How many of these were never written, and the first, in `itemsize`; None: none."""
        if self.whole:
            return None
        if self.written is None:
            return at.size, int(at[0])
        elements = self.elements(at, itemsize)
        known = self.written[elements]
        if known.all():
            return None
        missing = elements[~known]
        return missing.size, int(missing[0]) * self.itemsize // itemsize

    def wrote(self, at: Array, itemsize: int) -> None:
        """These were written."""
        if not self.whole:
            self._log()[self.elements(at, itemsize)] = True

    def settles(self, start: int, end: int) -> bool:
        """Whether every byte from address `start` to `end` is known to have been written."""
        if self.whole or self.written is None or end - start > _LARGE:
            return self.whole
        first = (start - self.start) // self.itemsize
        return bool(self.written[first : -(-(end - self.start) // self.itemsize)].all())

    def changed(self, tensor: Tensor) -> None:
        """An operation of torch wrote all of `tensor`, which lies here."""
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
    """Begin to know of memory that is allocated, or forget all of it."""
    _WATCHING[0] = on
    _FRESH.clear()


def allocated(tensor: Tensor, nbytes: int | None = None) -> None:
    """Note that `tensor` was made uninitialised, whatever it has been filled with since.

    nbytes: of its storage, those that were asked for; None: all.
    """
    if not _WATCHING[0] or tensor.device.type != "cpu" or not tensor.nbytes:
        return
    storage = tensor.untyped_storage()
    start = storage.data_ptr()
    size = storage.nbytes() if nbytes is None else nbytes
    _FRESH[start] = Fresh(weakref.ref(storage), start, size, tensor.element_size())


def fresh_at(address: int) -> Fresh | None:
    """What is known of the storage at an address, if it still is the one that was allocated."""
    found = _FRESH.get(address)
    if found is None:
        return None
    storage = found.storage()
    if storage is None or storage.data_ptr() != address:  # freed, or moved by a resize
        del _FRESH[address]
        return None
    return found


def operated(operation: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """An operation of torch was done: what it changes is written."""
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
    """The arguments whose elements an operation changes, by place and name."""
    if torch.Tag.inplace_view in operation.tags:  # it changes the view alone
        return ()
    return tuple(
        (index, argument.name)
        for index, argument in enumerate(operation._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def zeros(count: int, kind: type) -> Array:
    """`count` zeros of numpy's type `kind`, which take memory only where they are touched."""
    nbytes = count * np.dtype(kind).itemsize
    if nbytes <= _PAGED:
        return np.zeros(count, kind)
    # numpy's own would ask for huge pages, of which one element takes 2 MiB.
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, kind, count)
