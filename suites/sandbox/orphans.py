"""Adopt and end the processes that a process leaves behind."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37


def adopt_orphans() -> None:
    """Become the parent of every process that a child leaves behind."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextmanager
def orphans_left_to_init() -> Iterator[None]:
    """Adopt no orphan within the context. A child that adopts orphans itself keeps doing so."""
    libc, adopts = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, adopts.value, 0, 0, 0)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def end_children(spared: frozenset[int] = frozenset()) -> None:
    """Kill the children of this process, and the orphans that it adopts, until none is left.

    Args:
        spared: process ids that stay alive.
    """
    while True:
        own = os.getpid()
        children = {pid for pid, parent in _parents().items() if parent == own} - spared
        if not children:
            return
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                continue


def family(pid: int) -> set[int]:
    """Return a process's id, and the ids of its children, of their children, and so on."""
    parents, members = _parents(), {pid}
    while more := {child for child, parent in parents.items() if parent in members} - members:
        members |= more
    return members


def _parents() -> dict[int, int]:
    """Return the parent's id of each process, by the process's id."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # the process has ended
                status = (folder / "stat").read_text().rpartition(")")[2].split()
                parents[int(folder.name)] = int(status[1])
    return parents
