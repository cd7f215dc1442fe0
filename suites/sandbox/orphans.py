"""What a process leaves behind becomes another's child, and ends with it."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37


def adopt_orphans() -> None:
    """Become the parent of whatever a child leaves behind."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextmanager
def orphans_left_to_init() -> Iterator[None]:
    """Adopt no orphan inside; those of a child that adopts them itself aren't orphans of ours."""
    libc, adopts = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, adopts.value, 0, 0, 0)


def die_with_parent() -> None:
    """Be killed when who started this process ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def end_children(spared: frozenset[int] = frozenset()) -> None:
    """Kill the children of this process, and theirs as they are adopted, until there are none."""
    while True:
        children = _children() - spared
        if not children:
            return
        for each in children:
            try:
                os.kill(each, signal.SIGKILL)
                os.waitpid(each, 0)
            except (ProcessLookupError, ChildProcessError):
                continue


def _children() -> set[int]:
    own = str(os.getpid())
    found = set()
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                status = (each / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if status[1] == own:
                found.add(int(each.name))
    return found
