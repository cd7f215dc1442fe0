"""`python -m kernel_workbench.reports.comparison A B [C ...]`: compare records.

Record A is the base that the others are compared with.

Exit status: 0 where they could be compared, whatever came of it; under --gate 1 where a row of one
model is slower or less accurate, and 4 where no row was compared; 2 where there is nothing to
compare, with the reason.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_workbench.reports.arguments import CommandLine, add_forms, named_forms
from kernel_workbench.reports.commands import this_program
from kernel_workbench.reports.comparison.report import Comparison, compare
from kernel_workbench.reports.comparison.side import read_sides
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.output import refuse_to_overwrite, run_alone, write_document
from kernel_workbench.reports.phrases import shown
from kernel_workbench.reports.record import RecordError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from kernel_workbench.reports.comparison.side import RecordSide


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    options = _parser().read(arguments)
    try:
        comparison = _compared(options)
        write_document(comparison.document, options)
    except RecordError as error:
        print(error, file=sys.stderr)
        return ExitStatus.USAGE
    if options.gate and comparison.broken is not None:
        print(comparison.broken, file=sys.stderr)
        return ExitStatus.WRONG if comparison.compared else ExitStatus.INCOMPLETE
    return ExitStatus.RIGHT


def _compared(options: argparse.Namespace) -> Comparison:
    """Read all and compare."""
    refuse_to_overwrite(named_forms(options))
    sides = [side for path in options.records for side in read_sides(path)]
    for name in options.gpu:
        if not any(_predicts(side, name) for side in sides):
            raise RecordError(
                f"--gpu {shown(name)}: none of these records predicts for it; it selects among the "
                "predictions of a record of compile, so leave it out or name another GPU"
            )
    if options.gpu:
        sides = [
            side
            for side in sides
            if side.figures != "predicted" or any(_predicts(side, name) for name in options.gpu)
        ]
    return compare(sides)


def _predicts(side: RecordSide, gpu: str) -> bool:
    """Return whether a side is predicted for a GPU with this in its name."""
    return side.figures == "predicted" and gpu.lower() in side.machine.name.lower()


def _parser() -> CommandLine:
    parser = CommandLine(
        prog=this_program().prefix("compare"),
        description="Compare records with the first one of their suite. On one GPU model each "
        "row is FASTER, SLOWER, SAME or AMBIGUOUS; other GPUs, and figures that were published "
        "or predicted, get ratios without a verdict.",
    )
    parser.add_argument(
        "records",
        nargs="+",
        type=Path,
        metavar="RECORD",
        help="records of bench, accuracy, profile or compile, or JSON files of pytest-benchmark",
    )
    parser.add_argument(
        "--gate",
        action="store_true",
        help="exit status 1 if a row is SLOWER or less accurate; baselines don't count",
    )
    add_forms(parser)
    parser.add_argument(
        "--gpu",
        action="append",
        default=[],
        metavar="NAME",
        help="compile: only predictions for GPUs of this name",
    )
    parser.add_argument(
        "--details", "--all", action="store_true", help="show every row of every table"
    )
    return parser


if __name__ == "__main__":
    run_alone(main)
