"""`python -m tests.mutants [NAME ...]`: try the mutants, print the table, exit 0 if all are killed.

--sample N           so many of them, always the same
--jobs N             processes; by default as many as there are cores
--detection FILE     write a page there with the totals of other projects' rules, and its rows
                     beside it, as FILE with .csv for a suffix
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

from kernel_workbench.reports.arguments import CommandLine, whole_number
from kernel_workbench.reports.output import refuse_to_overwrite
from kernel_workbench.reports.record import RecordError
from kernel_workbench.suites import MOST_JOBS
from tests.mutants import catalogue, detection
from tests.mutants.processes import outcomes_of
from tests.mutants.table import show

_WIDE = 220  # columns where the output is no terminal: a row is a line


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandLine(prog="nox -s mutants --", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument(
        "--sample", type=whole_number(1, 10_000), metavar="N", help="so many, always the same"
    )
    parser.add_argument(
        "--jobs",
        type=whole_number(1, MOST_JOBS),
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="processes; by default as many as there are cores",
    )
    parser.add_argument(
        "--detection", type=Path, metavar="FILE", help="write the page there, its rows beside"
    )
    return parser.read(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit status."""
    options = _options(arguments)
    try:
        if options.detection is not None:
            refuse_to_overwrite({"--detection": (options.detection, "Markdown")})
            detection.check_rows_path(options.detection)
        mutants = catalogue.chosen(options.names, options.sample)
    except (catalogue.UnknownMutantError, RecordError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    console = Console() if sys.stdout.isatty() else Console(width=_WIDE)
    started = time.perf_counter()
    place = {each.name: number for number, each in enumerate(mutants)}
    outcomes = sorted(outcomes_of(mutants, options.jobs), key=lambda each: place[each.mutant.name])
    show(outcomes, time.perf_counter() - started, console)
    if options.detection is not None:
        detection.write(options.detection, outcomes, options.jobs)
        rows = detection.rows_path(options.detection)
        console.print(f"the page of detection is in {options.detection}, its rows in {rows}")
    return int(any(each.wrong is not None for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
