"""Find threads that a candidate leaves running, which could write to its outputs after it returned.

Libraries keep threads of their own after their first use: the monitor of a progress bar, the pool
of a compiler. So a thread is the candidate's, unless a library started it, its function is a
library's, and its stack consists of libraries and Python only. The starter of a thread is the owner
of the nearest frame on the stack that isn't Python's own. A thread that wasn't started by the
`threading.Thread` that existed when this module was imported is always the candidate's, as is a
thread with work in a pool of the candidate; an idle pool thread is nobody's.
"""

from __future__ import annotations

import concurrent.futures.thread
import functools
import sys
import sysconfig
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from unittest import mock

import torch

from kernel_workbench import suites

# Bound before a candidate is imported, which may replace the originals.
_frames: Callable[[], dict[int, FrameType]] = sys._current_frames  # noqa: SLF001
_frame: Callable[[int], FrameType] = sys._getframe  # noqa: SLF001
_threads: Callable[[], list[threading.Thread]] = threading.enumerate
_POOL_THREAD = concurrent.futures.thread._worker.__code__  # noqa: SLF001
_LOOKS = 20


def _libraries() -> Iterator[str]:
    """Yield the folders of installed packages, and the suites' folder."""
    yield str(Path(suites.__file__).parent)
    yield str(Path(torch.__file__).parent.parent)
    for name in ("purelib", "platlib"):
        yield sysconfig.get_path(name)
    for path in sys.path:
        if Path(path).name in {"site-packages", "dist-packages"}:
            yield path


_LIBRARIES = tuple(f"{folder}/" for folder in _libraries())
_PYTHON = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))


@contextmanager
def watched() -> Iterator[list[str]]:
    """Yield the names of the candidate's threads that are left at the end."""
    before, left = set(_frames()), list[str]()
    stock, by_libraries = threading.Thread.start, weakref.WeakSet[threading.Thread]()

    def start(thread: threading.Thread) -> None:
        if _is_in_a_library(_frame(1)):
            by_libraries.add(thread)
        stock(thread)

    try:
        with mock.patch.object(threading.Thread, "start", start):
            yield left
    finally:
        for ident in set(_frames()) - before:
            thread = next((running for running in _threads() if running.ident == ident), None)
            library = thread is not None and thread in by_libraries and _runs_a_library(thread)
            if not library and not _waits(ident):
                left.append("a thread" if thread is None else thread.name)


def _is_python(code: CodeType) -> bool:
    """Return True if the code is the standard library's, or has no file."""
    file = code.co_filename
    return file.startswith("<") or (file.startswith(_PYTHON) and not file.startswith(_LIBRARIES))


def _is_library(code: CodeType) -> bool:
    return code.co_filename.startswith(_LIBRARIES)


def _is_in_a_library(frame: FrameType | None) -> bool:
    """Return True if the nearest frame that isn't Python's own is a library's, or there is none."""
    while frame is not None and _is_python(frame.f_code):
        frame = frame.f_back
    return frame is None or _is_library(frame.f_code)


def _runs_a_library(thread: threading.Thread) -> bool:
    """Return True if neither the thread's function nor its stack is the candidate's."""
    functions = [type(thread).run, getattr(thread, "_target", None)]
    codes = [getattr(_plain(function), "__code__", None) for function in functions]
    frame = _frames().get(thread.ident or 0)
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    return all(code is None or _is_python(code) or _is_library(code) for code in codes)


def _plain(function: object) -> object:
    """Return the function of a partial object or a bound method."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__func__", function)


def _waits(thread: int) -> bool:
    """Return True for an idle thread of a pool, as torch's compiler leaves some."""
    for _ in range(_LOOKS):
        frame = _frames().get(thread)
        if frame is None or frame.f_code is not _POOL_THREAD:
            return False
        if "work_item" not in frame.f_locals and frame.f_locals["work_queue"].empty():
            return True
        time.sleep(0.001)  # the thread is between two states
    return False
