"""Whole runs of the suite in processes of their own, one after the other or at the same time.

`--gpus` (gpus.py), `--rounds` (rounds.py) and `--against` (against.py) make lists of these. Ctrl-C
lets the processes close their records.
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

_PATIENCE_S = 60.0  # for interrupted processes to close their records

# `python -m pytest`, without the long traceback of Ctrl-C during its imports: the process starts
# with the signal blocked and unblocks it where it is caught. The process also gets the signal when
# its parent is killed, because nothing else would end it.
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
    """A process that runs pytest with these arguments in this folder.

    name       the name that the user reads as it begins
    variables  further variables of the environment
    results    the folder of its record, which is shown with other records, so the process shows no
               report; None: the record is the user's, and the process shows its report
    """

    name: str
    arguments: Sequence[str]
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    results: Path | None = None

    @property
    def record(self) -> Path | None:
        """The record that the process left in `results`, or None."""
        records = () if self.results is None else sorted(self.results.glob("*.jsonl"))
        return records[0] if records else None


def run_in_turn(
    groups: Iterable[Sequence[Process]], *, stop_at_failure: bool = False
) -> tuple[int, str | None]:
    """Run the groups one after the other, and the processes of a group at the same time.

    Returns:
        pytest's status of the process that ended worst, and a sentence if something ended the runs
        early: Ctrl-C, a process without a record, or `stop_at_failure`.
    """
    worst = 0
    try:
        for group in groups:
            for process in group:
                print(f"bench: {process.name}", file=sys.stderr, flush=True)
            statuses, interrupted = run_together(group)
            if interrupted:
                raise KeyboardInterrupt  # noqa: TRY301 (one way out for both)
            worst = max((worst, *statuses), key=of_pytest)
            for process, status in zip(group, statuses, strict=True):
                if process.results is not None and process.record is None:
                    ended = f"made no record, and ended with status {status}; see above"
                    return worst or int(
                        pytest.ExitCode.INTERNAL_ERROR
                    ), f"bench: {process.name}: {ended}"
            if worst and stop_at_failure:
                return worst, "bench: a process failed, so no other one was started"
    except KeyboardInterrupt:
        return int(pytest.ExitCode.INTERRUPTED), "bench: interrupted"
    return worst, None


def run_together(processes: Sequence[Process]) -> tuple[list[int], bool]:
    """Run processes at the same time.

    A second Ctrl-C kills the processes that still run.

    Returns:
        The exit statuses, and True if Ctrl-C ended the processes.
    """
    with interrupts_held_back() as came:
        running = [start(process) for process in processes]
    try:
        interrupted = bool(came)
        statuses = [] if interrupted else [child.wait() for child in running]
    except KeyboardInterrupt:
        interrupted = True
    if interrupted:
        statuses = _end(running)
    return statuses, interrupted or pytest.ExitCode.INTERRUPTED in statuses


@contextmanager
def interrupts_held_back() -> Iterator[list[int]]:
    """Collect Ctrl-C instead of raising it, while a process starts or a record is written."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)


def start(process: Process) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own.

    Otherwise a terminal's Ctrl-C would reach it twice, and the second one would keep it from
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
    for process in running:
        process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + _PATIENCE_S
    try:
        for process in running:
            process.wait(max(0.0, deadline - time.monotonic()))
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return [process.wait() for process in running]


def pytest_arguments(config: pytest.Config) -> list[str]:
    """Return pytest's arguments; its processes get the same ones with few changes."""
    return list(map(str, config.invocation_params.args))
