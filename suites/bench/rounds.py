"""`nox -s bench -- --rounds N`: every row in N processes, one after the other, in one record.

What a process has alone, where its memory lies above all, moves a call's time by some per cent for
as long as it lives (docs/decisions/0021), and no number of samples shows that.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from reports.command_line import report_console
from reports.record import RecordError, read
from reports.report import print_report
from suites.bench.process_turns import Side, refuse_files_of_one_process, time_in_turn, without
from suites.run.nox_command import nox_command
from suites.run.session import typed

_OWN = {"--rounds": True, "--results": True}


def run_repeated(config: pytest.Config, rounds: int) -> int:
    """Time in `rounds` processes, write one record, show its report; the exit status."""
    given = list(map(str, config.invocation_params.args))
    refuse_files_of_one_process(given, "--rounds")
    side = Side("", "every row", Path(config.invocation_params.dir), tuple(without(given, _OWN)))
    results = Path(config.getoption("--results")).resolve()
    try:
        command = nox_command("bench", typed(config, "bench"))
        run = time_in_turn([side] * rounds, results, command)
    except RecordError as error:
        raise pytest.UsageError(str(error)) from error
    for _, path in run.records:
        console = report_console()
        console.print()
        print_report(read(path), console, details=config.getoption("--details"))
    if run.problem is not None:
        print(run.problem, file=sys.stderr)
    return run.status
