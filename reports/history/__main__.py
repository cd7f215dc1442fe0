"""`python -m kernel_workbench.reports.history FOLDER [...]`: show records over time.

Figures are shown by date, with the points at which they change.

Exit status: 0, whatever was found; 1 under --gate where the last change of a series is for the
worse; 2 where there is nothing to follow, with the reason; 4 under --gate where every series that
gates is too short to tell. Where some are, the gate says how many on stderr.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_workbench.reports.arguments import CommandLine, add_forms, named_forms
from kernel_workbench.reports.commands import this_program
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.history.branch import copy_records
from kernel_workbench.reports.history.change_points import FEWEST_RUNS
from kernel_workbench.reports.history.series import read_runs, records_in, series_of
from kernel_workbench.reports.history.view import document_of, told_left_out, too_short
from kernel_workbench.reports.output import refuse_to_overwrite, run_alone, write_document
from kernel_workbench.reports.phrases import count, shown
from kernel_workbench.reports.record import RecordError
from kernel_workbench.root import results_from_here

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernel_workbench.reports.comparison.side import RecordSide


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    options = _parser().read(arguments)
    sources = [*map(str, options.records), *options.branch] or [str(results_from_here())]
    try:
        refuse_to_overwrite(named_forms(options))
        runs, left_out = _runs(options.records, options.branch)
        series = [
            one_series
            for one_series in series_of(runs)
            if not options.kernel or one_series.line.key.kernel in options.kernel
        ]
        if series:
            write_document(document_of(series, runs, left_out), options)
    except RecordError as error:
        print(error, file=sys.stderr)
        return ExitStatus.USAGE
    if not series:
        print(_nothing(sources, len(runs), left_out), file=sys.stderr)
        return ExitStatus.USAGE
    lost = [one_series for one_series in series if one_series.gates and one_series.got_worse]
    if options.gate and lost:
        print(f"the gate is shut: {count(len(lost), 'series')} got worse", file=sys.stderr)
        return ExitStatus.WRONG
    gating = [one for one in series if one.gates] or series
    short = too_short(gating)
    if not options.gate or not short:
        return ExitStatus.RIGHT
    all_short = all(one.is_short for one in gating)
    state = "can't tell" if all_short else "is open, and didn't look at every series"
    print(
        f"the gate {state}: {short}; a change shows in {FEWEST_RUNS} runs or more", file=sys.stderr
    )
    return ExitStatus.INCOMPLETE if all_short else ExitStatus.RIGHT


def _runs(folders: Sequence[Path], branches: Sequence[str]) -> tuple[list[RecordSide], list[str]]:
    """Return the runs of folders and of branches, and why other files are left out."""
    with tempfile.TemporaryDirectory(prefix="kernel-workbench-") as scratch:
        copies = {
            branch: copy_records(branch, Path(scratch) / str(number))
            for number, branch in enumerate(branches)
        }
        named = [*folders, *copies.values()] or [results_from_here()]
        runs, left_out = read_runs(records_in(named))
    for branch, copy in copies.items():
        left_out = [problem.replace(f"{copy}/", f"{branch}: ") for problem in left_out]
    return runs, left_out


def _nothing(sources: Sequence[str], runs: int, left_out: Sequence[str]) -> str:
    also = f"; {told_left_out(left_out)}" if left_out else ""
    return (
        f"{shown(', '.join(sources))}: {count(runs, 'run')} of bench, profile or "
        "accuracy, and no figure that two runs have; keep the records of several runs of one suite "
        f"there{also}"
    )


def _parser() -> CommandLine:
    parser = CommandLine(
        prog=this_program().prefix("history"),
        description="Follow the figures of all records in folders over time, board by board: "
        "times, energies, errors over their bounds. A change has the two commits between which it "
        "lies, and what compare says of them.",
    )
    parser.add_argument(
        "records",
        nargs="*",
        type=Path,
        metavar="FOLDER",
        help="folders of records, searched to the bottom, or records (default: results)",
    )
    parser.add_argument(
        "--branch",
        action="append",
        default=[],
        metavar="NAME[:FOLDER]",
        help="records as they lie in this git branch, which isn't checked out; may be repeated",
    )
    parser.add_argument(
        "--kernel", action="append", default=[], metavar="NAME", help="only it; may be repeated"
    )
    parser.add_argument(
        "--gate",
        action="store_true",
        help="exit status 1 where a series' last change is for the worse, 4 where every series is "
        "too short to tell; baselines don't count",
    )
    add_forms(parser)
    parser.add_argument("--details", action="store_true", help="every series too")
    return parser


if __name__ == "__main__":
    run_alone(main)
