"""`python -m reports [FILE ...]`: show records, by default the latest, and write their other forms.

A record of any suite: `kernel_workbench.reports.report` has the view of each. Several are shown one
after another, and `--html` makes one page of them.

Exit status: 0 for the record of a run that finished, whatever its verdict; 4 for one that is
incomplete, with the problem on stderr; 2 where there is no record to show, with the reason.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_workbench.reports.arguments import CommandLine, add_forms, named_forms
from kernel_workbench.reports.commands import this_program
from kernel_workbench.reports.document.model import Document
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.junit import render_junit
from kernel_workbench.reports.output import refuse_to_overwrite, run_alone, save, write_document
from kernel_workbench.reports.phrases import shown
from kernel_workbench.reports.record import RecordError, latest, read
from kernel_workbench.reports.report import part_of, picture_of, roofline_svg
from kernel_workbench.reports.views.profile_pictures import Thinning
from kernel_workbench.root import results_from_here

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from kernel_workbench.reports.record import Record


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    options = _parser().read(arguments)
    try:
        problems = _shown(options)
    except RecordError as error:
        print(error, file=sys.stderr)
        return ExitStatus.USAGE
    for problem in problems:
        print(problem, file=sys.stderr)
    return ExitStatus.INCOMPLETE if problems else ExitStatus.RIGHT


def _parser() -> CommandLine:
    parser = CommandLine(
        prog=this_program().prefix("report"), description="Show the record of a run."
    )
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="records; by default the latest"
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="the folder of the latest record (default: results)",
    )
    add_forms(parser)
    parser.add_argument("--junit", type=Path, metavar="PATH", help="also as JUnit XML")
    parser.add_argument(
        "--svg", type=Path, metavar="PATH", help="also a picture of the report's head, as SVG"
    )
    parser.add_argument(
        "--roofline", type=Path, metavar="PATH", help="bench: also the roofline, as SVG"
    )
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help="bench: also each time as a multiple of this kernel's",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="compile: also the changes since this record",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="show nothing; say on stderr if the record is incomplete",
    )
    parser.add_argument(
        "--details",
        action="store_true",
        help="show every table that fits a terminal, not the summary alone",
    )
    return parser


def _shown(options: argparse.Namespace) -> list[str]:
    """Read the records and write what was asked for; what keeps records from being whole."""
    _refuse_unused(options)
    refuse_to_overwrite(named_forms(options))
    records = [
        read(path, thinned=Thinning().thinned)
        for path in options.files or [latest(options.results or results_from_here())]
    ]
    if not options.check:
        _write(records, options)
    return [record.problem for record in records if record.problem is not None]


def _refuse_unused(options: argparse.Namespace) -> None:
    """Raise RecordError for an option that would do nothing beside the others."""
    forms = [*named_forms(options), *["--markdown"] * (options.markdown is not None)]
    forms += ["--details"] * options.details
    if options.check and forms:
        raise RecordError(f"{forms[0]}: --check shows nothing; leave one out")
    if options.files and options.results is not None:
        raise RecordError(
            "--results names the latest record's folder, and files are named too; leave one out"
        )


def _write(records: Sequence[Record], options: argparse.Namespace) -> None:
    """Write the forms that were asked for."""
    alone = ("markdown", "junit", "svg", "roofline", "against")
    single = [name for name in alone if getattr(options, name) is not None]
    if single and len(records) > 1:
        raise RecordError(
            f"--{single[0]} takes one record and {len(records)} are named; --html makes one page "
            "of several"
        )
    record = records[0]
    against = None if options.against is None else read(options.against)
    parts = [part_of(record, baseline=options.baseline, against=against) for record in records]
    if options.junit is not None:
        if record.header.suite != "accuracy":
            raise RecordError(
                f"{shown(record.path)}: a record of {record.header.suite} has no form as "
                "JUnit; use --markdown"
            )
        save(options.junit, render_junit(record))
    if options.svg is not None:
        save(options.svg, picture_of(record, baseline=options.baseline).encode())
    if options.roofline is not None:
        save(options.roofline, roofline_svg(record).encode())
    write_document(Document("Kernel workbench", parts), options)


if __name__ == "__main__":
    run_alone(main)
