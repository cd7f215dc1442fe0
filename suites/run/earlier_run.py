"""What the record of an earlier run saves: --resume, and --lf, --ff and --failed.

pytest's own --lf goes by a cache of its own. A record says the same of a run in several processes,
and of one on another machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kernel_workbench.reports.phrases import shown
from kernel_workbench.reports.record import (
    AccuracyRow,
    Record,
    RecordError,
    RunHeader,
    latest,
    read,
)
from kernel_workbench.suites.run.option_table import PlannedOptions
from kernel_workbench.suites.run.suite import Pair, PairRow, Suite


@dataclass(frozen=True, slots=True)
class FailedRows:
    """The rows that failed in an earlier run, by kernel and case; `command` ran it."""

    record: Path
    command: str
    names: frozenset[tuple[str, str]]


def failed_rows(suite: Suite[PairRow]) -> FailedRows | None:
    """Those that --lf, --ff or --failed go by; None without them, and where nothing failed.

    Raises UsageError where the record can't be read, or is of another suite.
    """
    options = suite.options
    if not isinstance(options, PlannedOptions):
        return None
    path = None if options.failed is None else Path(options.failed)
    if path is None and (options.lf or options.failedfirst):
        try:
            path = latest(Path(options.results), suite.name)
        except RecordError:
            where = shown(options.results)
            print(f"{suite.name}: no earlier run is in {where}; every row runs", file=sys.stderr)
    if path is None:
        return None
    try:
        earlier = read(path)
    except RecordError as error:
        raise pytest.UsageError(f"--failed: {error}") from error
    if earlier.header.suite != suite.name:
        raise pytest.UsageError(
            f"--failed {shown(path)}: its suite is {earlier.header.suite}, and here it is "
            f"{suite.name}; name another record"
        )
    rows: Sequence[Any] = (*earlier.rows, *earlier.benches, *earlier.profiles)
    names = frozenset(
        (row.kernel, row.case.id)
        for row in rows
        if (row.gates or options.gate_baselines) and suite.wrong(row) is not None
    )
    if not names:
        print(f"{suite.name}: no row failed in {shown(path)}; every row runs", file=sys.stderr)
        return None
    return FailedRows(path.resolve(), earlier.header.command, names)


def done_rows(
    record: str | None, header: RunHeader, pairs: Iterable[Pair], *, whole: bool
) -> dict[tuple[str, str], list[AccuracyRow]]:
    """The rows, by kernel and case, that needn't be tried again; none without a record.

    whole: the pairs are all of the run's, and not one process's share of them.
    Raises pytest.UsageError where the record is of another run than the one that begins.
    """
    if record is None:
        return {}
    earlier = resumed(record, header)
    planned = {(kernel.name, case.id()) for kernel, case in pairs}
    done: dict[tuple[str, str], list[AccuracyRow]] = {}
    for row in earlier.rows:
        if row.status != "refused":
            done.setdefault((row.kernel, row.case.id), []).append(row)
    if whole and not done.keys() <= planned:
        raise pytest.UsageError(
            f"--resume {shown(record)}: {len(done.keys() - planned):,} of its rows aren't asked "
            f"for by these options; its own were: {shown(earlier.header.command)}"
        )
    return done


def resumed(record: str, header: RunHeader) -> Record:
    """The record of the run that is gone on with.

    Raises pytest.UsageError where it is of other options, of another commit or machine, or where
    files were edited since. A record of before files were hashed is believed to be of these.
    """
    try:
        earlier = read(Path(record))
    except RecordError as error:
        raise pytest.UsageError(f"--resume: {error}") from error
    then, now = earlier.header, header
    for what, before, here in (
        ("suite", then.suite, now.suite),
        ("protocol", then.protocol, now.protocol),
        ("device", then.environment.device_name, now.environment.device_name),
        ("commit", then.environment.git_commit, now.environment.git_commit),
        ("torch", then.environment.packages.get("torch"), now.environment.packages.get("torch")),
        ("triton", then.environment.packages.get("triton"), now.environment.packages.get("triton")),
        ("strictness", then.environment.strict, now.environment.strict),
    ):
        if before != here:
            raise pytest.UsageError(
                f"--resume {shown(record)}: its {what} is {before}, and here it is {here}; "
                "run all of it again"
            )
    if then.environment.tree not in (None, now.environment.tree):
        edited = ["the checkout"]
    else:
        edited = [each for each, told in then.files.items() if now.files.get(each, told) != told]
    if edited:
        raise pytest.UsageError(
            f"--resume {shown(record)}: {shown(edited[0])} has changed since; run all of it again"
        )
    return earlier
