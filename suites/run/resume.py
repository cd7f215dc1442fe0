"""Going on with a run that was cut off: which rows of its record count."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from kernels.registry import Kernel
from oracles.op import Case
from reports.phrases import shown
from reports.record import AccuracyRow, RecordError, RunHeader, read

Pairs = Iterable[tuple[Kernel, Case]]


def rows_of(
    record: str | None, header: RunHeader, pairs: Pairs, *, whole: bool
) -> dict[tuple[str, str], AccuracyRow]:
    """The rows, by kernel and case, that needn't be tried again; none without a record.

    whole: the pairs are all of the run's, and not one process's share of them.

    Raises pytest.UsageError where the record is of another run than the one that begins: other
    options, another commit or machine, files that were edited since. A record of before files were
    hashed is believed to be of these.
    """
    if record is None:
        return {}
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
    planned = {(kernel.name, case.id()) for kernel, case in pairs}
    done = {(row.kernel, row.case.id): row for row in earlier.rows if row.status != "refused"}
    if whole and not done.keys() <= planned:
        raise pytest.UsageError(
            f"--resume {shown(record)}: {len(done.keys() - planned):,} of its rows aren't asked "
            f"for by these options; its own were: {shown(then.command)}"
        )
    return done
