"""Whole runs of the suite in processes of their own, which Ctrl-C lets close their records."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_PATIENCE_S = 60.0  # of processes that were interrupted, to close their records

# `python -m pytest`, without the pages of traceback that Ctrl-C makes among its imports: it is
# started with the signal blocked, and lets it in where it is caught. It gets one too where the
# process that started it is killed: nothing else would end it.
_PYTEST = """
import signal, sys
try:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    import ctypes, runpy
    ctypes.CDLL(None).prctl(1, signal.SIGINT)  # PR_SET_PDEATHSIG
    runpy.run_module("pytest", run_name="__main__", alter_sys=True)
except KeyboardInterrupt:
    sys.exit(2)
"""


@dataclass(frozen=True, slots=True)
class Run:
    """What a process runs: pytest with these arguments, in this folder.

    variables  of the environment, besides ours
    quiet      without its report
    """

    arguments: Sequence[str]
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    quiet: bool = False


def run_together(runs: Sequence[Run]) -> tuple[list[int], bool]:
    """Run them at the same time; their exit statuses, and whether Ctrl-C ended them.

    A second Ctrl-C kills what hasn't ended by then.
    """
    with interrupts_held_back() as came:
        running = [start(each) for each in runs]
    try:
        interrupted = bool(came)
        statuses = [] if interrupted else [each.wait() for each in running]
    except KeyboardInterrupt:
        interrupted = True
    if interrupted:
        statuses = _end(running)
    return statuses, interrupted or pytest.ExitCode.INTERRUPTED in statuses


@contextmanager
def interrupts_held_back() -> Iterator[list[int]]:
    """Note Ctrl-C in place of raising it, where a process or a record is half made."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)


def start(run: Run) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own.

    A terminal's Ctrl-C would reach it twice, once from here, and the second would keep it from
    closing its record.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _PYTEST, *run.arguments],
            cwd=run.folder,
            env=os.environ | run.variables,
            stdout=subprocess.DEVNULL if run.quiet else None,
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(running: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    for each in running:
        each.send_signal(signal.SIGINT)
    deadline = time.monotonic() + _PATIENCE_S
    try:
        for each in running:
            each.wait(max(0.0, deadline - time.monotonic()))
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        for each in running:
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)
    return [each.wait() for each in running]
