"""Keep the memory that a judge frees: new pages cost more than the arithmetic on them."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers, of malloc.h
_KEPT = 1 << 28  # bytes at the heap's end; what is free beyond goes back
_LARGEST = 1 << 25  # bytes; a larger tensor has pages of its own, which go back with it


def keep_freed_pages() -> None:
    """Let glibc keep the memory that this process frees for its next tensors.

    By default a large tensor takes new pages each time, which the operating system fills with zeros
    (docs/measured.md, The suite's own cost). Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _LARGEST)
