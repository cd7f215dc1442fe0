"""Memory that a judge frees is there for the judge's next allocations, without new pages."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.builders.commands import run_python

# Three times 60 MiB, of 15,360 pages each: by default they go back. They are of malloc itself:
# a tensor is aligned, and may find no place that is long enough for that too.
_PROGRAM = """
import ctypes
import resource
from kernel_workbench.suites.accuracy.pages import keep_freed_pages

keep_freed_pages()
libc, size = ctypes.CDLL(None), 60 * 2**20
libc.malloc.restype = ctypes.c_void_p
for _ in range(8):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    places = [ctypes.c_void_p(libc.malloc(ctypes.c_size_t(size))) for _ in range(3)]
    for each in places:
        ctypes.memset(each, 1, size)
    for each in places:
        libc.free(each)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone is asked")
def test_freed_pages_are_used_again() -> None:
    """Next to none is faulted in."""
    ended = run_python("-c", _PROGRAM)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) < 100


_NEW = """
import ctypes
import resource
from kernel_workbench.suites.accuracy.pages import keep_freed_pages

keep_freed_pages()
libc, size = ctypes.CDLL(None), 60 * 2**20
libc.malloc.restype = ctypes.c_void_p
place = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(size)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
ctypes.memset(place, 1, size)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone is asked")
@pytest.mark.skipif(
    not _SETTING.exists() or "[never]" in _SETTING.read_text(), reason="there are no huge pages"
)
def test_new_pages_are_huge() -> None:
    """A system without free huge pages gives small ones, so some of them are enough."""
    ended = run_python("-c", _NEW)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) < 15_000


# A small block above 3 GiB keeps the heap's end where it is.
_LARGE = """
import ctypes
import os
from kernel_workbench.suites.accuracy import pages

pages.keep_freed_pages()
libc, size = ctypes.CDLL(None), 3 * 2**30
libc.malloc.restype = ctypes.c_void_p
place, above = (ctypes.c_void_p(libc.malloc(ctypes.c_size_t(n))) for n in (size, 2**20))
ctypes.memset(place, 1, size)
libc.free(place)
pages.return_pages()
print(pages.resident_bytes(os.getpid()) // 2**20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone is asked")
def test_pages_of_a_large_case_go_back() -> None:
    """A process that has freed 3 GiB below another block keeps little of them."""
    ended = run_python("-c", _LARGE)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) < 1024
