"""A record's report: the view of its suite, in any form; what suites print at a run's end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kernel_workbench.reports.document.model import Document
from kernel_workbench.reports.document.svg import standing_alone, terminal_picture
from kernel_workbench.reports.document.terminal import print_document
from kernel_workbench.reports.phrases import shown
from kernel_workbench.reports.record import RecordError
from kernel_workbench.reports.views.accuracy import accuracy_part
from kernel_workbench.reports.views.bench import bench_part
from kernel_workbench.reports.views.bench_pictures import roofline
from kernel_workbench.reports.views.compile import compile_part
from kernel_workbench.reports.views.profile import profile_part
from kernel_workbench.reports.views.search import search_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from kernel_workbench.reports.document.model import ReportPart
    from kernel_workbench.reports.record import Record


def part_of(
    record: Record,
    *,
    baseline: str | None = None,
    against: Record | None = None,
) -> ReportPart:
    """Return the record's part of a document.

    Args:
        baseline: of bench: also how long each kernel took of this one's time.
        against: of compile: also what changed since this record.

    Raises:
        RecordError: the record isn't of the option's suite.

    Example:
        >>> document = Document("Last night", [part_of(read(path)) for path in paths])
        >>> Path("page.html").write_text(render_html(document))
    """
    _refuse(record, baseline, against)
    suite = record.header.suite
    if suite == "accuracy":
        return accuracy_part(record)
    if suite == "compile":
        return compile_part(record, against)
    if suite == "profile":
        return profile_part(record)
    if suite == "search":
        return search_part(record)
    return bench_part(record, baseline)


def print_report(
    record: Record,
    console: Console,
    *,
    details: bool = False,
    baseline: str | None = None,
    against: Record | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Print the report of a record; the options as of `part_of`. Raises RecordError."""
    part = part_of(record, baseline=baseline, against=against)
    part = replace(part, notes=(*part.notes, *notes))
    print_document(Document("", (part,)), console, details=details)


def picture_of(record: Record, *, baseline: str | None = None) -> str:
    """Return a terminal's summary of the report as SVG. Raises RecordError."""

    def show(console: Console) -> None:
        print_report(record, console, baseline=baseline)

    return terminal_picture(show, record.header.command)


def roofline_svg(record: Record) -> str:
    """Return the roofline as a file of its own. Raises RecordError where the record has none."""
    figure = roofline(record)
    if figure is None:
        raise RecordError(
            f"{shown(record.path)}: no row is timed with its flops and bytes, so there is no "
            "roofline; --roofline takes a record of bench"
        )
    return standing_alone(figure.draw("roofline-"))


def _refuse(record: Record, baseline: str | None, against: Record | None) -> None:
    suite = record.header.suite
    if baseline is not None and suite != "bench":
        raise RecordError(
            f"{shown(record.path)}: a record of {suite}; --baseline takes one of bench"
        )
    for one_record in (record, against) if against is not None else ():
        if one_record.header.suite != "compile":
            raise RecordError(
                f"{shown(one_record.path)}: a record of {one_record.header.suite}; "
                "--against takes two of compile"
            )
