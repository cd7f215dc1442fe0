"""Arrays of zeros that take memory only where they are touched, a page at a time."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's number; Python 3.13 has the name
_LARGE = 2**24  # bytes


def zeros(count: int, kind: type) -> Array:
    """`count` zeros of numpy's type `kind`."""
    nbytes = count * np.dtype(kind).itemsize
    if nbytes <= _LARGE:
        return np.zeros(count, kind)
    # numpy's own would ask for huge pages, of which one element takes 2 MiB.
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, kind, count)
