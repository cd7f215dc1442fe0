"""`python -m reports.comparison A B [C ...]`: lay records beside one another, A the base.

Exit status: 0 where they could be compared, whatever came of it; 1 under --gate where a row of one
model is slower or less accurate, or where no row was compared; 2 where there is nothing to compare,
with the reason.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from reports.arguments import CommandLine
from reports.command_line import (
    columns,
    rows_uncollected,
    save,
    spell_out_streams,
    terminal_text,
    until_the_reader_has_enough,
)
from reports.comparison.report import Comparison, compare
from reports.comparison.side import read_sides
from reports.document.html import render_html
from reports.document.markdown import render_markdown
from reports.document.terminal import print_document
from reports.record import RecordError
from reports.written_files import refuse_to_overwrite

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    options = _parser().read(arguments)
    spell_out_streams()
    try:
        found = _compared(options)
        with until_the_reader_has_enough():
            _write(found, options)
    except RecordError as error:
        print(error, file=sys.stderr)
        return 2
    if options.gate and found.broken is not None:
        print(found.broken, file=sys.stderr)
        return 1
    return 0


def _compared(options: argparse.Namespace) -> Comparison:
    """Read all and compare."""
    named = {} if options.html is None else {"--html": (options.html, "HTML")}
    if options.markdown not in (None, "-"):
        named["--markdown"] = (Path(options.markdown), "Markdown")
    refuse_to_overwrite(named)
    with rows_uncollected():
        return compare([side for path in options.records for side in read_sides(path, options.gpu)])


def _parser() -> CommandLine:
    parser = CommandLine(
        prog="nox -s compare --",
        description="Lay records beside one another. The first of each suite is the base: of one "
        "GPU model the others are FASTER, SLOWER, SAME or AMBIGUOUS; other GPUs, and figures that "
        "were published or predicted, stand beside it with ratios.",
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
        help="exit status 1 where a row is SLOWER or less accurate; baselines don't count",
    )
    parser.add_argument(
        "--markdown", metavar="PATH", help="also as Markdown; - for stdout, and only that"
    )
    parser.add_argument("--html", type=Path, metavar="PATH", help="also as one HTML page")
    parser.add_argument(
        "--gpu",
        action="append",
        default=[],
        metavar="NAME",
        help="of a record of nox -s compile, only predictions for GPUs of this name",
    )
    parser.add_argument(
        "--details", "--all", action="store_true", help="every row of every table, however many"
    )
    parser.add_argument("--width", type=columns, metavar="N", help="columns of the terminal report")
    return parser


def _write(found: Comparison, options: argparse.Namespace) -> None:
    """Write the forms that were asked for; files first, so that a closed pipe loses none."""
    document = found.document
    if options.html is not None:
        save(options.html, render_html(document).encode())
    if options.markdown is not None and options.markdown != "-":
        save(Path(options.markdown), render_markdown(document).encode())
    if options.markdown == "-":
        text = render_markdown(document)
    else:
        show = partial(print_document, found.screen, details=options.details)
        text = terminal_text(show, options.width)
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
