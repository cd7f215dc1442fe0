"""Whole runs of the suite in processes one after the other; those of a side become a record."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from reports.record import Record, read
from suites.bench.merge import write_merged
from suites.bench.processes import Run, interrupts_held_back, run_together

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
    with interrupts_held_back():
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
        arguments = (*side.arguments, "--results", str(folder))
        (status,), interrupted = run_together([Run(arguments, side.tree, quiet=True)])
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
