"""`python -m tests.mutants [NAME ...]`: try the mutants, print the table, exit 0 if all are killed.

--sample N           so many of them, always the same
--jobs N             processes; by default as many as there are cores
--detection FILE     write there, too, which of the rules of other projects see them
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from rich.console import Console

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

from tests.mutants import catalogue, detection
from tests.mutants.processes import outcomes_of
from tests.mutants.table import show

_WIDE = 220  # columns where the output is no terminal: a row is a line


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--sample", type=int, metavar="N", help="so many, always the same")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--detection", type=Path, metavar="FILE", help="write the table there")
    return parser.parse_args()


def main() -> int:
    """Run; the exit status."""
    options = _options()
    try:
        mutants = catalogue.chosen(options.names, options.sample)
    except catalogue.UnknownMutantError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    console = Console() if sys.stdout.isatty() else Console(width=_WIDE)
    started = time.perf_counter()
    place = {each.name: number for number, each in enumerate(mutants)}
    outcomes = sorted(outcomes_of(mutants, options.jobs), key=lambda each: place[each.mutant.name])
    show(outcomes, time.perf_counter() - started, console)
    if options.detection is not None:
        detection.write(options.detection, outcomes, options.jobs)
        console.print(f"the detection table is in {options.detection}")
    return int(any(each.wrong is not None for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
