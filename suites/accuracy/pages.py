"""Keep the memory that a judge frees: new pages cost more than the arithmetic on them."""

from __future__ import annotations

import ctypes
import mmap
import os

from kernel_workbench.suites.sandbox.judge_side.worker_process import resident_bytes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # glibc's numbers, of malloc.h
_KEPT = (1 << 31) - 1  # bytes at the heap's end; what is free beyond goes back
_RESERVED = 7 << 28  # bytes at the heap's end that get huge pages
_HUGE = 1 << 21  # bytes of a huge page
_MOST = 1 << 31  # resident bytes; beyond them all that is free goes back


def keep_freed_pages() -> None:
    """Let glibc keep the memory that this process frees for its next tensors, in huge pages.

    By default a tensor over 32 MiB takes new pages each time, which the operating system fills with
    zeros (docs/measured.md, The suite's own cost). Other C libraries are left as they are.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_TRIM_THRESHOLD, _KEPT)
        libc.mallopt(_MMAP_MAX, 0)
        _reserve(libc)


def return_pages() -> None:
    """Return free memory to the operating system if this process has more than 2 GiB.

    A large tensor that was freed lies in the middle of the heap, where the heap's end keeps it.
    """
    if resident_bytes(os.getpid()) > _MOST:
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)
            _reserve(libc)


def _reserve(libc: ctypes.CDLL) -> None:
    """Extend the heap, and ask for huge pages there; a page is taken when it is first written to.

    A tensor is aligned, so glibc often finds no freed block for it that is long enough, and takes
    new pages at the heap's end. A huge page takes the place of 512 of them.
    """
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    place = libc.malloc(_RESERVED)
    if place is None:
        return
    start = -(-place // _HUGE) * _HUGE
    libc.madvise(start, place + _RESERVED - start, mmap.MADV_HUGEPAGE)
    libc.free(place)
