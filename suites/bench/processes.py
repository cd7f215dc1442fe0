"""Whole runs of the suite, each a process of its own: one after the other, or at once.

`--gpus` (gpus.py), `--rounds` (rounds.py) and `--against` (against.py) each make a list of these.
Ctrl-C lets them close their records.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kernel_workbench.suites.run.exit_status import of_pytest

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
class Process:
    """What a process runs: pytest with these arguments, in this folder.

    name       what the user is told as it begins
    variables  of the environment, besides ours
    results    the folder that its record is taken from, to be shown with others; its own report
               isn't shown. None: the record is the user's, and the report is shown
    """

    name: str
    arguments: Sequence[str]
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    results: Path | None = None

    @property
    def record(self) -> Path | None:
        """The record that it left in `results`."""
        found = () if self.results is None else sorted(self.results.glob("*.jsonl"))
        return found[0] if found else None


def run_in_turn(
    groups: Iterable[Sequence[Process]], *, stop_at_failure: bool = False
) -> tuple[int, str | None]:
    """Run each group when the one before it has ended, the processes of a group at once.

    Return pytest's status of the process that ended worst, and a sentence on what ended all of it
    early, if anything did: Ctrl-C, a process that left no record, or `stop_at_failure`.
    """
    worst = 0
    try:
        for group in groups:
            for each in group:
                print(f"bench: {each.name}", file=sys.stderr, flush=True)
            statuses, interrupted = run_together(group)
            if interrupted:
                raise KeyboardInterrupt  # noqa: TRY301 (one way out for both)
            worst = max((worst, *statuses), key=of_pytest)
            for each, status in zip(group, statuses, strict=True):
                if each.results is not None and each.record is None:
                    told = f"made no record, and ended with status {status}; see above"
                    return worst or int(
                        pytest.ExitCode.INTERNAL_ERROR
                    ), f"bench: {each.name}: {told}"
            if worst and stop_at_failure:
                return worst, "bench: a process failed, and -x starts no other"
    except KeyboardInterrupt:
        return int(pytest.ExitCode.INTERRUPTED), "bench: interrupted"
    return worst, None


def run_together(processes: Sequence[Process]) -> tuple[list[int], bool]:
    """Run them at the same time; their exit statuses, and whether Ctrl-C ended them.

    A second Ctrl-C kills what hasn't ended by then.
    """
    with interrupts_held_back() as came:
        running = [start(each) for each in processes]
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


def start(process: Process) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own.

    A terminal's Ctrl-C would reach it twice, once from here, and the second would keep it from
    closing its record.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _PYTEST, *process.arguments],
            cwd=process.folder,
            env=os.environ | process.variables,
            stdout=None if process.results is None else subprocess.DEVNULL,
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


def given(config: pytest.Config) -> list[str]:
    """What pytest was given, which is what its processes are, but for a few options."""
    return list(map(str, config.invocation_params.args))
