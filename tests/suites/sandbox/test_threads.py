"""Threads that a call leaves: a library's own fail nobody, a candidate's fail it."""

from __future__ import annotations

import _thread
import functools
import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from kernel_workbench.suites.sandbox.worker_side import threads

_LIBRARY = '''
import threading

stop = threading.Event()


class Monitor(threading.Thread):
    """As tqdm's: a daemon that starts itself when it is made."""

    def __init__(self):
        super().__init__(name="monitor", daemon=True)
        self.start()

    def run(self):
        stop.wait()


def monitored():
    return Monitor()


def run(function):
    threading.Thread(target=function, name="run", daemon=True).start()


def scheduled():
    timer = threading.Timer(60, stop.is_set)
    timer.daemon = True
    timer.name = "scheduled"
    timer.start()
    return timer
'''


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module in a folder that counts as one of installed packages."""
    file = tmp_path / "library_with_threads.py"
    file.write_text(_LIBRARY)
    monkeypatch.setattr(threads, "_LIBRARIES", (f"{tmp_path}/", *threads._LIBRARIES))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    module.stop.set()


def _left(call: Callable[[], object]) -> list[str]:
    with threads.watched() as left:
        call()
    return left


def test_monitor_of_a_library_is_nobodys(library: ModuleType) -> None:
    """Though the library is first used in a call, and whoever called it, as tqdm is."""
    assert _left(library.monitored) == []
    assert _left(functools.partial(library.scheduled)) == []


def test_thread_of_a_candidate_is_left() -> None:
    """With a function of its own, with Python's, or with a method that does the writing."""
    stop = threading.Event()
    started: list[Callable[[], object]] = [
        lambda: threading.Thread(target=lambda: (stop.wait(), 0), name="own", daemon=True).start(),
        lambda: threading.Thread(target=stop.wait, name="own", daemon=True).start(),
        lambda: threading.Thread(
            target=functools.partial(time.sleep, 60), name="own", daemon=True
        ).start(),
    ]
    try:
        assert [_left(each) for each in started] == [["own"]] * 3
    finally:
        stop.set()


def test_timer_of_a_candidate_is_left() -> None:
    """Its function isn't on any stack yet."""
    timer = threading.Timer(60, print)
    timer.name = "own"
    assert _left(timer.start) == ["own"]
    timer.cancel()


def test_thread_that_a_library_starts_with_a_candidates_function_is_left(
    library: ModuleType,
) -> None:
    """The library is a go-between."""

    def waits() -> None:
        library.stop.wait()

    assert _left(lambda: library.run(waits)) == ["run"]


def test_thread_without_a_thread_object_is_left() -> None:
    """Nobody sees who started it."""
    begun, stop = threading.Event(), threading.Event()

    def waits() -> None:
        begun.set()
        stop.wait()

    def starts() -> None:
        _thread.start_new_thread(waits, ())
        begun.wait()

    try:
        assert _left(starts) == ["a thread"]
    finally:
        stop.set()


def test_thread_that_has_ended_is_nobodys() -> None:
    """The candidate waited for it."""

    def joined() -> None:
        thread = threading.Thread(target=print)
        thread.start()
        thread.join()

    assert _left(joined) == []


def test_packages_are_libraries_and_tests_are_not() -> None:
    """Each by the folder that its file is in."""
    functions = [
        pytest.fixture,
        threading.Thread.start,
        test_packages_are_libraries_and_tests_are_not,
    ]
    codes = [each.__code__ for each in functions]
    assert [threads._is_library(each) for each in codes] == [True, False, False]
    assert [threads._is_python(each) for each in codes] == [False, True, False]
    assert threads._is_library(threads._waits.__code__)
    assert sys.modules[__name__].__file__ == codes[2].co_filename
