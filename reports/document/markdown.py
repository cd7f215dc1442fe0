"""A document as Markdown for a GitHub step summary, which holds 1 MiB.

Figures are left out, since a summary shows none, and so are tables that only a page has. Rows
that don't fit the budget are left out from the end of the last tables, and a last sentence says so.
Texts are escaped: none of them can be markup.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kernel_workbench.reports.document.model import Table
from kernel_workbench.reports.phrases import cut, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernel_workbench.reports.document.model import Document, ReportPart

# An underscore inside a word, as in row_persistent, means nothing to GitHub and stays readable.
_SPECIAL = re.compile(r"[\\`*{}\[\]<>#|~@&$!]|:(?=//)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_CLOSING_BYTES = 600  # the sentence that says what was left out, at most


def render_markdown(document: Document, budget_bytes: int = 1_000_000) -> str:
    """Render the document in at most `budget_bytes` bytes of UTF-8."""
    left = budget_bytes - _CLOSING_BYTES
    written: list[str] = []
    omitted = []
    for part in document.parts:
        head = "".join(_head(part))
        left -= len(head.encode())
        written.append(head)
        for table in part.items:
            if not isinstance(table, Table) or not table.rows or table.level == "page":
                continue
            opening, closing = _opening(table), "\n</details>\n\n" if table.folded else "\n"
            left -= len(opening.encode()) + len(closing.encode())
            kept = []
            for line in _rows(table):
                if len(line.encode()) > left:
                    break
                kept.append(line)
                left -= len(line.encode())
            if kept:
                written += [opening, *kept, closing]
            else:
                left += len(opening.encode()) + len(closing.encode())
            if len(kept) < len(table.rows):
                missing = f"{len(table.rows) - len(kept):,} of {len(table.rows):,}"
                omitted.append(f"{missing} rows of {escaped(table.title[:60])}")
    if omitted:
        named = ", ".join(omitted[:4]) + (", and of more tables" if len(omitted) > 4 else "")
        written.append(
            f"\nLeft out, to stay within {budget_bytes:,} bytes: {named}. The record has them "
            "all.\n"
        )
    # A budget below the heads' own size still holds.
    return "".join(written).encode()[: max(budget_bytes, 0)].decode(errors="ignore")


def _head(part: ReportPart) -> Iterator[str]:
    yield f"## {escaped(part.verdict)}: {escaped(part.sentence)}\n\n"
    for note in part.notes:
        yield f"- {escaped(note)}\n"
    yield "\n"
    facts = (*part.facts, *part.environment)
    if facts:
        yield "| run | |\n| --- | --- |\n"
        for label, text in facts:
            yield f"| {escaped(label)} | {escaped(text)} |\n"
        yield "\n"


def _opening(table: Table) -> str:
    title = escaped(table.title)
    opening = f"<details><summary>{title}</summary>\n\n" if table.folded else f"### {title}\n\n"
    if table.note:
        opening += f"{escaped(table.note)}\n\n"
    columns = [table.columns[place] for place in table.places]
    marks = ("---:" if column.is_figure else "---" for column in columns)
    heads = " | ".join(escaped(column.title) for column in columns)
    return f"{opening}| {heads} |\n| {' | '.join(marks)} |\n"


def _rows(table: Table) -> Iterator[str]:
    places = table.places
    for row in table.rows:
        cells = []
        for place in places:
            text = row[place].text
            as_code = table.columns[place].kind == "command" and text
            cells.append(_code(text) if as_code else escaped(text))
        yield f"| {' | '.join(cells)} |\n"


def _code(text: str) -> str:
    """Return a command as code, unless it has a pipe, a backtick or a backslash."""
    if re.search(r"[`|\\]", text):
        return escaped(text)
    return f"`{shown(text)}`"


def escaped(text: str) -> str:
    """Return a text, cut, with each character that means something to Markdown as an entity."""
    return _SPECIAL.sub(lambda found: f"&#{ord(found[0])};", cut(text))
