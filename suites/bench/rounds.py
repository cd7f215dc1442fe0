"""`bench --rounds N`: every row in N processes, one after the other, in one record.

What a process has alone, where its memory lies above all, moves a call's time by some per cent for
as long as it lives (docs/decisions/0021), and no number of samples shows that.

In that record a row has its samples process by process. A figure is the median of the processes'
figures, since the samples of one aren't independent. The bootstrapped interval of one process's
median says nothing of another process: from the lowest to the highest of their medians stands in
its place. A row that was wrong or failed in any process has no figure.
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
    given,
    interrupts_held_back,
    run_in_turn,
)
from kernel_workbench.suites.run.commands import without
from kernel_workbench.suites.run.option_table import BenchOptions
from kernel_workbench.suites.run.session import typed

_OWN = {"--rounds": True, "--results": True}


@dataclass(frozen=True, slots=True)
class Side:
    """What is timed in several processes that make one record; `name` says it to the user.

    letter  of one side of two (against.py); "" where there is one
    tree    the folder that they run in
    """

    letter: str
    name: str
    tree: Path
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Timed:
    """How the processes ended. status: pytest's, of the worst; problem: what ended them."""

    status: int
    problem: str | None
    records: dict[Side, Path]


def run_rounds(config: pytest.Config, options: BenchOptions, rounds: int) -> int:
    """Time in --rounds processes, write one record, show its report; the exit status."""
    arguments = without(given(config), _OWN)
    side = Side("", "every row", Path(config.invocation_params.dir), tuple(arguments))
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
    order: Sequence[Side], results: Path, command: str, *, stop_at_failure: bool = False
) -> Timed:
    """Run a process for each, and write a record for each side of those that left one.

    command: what would run all of it again. Ctrl-C ends the process that runs, and what there is by
    then is written. Raises RecordError.
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
    status, problem = run_in_turn([[each] for each in processes], stop_at_failure=stop_at_failure)
    written = {}
    with interrupts_held_back():
        for side in dict.fromkeys(order):
            made = [
                read(each.record)
                for each, of in zip(processes, order, strict=True)
                if of == side and each.record is not None
            ]
            if made:
                written[side] = _write_merged(made, results, started, side.letter.lower(), command)
        shutil.rmtree(scratch, ignore_errors=True)
    return Timed(status, problem, written)


def _write_merged(
    records: Sequence[Record], results: Path, started: datetime, mark: str, command: str
) -> Path:
    """Write the processes' records as one, and return its path. Raises RecordError."""
    rows: dict[tuple[object, ...], list[BenchRow]] = {}
    for record in records:
        for row in record.benches:
            rows.setdefault(key_of(row), []).append(row)
    planned = max(each.header.planned_rows for each in records)
    header = records[0].header.model_copy(update={"command": command, "planned_rows": planned})
    ends = [each.end for each in records if each.end is not None]
    cut_off = len(ends) < len(records)
    with new_record(results, started, header, mark=mark) as writer:
        for same in rows.values():
            writer.write(merge_rows(same))
        writer.close(
            RunEnd(
                finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
                duration_s=sum(each.duration_s for each in ends),
                rows=len(rows),
                interrupted=cut_off or any(each.interrupted for each in ends),
                exit_status=max((each.exit_status for each in ends), default=ExitStatus.INCOMPLETE),
                stopped=next((each.stopped for each in ends if each.stopped), None),
            )
        )
    return writer.path


def merge_rows(rows: Sequence[BenchRow]) -> BenchRow:
    """Return one row of the same row of several processes, in the order that they ran.

    The row's class declares what becomes of each field.
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
