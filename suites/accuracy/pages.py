"""Keep the memory that a judge frees: new pages cost more than the arithmetic on them."""

from __future__ import annotations

import ctypes
import os

from kernel_workbench.suites.sandbox.judge_side.worker_process import resident_bytes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # glibc's numbers, of malloc.h
_KEPT = 1 << 29  # bytes at the heap's end; what is free beyond goes back
_MOST = 1 << 31  # resident bytes; beyond them all that is free goes back


def keep_freed_pages() -> None:
    """Let glibc keep the memory that this process frees for its next tensors.

    By default a tensor over 32 MiB takes new pages each time, which the operating system fills with
    zeros (docs/measured.md, The suite's own cost). Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_MAX, 0)


def return_pages() -> None:
    """Return free memory to the operating system if this process has more than 2 GiB.

    A large tensor that was freed lies in the middle of the heap, where the heap's end keeps it.
    """
    if resident_bytes(os.getpid()) > _MOST:
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
