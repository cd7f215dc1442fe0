"""One HTML file that holds a whole report: tables that sort, pictures, dark and light, no network.

Every text is escaped here, and a policy in the page's head lets nothing run or load but the style
and the script below it, by their hashes. Without the script the page reads the same; it only
doesn't sort.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_workbench.reports.document.model import Figure, Table, trend_heights
from kernel_workbench.reports.phrases import LONGEST, count, cut

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kernel_workbench.reports.document.model import Cell, Document, Kind, ReportPart

_STYLE = Path(__file__).with_name("page.css")
_SCRIPT = Path(__file__).with_name("page.js")
_LONGEST_COMMAND = 10_000  # characters: it is to be copied whole
_SHORT = 44  # characters that a cell has on one line; a longer text may take several
_AT_ONCE = 300  # rows: a browser takes seconds to lay out thousands, and sorts them unseen
_TALL = 40  # rows up to which a table isn't scrolled in a box of its own
_SEARCHED = 12  # rows from which a table is worth searching


def render_html(document: Document) -> str:
    """Return the page as one HTML document, which needs no other file."""
    style, script = _STYLE.read_text(encoding="utf-8"), _SCRIPT.read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return "".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="color-scheme" content="light dark">\n',
            '<meta name="referrer" content="no-referrer">\n',
            f"<title>{escaped(document.title)}</title>\n<style>{style}</style>\n</head>\n<body>\n",
            f"<header><h1>{escaped(document.title)}</h1>{_contents(document)}</header>\n<main>\n",
            *(text for number, part in enumerate(document.parts) for text in _part(part, number)),
            f"</main>\n<script>{script}</script>\n</body>\n</html>\n",
        )
    )


def escaped(text: str, longest: int = LONGEST) -> str:
    """Return `text` as HTML shows it literally, cut where it is longer than anyone reads."""
    return html.escape(cut(text, longest))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _contents(document: Document) -> str:
    """Links to the parts, with their verdicts, and below each to what it has."""
    links = []
    for number, part in enumerate(document.parts):
        items = "".join(
            f'<li><a href="#p{number}i{place}">{escaped(item.title)}</a></li>'
            for place, item in enumerate(part.items)
            if isinstance(item, Figure) or item.rows
        )
        links.append(
            f'<li><a href="#part{number}">{escaped(part.title or document.title)}</a>: '
            f'<span class="{part.tone}">{escaped(part.verdict)}</span><ul>{items}</ul></li>'
        )
    opened = "<details open>" if len(links) < 4 else "<details>"
    return f"<nav>{opened}<summary>Contents</summary><ol>{''.join(links)}</ol></details></nav>"


def _part(part: ReportPart, number: int) -> Iterator[str]:
    yield f'<section id="part{number}">\n'
    yield f"<h2>{escaped(part.title)}</h2>\n" if part.title else ""
    yield f'<p class="verdict"><strong class="{part.tone}">{escaped(part.verdict)}</strong> '
    yield f"{escaped(part.sentence)}</p>\n"
    if part.notes:
        yield "<ul>" + "".join(f"<li>{escaped(note)}</li>" for note in part.notes) + "</ul>\n"
    yield _facts(part.facts)
    if part.environment:
        facts = _facts(part.environment)
        yield f"<details><summary>Where and how it was run</summary>{facts}</details>\n"
    tables = [item for item in part.items if isinstance(item, Table) and item.rows]
    # A reader opens what a terminal shows by --details alone: a browser lays it out only then.
    opened = [table for table in tables if table.level == "summary" and not table.folded]
    opened = opened or tables[:1]
    for place, item in enumerate(part.items):
        name = f"p{number}i{place}"
        if isinstance(item, Table):
            yield from (
                _table(item, name, opened=any(item is table for table in opened))
                if item.rows
                else ()
            )
        else:
            yield f'<figure id="{name}"><h3>{escaped(item.title)}</h3>\n'
            about = f'tabindex="0" role="region" aria-label="{escaped(item.title)}"'
            yield f'<div class="picture" {about}>{item.draw(f"p{number}f{place}-")}</div>\n'
            yield f"<figcaption>{escaped(item.note)}</figcaption></figure>\n"
    yield "</section>\n"


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    pairs = (f"<dt>{escaped(label)}</dt><dd>{escaped(text)}</dd>" for label, text in facts)
    return f"<dl>{''.join(pairs)}</dl>\n" if facts else ""


def _table(table: Table, name: str, *, opened: bool) -> Iterator[str]:
    rows = count(len(table.rows), "row")
    title = f"{escaped(table.title)} <small>{rows}</small>"
    yield f'<details id="{name}"{" open" * opened}><summary><h3>{title}</h3></summary>\n'
    if table.note:
        yield f"<p>{escaped(table.note)}</p>\n"
    searched = ' class="searched"' if len(table.rows) >= _SEARCHED else ""
    tall = " long-table" if len(table.rows) > _TALL else ""
    about = f'tabindex="0" role="region" aria-label="{escaped(table.title)}"'
    yield f'<div class="scroll{tall}" {about}>'
    yield f"<table{searched}><thead><tr>"
    places = table.places
    columns = [table.columns[place] for place in places]
    for column in columns:
        note = f' title="{escaped(column.note)}"' if column.note else ""
        yield f'<th scope="col" class="{column.kind}"{note}>{escaped(column.title)}</th>'
    yield "</tr></thead>\n<tbody>\n"
    for number, row in enumerate(table.rows):
        if number == _AT_ONCE:
            yield "</tbody>\n<tbody hidden>\n"
        cells = (_cell(row[place], table.columns[place].kind) for place in places)
        yield f"<tr>{''.join(cells)}</tr>\n"
    yield "</tbody></table></div></details>\n"


def _cell(cell: Cell, kind: Kind) -> str:
    text, value, tone, trend = cell
    text = escaped(text, _LONGEST_COMMAND if kind == "command" else LONGEST)
    if kind == "command":
        return f'<td class="long"><code>{text}</code></td>' if text else "<td></td>"
    width = "n" if kind != "text" else "long" if len(text) > _SHORT else ""
    names = f"{width} {tone}" if width and tone else width or tone
    attributes = f' class="{names}"' if names else ""
    if value is not None and math.isfinite(value):
        attributes += f' data-v="{value:.9g}"'
        if kind == "share":
            # An attribute of SVG, where the policy lets no style of an element's own through.
            filled = 100 * min(max(value, 0.0), 1.0)
            text = (
                '<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" '
                f'aria-hidden="true"><rect width="{filled:.1f}" height="6"/></svg>'
                f"<span>{text}</span>"
            )
    if kind == "trend" and trend:
        text = _line(trend) + text
    return f"<td{attributes}>{text}</td>"


def _line(trend: Sequence[float | None]) -> str:
    """Return a small line over time, level where its values differ by little."""
    points = " ".join(
        f"{100 * place / max(len(trend) - 1, 1):.1f},{19 - 18 * height:.1f}"
        for place, height in enumerate(trend_heights(trend))
        if height is not None
    )
    return (
        '<svg class="trend" viewBox="0 0 100 20" preserveAspectRatio="none" aria-hidden="true">'
        f'<polyline points="{points}"/></svg>'
    )
