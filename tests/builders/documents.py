"""A document's texts, by the titles of table and column."""

from __future__ import annotations

import io

from rich.console import Console

from kernel_workbench.reports.document.markdown import render_markdown
from kernel_workbench.reports.document.model import Document, ReportPart, Table
from kernel_workbench.reports.record import Record
from kernel_workbench.reports.report import part_of, print_report


def terminal(
    record: Record,
    width: int = 120,
    *,
    details: bool = True,
    colour: bool = False,
    baseline: str | None = None,
) -> str:
    """Return the text for a terminal of `width` columns."""
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=colour, no_color=not colour)
    print_report(record, console, details=details, baseline=baseline)
    return file.getvalue()


def markdown_of(record: Record) -> str:
    """Return the report as Markdown."""
    return render_markdown(Document("", (part_of(record),)))


def tables_of(part: ReportPart) -> dict[str, Table]:
    """Return the part's tables by their titles."""
    return {item.title: item for item in part.items if isinstance(item, Table)}


def rows_of(part: ReportPart, title: str) -> list[dict[str, str]]:
    """Return the texts of a table's rows, by the titles of its columns."""
    table = tables_of(part)[title]
    titles = [column.title for column in table.columns]
    return [dict(zip(titles, (cell.text for cell in row), strict=True)) for row in table.rows]
