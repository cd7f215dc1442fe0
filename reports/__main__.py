"""`python -m reports [FILE]`: show a record, by default the latest, and write its other forms.

Exit status: 0 for the record of a run that finished, whatever its verdict; 1 for one that is
incomplete, with the problem on stderr; 2 where there is no record to show, with the reason.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from reports.accuracy import render, render_outline
from reports.junit import render_junit
from reports.markdown import render_markdown
from reports.picture import render_svg
from reports.record import RecordError, latest, read, shown
from reports.resources import render as render_resources
from reports.resources import render_outline as render_resources_outline
from reports.resources_markdown import render_resources_markdown

if TYPE_CHECKING:
    from collections.abc import Sequence

from reports.record import Record

_WIDTH_OF_NO_TERMINAL = 120  # fits a CI log's page; rich alone would take 80


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    options = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Under LC_ALL=C a name that isn't ASCII is spelled out, rather than a traceback.
            stream.reconfigure(errors="backslashreplace")
    try:
        record = read(options.file or latest(options.results))
        _write(record, options)
    except RecordError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader (`| head`) has enough. Python would complain once more when flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if record.problem is not None:
        print(record.problem, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reports", description="Show the record of a run."
    )
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="the record; by default the latest"
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="where the latest is looked for (default: results)",
    )
    parser.add_argument(
        "--markdown", metavar="PATH", help="also as Markdown; - for stdout, and only that"
    )
    parser.add_argument("--junit", type=Path, metavar="PATH", help="also as JUnit XML")
    parser.add_argument(
        "--svg", type=Path, metavar="PATH", help="also a picture of the report's head"
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="of compiled code: also what changed since this record",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="show nothing; only say on stderr whether the record is incomplete",
    )
    parser.add_argument(
        "--width", type=_columns, metavar="N", help="columns of the terminal report"
    )
    return parser


def _columns(text: str) -> int:
    if not text.isdecimal() or not 20 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of columns from 20 to 10000")
    return int(text)


def _write(record: Record, options: argparse.Namespace) -> None:
    """Write the forms that were asked for; files first, so that a closed pipe loses none."""
    if options.check:
        return
    compiled = record.header.suite == "compile"
    against = None if options.against is None else _against(record, options.against)
    if options.junit is not None:
        if compiled:
            raise RecordError(
                f"{shown(record.path)}: a record of nox -s compile has no form as JUnit; use "
                "--markdown"
            )
        _save(options.junit, render_junit(record))
    if options.svg is not None:
        outline = render_resources_outline if compiled else render_outline
        _save(options.svg, render_svg(record, outline).encode())
    markdown = render_resources_markdown if compiled else render_markdown
    if options.markdown is not None and options.markdown != "-":
        _save(Path(options.markdown), markdown(record).encode())
    if options.markdown == "-":
        text = markdown(record)
    else:
        text = _terminal(record, options.width, against)
    sys.stdout.write(text)
    sys.stdout.flush()


def _against(record: Record, path: Path) -> Record:
    """The record that one of compiled code is shown against. Raises RecordError."""
    other = read(path)
    for each in (record, other):
        if each.header.suite != "compile":
            raise RecordError(
                f"{shown(each.path)}: a record of nox -s {each.header.suite}; --against takes two "
                "of nox -s compile"
            )
    return other


def _terminal(record: Record, width: int | None, against: Record | None) -> str:
    if width is None and not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdecimal():
        width = _WIDTH_OF_NO_TERMINAL
    console = Console(width=width)
    # Captured, not printed: rich ends the process with status 1 at a broken pipe.
    with console.capture() as captured:
        if record.header.suite == "compile":
            render_resources(record, console, against=against)
        else:
            render(record, console)
    return captured.get()


def _save(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise RecordError(
            f"{shown(path)}: the report can't be written ({error.strerror}); name another path"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
