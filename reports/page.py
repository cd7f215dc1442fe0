"""One HTML file that holds a whole report: tables that sort, pictures, dark and light, no network.

What it shows is plain data: a `Page` of `Part`s, of tables and figures. Every text is escaped here,
and a policy in the page's head lets nothing run or load but the style and the script below it, by
their hashes. Without the script the page reads the same; it only doesn't sort.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from reports.phrases import count
from reports.record import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Tone = Literal["", "good", "bad", "doubtful", "dim"]
Kind = Literal["text", "number", "share", "command"]

_STYLE = Path(__file__).with_name("page.css")
_SCRIPT = Path(__file__).with_name("page.js")
_LONGEST = 600  # characters of a text: a name is whole, a damaged record's megabyte is cut
_LONGEST_COMMAND = 10_000  # characters: it is to be copied whole
_SHORT = 44  # characters that a cell has on one line; a longer text may take several
_AT_ONCE = 300  # rows: a browser takes seconds to lay out thousands, and sorts them unseen
_AS_IT_IS = re.compile("[^&<>\"']*").fullmatch  # in HTML
_SEARCHED = 12  # rows from which a table is worth searching


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column. `note` explains the title to who points at it, and to a screen reader.

    text     sorted as words are, numbers in them by their value
    number   sorted by the cell's value, to the right
    share    a number whose cell has a bar as long as its value, 0 to 1
    command  to be copied
    """

    title: str
    kind: Kind = "text"
    note: str = ""


class Cell(NamedTuple):
    """What a cell shows, and the number that it sorts by; one without sorts last."""

    text: str
    value: float | None = None
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of as many cells as there are columns; a plain string is a cell without a number."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell | str]]
    note: str = ""
    folded: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture: `draw` returns SVG in which each id begins with the prefix that it is given.

    What it returns stands in the page as it is: it comes from `reports.vector`.
    """

    title: str
    draw: Callable[[str], str]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A record's, or a comparison's, share of a page: the verdict first, then what is behind it."""

    title: str
    verdict: str
    tone: Tone
    sentence: str
    notes: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    items: Sequence[Table | Figure] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """Parts, one after another, under a title."""

    title: str
    parts: Sequence[Part]


def render_page(page: Page) -> str:
    """The page as one HTML document, which needs no other file."""
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
            f"<title>{escaped(page.title)}</title>\n<style>{style}</style>\n</head>\n<body>\n",
            f"<header><h1>{escaped(page.title)}</h1>{_contents(page)}</header>\n<main>\n",
            *(text for number, part in enumerate(page.parts) for text in _part(part, number)),
            f"</main>\n<script>{script}</script>\n</body>\n</html>\n",
        )
    )


def escaped(text: str, longest: int = _LONGEST) -> str:
    """`text` as HTML shows it literally, cut where it is longer than anyone reads."""
    if len(text) <= longest and text.isprintable():  # as nearly all are
        return text if _AS_IT_IS(text) else html.escape(text)
    kept = text[:longest]
    more = f"... ({len(text) - len(kept):,} more characters)" if len(kept) < len(text) else ""
    return html.escape(shown(kept) + more)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _contents(page: Page) -> str:
    if len(page.parts) < 2:
        return ""
    links = "".join(
        f'<li><a href="#part{number}">{escaped(part.title)}</a>: '
        f'<span class="{part.tone}">{escaped(part.verdict)}</span></li>'
        for number, part in enumerate(page.parts)
    )
    return f"<nav><ol>{links}</ol></nav>"


def _part(part: Part, number: int) -> Iterator[str]:
    yield f'<section id="part{number}">\n<h2>{escaped(part.title)}</h2>\n'
    yield f'<p class="verdict"><strong class="{part.tone}">{escaped(part.verdict)}</strong> '
    yield f"{escaped(part.sentence)}</p>\n"
    if part.notes:
        yield "<ul>" + "".join(f"<li>{escaped(note)}</li>" for note in part.notes) + "</ul>\n"
    if part.facts:
        pairs = (f"<dt>{escaped(label)}</dt><dd>{escaped(text)}</dd>" for label, text in part.facts)
        yield f"<dl>{''.join(pairs)}</dl>\n"
    for place, item in enumerate(part.items):
        if isinstance(item, Table):
            yield from _table(item) if item.rows else ()
        else:
            yield f"<figure><h3>{escaped(item.title)}</h3>\n"
            yield f'<div class="picture">{item.draw(f"p{number}f{place}-")}</div>\n'
            yield f"<figcaption>{escaped(item.note)}</figcaption></figure>\n"
    yield "</section>\n"


def _table(table: Table) -> Iterator[str]:
    rows = count(len(table.rows), "row")
    title = f"{escaped(table.title)} <small>{rows}</small>"
    opening = "<details>" if table.folded else "<details open>"
    yield f"{opening}<summary><h3>{title}</h3></summary>\n"
    if table.note:
        yield f"<p>{escaped(table.note)}</p>\n"
    searched = ' class="searched"' if len(table.rows) >= _SEARCHED else ""
    yield f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(table.title)}">'
    yield f"<table{searched}><thead><tr>"
    for column in table.columns:
        note = f' title="{escaped(column.note)}"' if column.note else ""
        yield f'<th scope="col" class="{column.kind}"{note}>{escaped(column.title)}</th>'
    yield "</tr></thead>\n<tbody>\n"
    kinds = [column.kind for column in table.columns]
    for number, row in enumerate(table.rows):
        if number == _AT_ONCE:
            yield "</tbody>\n<tbody hidden>\n"
        cells = (_cell(cell, kind) for cell, kind in zip(row, kinds, strict=True))
        yield f"<tr>{''.join(cells)}</tr>\n"
    yield "</tbody></table></div></details>\n"


def _cell(cell: Cell | str, kind: Kind) -> str:
    text, value, tone = (cell, None, "") if isinstance(cell, str) else cell
    text = escaped(text, _LONGEST_COMMAND if kind == "command" else _LONGEST)
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
                f'aria-hidden="true"><rect width="{filled:.1f}" height="6"/></svg>{text}'
            )
    return f"<td{attributes}>{text}</td>"
