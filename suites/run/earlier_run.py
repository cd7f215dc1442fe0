"""Read the record of an earlier run for --resume, --lf, --ff and --failed.

pytest's own --lf reads pytest's cache. A record also covers runs in several processes and runs on
another machine.
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
    """The failed rows of an earlier run, by kernel and case, and the run's command."""

    record: Path
    command: str
    names: frozenset[tuple[str, str]]


def failed_rows(suite: Suite[PairRow]) -> FailedRows | None:
    """Return the failed rows of the record that --lf, --ff or --failed name.

    Returns:
        The rows, or None without these options and if no row failed.

    Raises:
        pytest.UsageError: the record can't be read, or is of another suite.
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
            print(f"{suite.name}: {where} has no earlier run; every row runs", file=sys.stderr)
    if path is None:
        return None
    try:
        earlier = read(path)
    except RecordError as error:
        raise pytest.UsageError(f"--failed: {error}") from error
    if earlier.header.suite != suite.name:
        raise pytest.UsageError(
            f"--failed {shown(path)}: it is a record of {earlier.header.suite}, and this run is "
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
    """Return an earlier run's rows, by kernel and case, that this run takes over.

    Args:
        record: the record of --resume, or None for no rows.
        header: the header of this run.
        pairs: the pairs of this run, or of a process's share.
        whole: the pairs are all of the run's.

    Raises:
        pytest.UsageError: the record doesn't belong to a run with these options.
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
            f"--resume {shown(record)}: these options leave out {len(done.keys() - planned):,} of "
            f"its rows; its own command was: {shown(earlier.header.command)}"
        )
    return done


def resumed(record: str, header: RunHeader) -> Record:
    """Read the record of the run that this run continues.

    A record without hashes of files is accepted.

    Args:
        record: the record's path.
        header: the header of this run.

    Raises:
        pytest.UsageError: the record can't be read, or its suite, protocol, device, commit,
            versions or strictness differ, or a file was edited since.
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
        edited = [
            file for file, digest in then.files.items() if now.files.get(file, digest) != digest
        ]
    if edited:
        raise pytest.UsageError(
            f"--resume {shown(record)}: {shown(edited[0])} has changed since; run all of it again"
        )
    return earlier
