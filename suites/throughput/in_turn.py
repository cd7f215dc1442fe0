"""Whole runs of the suite in processes one after the other; those of a side become a record."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from reports.record import Record, read
from suites.throughput.merged import write_merged

_PATIENCE_S = 60.0  # of a process that was interrupted, to close its record
# What pytest-benchmark writes is of one process.
_OF_ONE_PROCESS = ("--benchmark-json", "--benchmark-save", "--benchmark-autosave")


@dataclass(slots=True)
class Side:
    """What the processes of one side run: `name` says it to the user.

    letter  of one side of two; "" where there is one
    tree    the folder that they run in
    """

    letter: str
    name: str
    tree: Path
    arguments: tuple[str, ...]
    records: list[Record] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class InTurn:
    """What came of the processes. status: of the first that failed; problem: what ended them."""

    status: int
    problem: str | None
    records: tuple[tuple[Side, Path], ...]


def refuse_files_of_one_process(given: Sequence[str], option: str) -> None:
    """Raises UsageError where an argument asks for a file that holds one process alone."""
    for each in given:
        if each.startswith(_OF_ONE_PROCESS):
            raise pytest.UsageError(
                f"{each.partition('=')[0]}: {option} times in several processes, and this file "
                "is of one; the record has them all"
            )


def time_in_turn(order: Sequence[Side], results: Path, command: str) -> InTurn:
    """Run a process for each, and write a record for each side of those that ended well.

    command: what would run all of it again. Ctrl-C ends the process that runs, and what there is by
    then is written. Raises RecordError.
    """
    started = datetime.now(UTC)
    scratch = results / f".in-turn-{started:%Y%m%dT%H%M%SZ}-{os.getpid()}"
    status, problem = 0, None
    try:
        status, problem = _run(order, scratch)
    except KeyboardInterrupt:
        status, problem = int(pytest.ExitCode.INTERRUPTED), "bench: interrupted"
    with _interrupts_held_back():
        records = [
            (each, write_merged(each.records, results, started, each.letter.lower(), command))
            for each in {each.letter: each for each in order}.values()
            if each.records
        ]
        shutil.rmtree(scratch, ignore_errors=True)
    return InTurn(status, problem, tuple(records))


def _run(order: Sequence[Side], scratch: Path) -> tuple[int, str | None]:
    """The processes, whose records are kept with their sides; a status, and what ended them."""
    worst = 0
    for number, side in enumerate(order, 1):
        letter = f"{side.letter}: " if side.letter else ""
        named = f"bench: process {number} of {len(order)}, {letter}{side.name}"
        print(named, file=sys.stderr, flush=True)
        folder = scratch / f"{number}{side.letter.lower()}"
        status, interrupted = _process(side, folder)
        found = sorted(folder.glob("*.jsonl"))
        if found:
            side.records.append(read(found[0]))
        if interrupted:
            return int(pytest.ExitCode.INTERRUPTED), "bench: interrupted"
        worst = worst or status
        if not found:
            told = f"{named}: made no record, and ended with status {status}; see above"
            return worst or 1, told
    return worst, None


def _process(side: Side, folder: Path) -> tuple[int, bool]:
    """One process of a side; its exit status, and whether it was interrupted.

    It has a session of its own: a terminal's Ctrl-C would reach it twice, once from here, and the
    second would keep it from closing its record.
    """
    command = [sys.executable, "-m", "pytest", *side.arguments, "--results", str(folder)]
    with _interrupts_held_back() as came:
        running = subprocess.Popen(
            command, cwd=side.tree, stdout=subprocess.DEVNULL, start_new_session=True
        )
    try:
        status = None if came else running.wait()
    except KeyboardInterrupt:
        status = None
    if status is not None:
        return status, status == pytest.ExitCode.INTERRUPTED
    running.send_signal(signal.SIGINT)
    try:
        return running.wait(_PATIENCE_S), True
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        os.killpg(running.pid, signal.SIGKILL)
        return running.wait(), True


@contextmanager
def _interrupts_held_back() -> Iterator[list[int]]:
    """Note Ctrl-C in place of raising it, where a process or a record is half made."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)


def without(arguments: Sequence[str], options: dict[str, bool]) -> list[str]:
    """The arguments less these options, and their values where they take one."""
    kept = []
    skip = False
    for each in arguments:
        if skip:
            skip = False
        elif each in options:
            skip = options[each]
        elif each.partition("=")[0] not in options:
            kept.append(each)
    return kept
