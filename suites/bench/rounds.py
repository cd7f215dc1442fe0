"""`bench --rounds N`: every row in N processes, one after the other, in one record.

Properties of a process, above all the places of its memory, change a call's time by some per cent
for its lifetime (docs/decisions/0021), and no number of samples shows that.

The record has a row's samples process by process. A figure is the median of the processes' figures,
because the samples of one process aren't independent. The bootstrapped interval of one process's
median says nothing about another process, so the range of the processes' medians replaces it. A row
that was wrong or failed in any process has no figure.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kernel_workbench.reports.commands import this_program
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.output import report_console
from kernel_workbench.reports.record import BenchRow, Record, RecordError, RunEnd, new_record, read
from kernel_workbench.reports.record.row_field import key_of, merged
from kernel_workbench.reports.report import print_report
from kernel_workbench.suites.bench.processes import (
    Process,
    interrupts_held_back,
    pytest_arguments,
    run_in_turn,
)
from kernel_workbench.suites.run.commands import without
from kernel_workbench.suites.run.option_table import BenchOptions
from kernel_workbench.suites.run.session import typed

_OWN = {"--rounds": True, "--results": True}


@dataclass(frozen=True, slots=True)
class BenchSide:
    """Runs in several processes that make one record.

    letter     "A" or "B" of two sides (against.py), or ""
    name       the name that the user reads
    tree       the folder of the processes
    arguments  their arguments
    """

    letter: str
    name: str
    tree: Path
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TimedSides:
    """The end of the processes.

    status   pytest's status of the process that ended worst
    problem  a sentence if something ended them early, else None
    records  the record of each side
    """

    status: int
    problem: str | None
    records: dict[BenchSide, Path]


def run_rounds(config: pytest.Config, options: BenchOptions, rounds: int) -> int:
    """Time in --rounds processes, write one record, and show its report; return the exit status."""
    arguments = without(pytest_arguments(config), _OWN)
    side = BenchSide("", "every row", Path(config.invocation_params.dir), tuple(arguments))
    try:
        timed = time_in_turn(
            [side] * rounds,
            Path(options.results).resolve(),
            this_program().command("bench", typed(config, "bench")),
            stop_at_failure=config.option.maxfail == 1,
        )
    except RecordError as error:
        raise pytest.UsageError(str(error)) from error
    for path in timed.records.values():
        console = report_console()
        console.print()
        print_report(read(path), console, details=options.details)
    if timed.problem is not None:
        print(timed.problem, file=sys.stderr)
    return timed.status


def time_in_turn(
    order: Sequence[BenchSide], results: Path, command: str, *, stop_at_failure: bool = False
) -> TimedSides:
    """Run a process for each element of `order`, and write a record for each side.

    Ctrl-C ends the running process; the finished processes are still written.

    Args:
        order: the side of each process.
        results: the folder of the records.
        command: the command that repeats the whole run.
        stop_at_failure: stop after a process that failed.

    Raises:
        RecordError: if a record can't be read or written.
    """
    started = datetime.now(UTC)
    scratch = results / f".in-turn-{started:%Y%m%dT%H%M%SZ}-{os.getpid()}"
    processes = []
    for number, side in enumerate(order, 1):
        name = f"{side.letter}: {side.name}" if side.letter else side.name
        own = scratch / str(number)
        arguments = (*side.arguments, "--results", str(own))
        process = Process(
            f"process {number} of {len(order)}, {name}", arguments, side.tree, results=own
        )
        processes.append(process)
    status, problem = run_in_turn(
        [[process] for process in processes], stop_at_failure=stop_at_failure
    )
    written = {}
    with interrupts_held_back():
        for side in dict.fromkeys(order):
            records = [
                read(process.record)
                for process, of in zip(processes, order, strict=True)
                if of == side and process.record is not None
            ]
            if records:
                written[side] = _write_merged(
                    records, results, started, side.letter.lower(), command
                )
        shutil.rmtree(scratch, ignore_errors=True)
    return TimedSides(status, problem, written)


def _write_merged(
    records: Sequence[Record], results: Path, started: datetime, mark: str, command: str
) -> Path:
    """Write the processes' records as one, and return its path. Raises RecordError."""
    rows: dict[tuple[object, ...], list[BenchRow]] = {}
    for record in records:
        for row in record.benches:
            rows.setdefault(key_of(row), []).append(row)
    planned = max(record.header.planned_rows for record in records)
    header = records[0].header.model_copy(update={"command": command, "planned_rows": planned})
    ends = [record.end for record in records if record.end is not None]
    cut_off = len(ends) < len(records)
    with new_record(results, started, header, mark=mark) as writer:
        for same in rows.values():
            writer.write(merge_rows(same))
        writer.close(
            RunEnd(
                finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
                duration_s=sum(end.duration_s for end in ends),
                rows=len(rows),
                interrupted=cut_off or any(end.interrupted for end in ends),
                exit_status=max((end.exit_status for end in ends), default=ExitStatus.INCOMPLETE),
                stopped=next((end.stopped for end in ends if end.stopped), None),
            )
        )
    return writer.path


def merge_rows(rows: Sequence[BenchRow]) -> BenchRow:
    """Return one row from the same row of several processes, in their order.

    The row's class declares how the values of each field merge.
    """
    number = len(rows)
    for place, row in enumerate(rows, 1):
        if row.status in ("wrong", "failed"):
            reason = f"in process {place} of {number}: {row.reason}"
            return row.model_copy(update={"reason": reason if number > 1 else row.reason})
    timed = [row for row in rows if row.status == "timed"]
    if len(timed) < 2:
        return timed[0] if timed else rows[0]
    return merged(timed)
