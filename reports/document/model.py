"""The model of a report, whatever form it takes: parts, tables, figures. Plain data.

A view makes a document of a record; `terminal`, `html`, `markdown` and `svg` show any document.
Texts are as the record has them: each form spells out, escapes and cuts what it must.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal, NamedTuple

Tone = Literal["", "good", "bad", "doubtful", "dim", "strong"]
Kind = Literal["text", "number", "share", "trend", "command"]
Level = Literal["summary", "details", "page"]
_STEADY = 0.1  # of the highest value: a line over time that moves less looks level


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column.

    Attributes:
        kind: "text" sorts as words do, numbers in them by their value; "number" stands to the
            right, sorts by the cell's value and is never cut or folded; "share" is a number with a
            bar as long as its value, 0 to 1; "trend" shows the cell's `trend` as a line, or its
            text in a form without lines; "command" is to be copied.
        note: explains the title to a reader who points at it, and to a screen reader.
        rank: on a narrow terminal columns are left out, the highest rank first; 0 is never left
            out. Where those of rank 0 don't fit side by side, the others come as a further table. A
            column with a rank that holds nothing but "" and "-" is left out of every form.
        group: in a terminal its text heads the rows that have it, on a line of its own.
        below: in a terminal its text has lines of its own below its row; a command always has.
    """

    title: str
    kind: Kind = "text"
    note: str = ""
    _: KW_ONLY
    rank: int = 0
    group: bool = False
    below: bool = False

    @property
    def is_figure(self) -> bool:
        """True if it stands to the right and may not be folded."""
        return self.kind in {"number", "share"}


class Cell(NamedTuple):
    """The text of a cell, and the number that it sorts by; a cell without a number sorts last."""

    text: str
    value: float | None = None
    tone: Tone = ""
    trend: Sequence[float | None] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of as many cells as there are columns.

    A table without rows isn't shown.

    Attributes:
        level: "summary" is in every form; "details" is in a terminal by --details alone, and
            closed in a page; "page" is in the page alone: every row of a record.
        folded: closed in a page until it is opened; in a terminal shown where it has room for all
            of it.
        least: rows that a terminal shows without --details even where a screen has no room for
            them.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    _: KW_ONLY
    level: Level = "summary"
    folded: bool = False
    least: int = 0

    @property
    def places(self) -> list[int]:
        """The columns that a form shows: all but those that may be left out and hold nothing."""
        return [
            place
            for place, column in enumerate(self.columns)
            if not column.rank or any(row[place].text not in {"", "-"} for row in self.rows)
        ]


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture of a page: `draw` returns SVG whose ids begin with the prefix that it is given.

    A page shows the SVG unescaped: `reports.document.svg` makes it.
    """

    title: str
    draw: Callable[[str], str]
    note: str = ""


@dataclass(frozen=True, slots=True)
class ReportPart:
    """A record's, or a comparison's, share of a document: the verdict, then what is behind it.

    Attributes:
        title: empty of one that its document's title heads.
        notes: what a reader must know besides the verdict, always shown.
        facts: (label, text), always shown.
        environment: (label, text): where and how it was run; in a terminal by --details alone.
        record: the record's path; a terminal names it before its last lines.
        closing: what stands beside the verdict in a terminal's last lines, as a command to look
            closer; without it the verdict isn't repeated.
    """

    title: str
    verdict: str
    tone: Tone
    sentence: str
    notes: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    items: Sequence[Table | Figure] = ()
    _: KW_ONLY
    environment: Sequence[tuple[str, str]] = ()
    record: str = ""
    closing: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """Parts, one after another, under a title."""

    title: str
    parts: Sequence[ReportPart]


def trend_heights(values: Sequence[float | None]) -> list[float | None]:
    """Return the height of each value in a line over time, 0 to 1; None where it isn't finite.

    The line reaches from bottom to top only if its values differ by a tenth or more: one that
    moves by 0.1 % is level to the eye.
    """
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return [None] * len(values)
    least, most = min(finite), max(finite)
    span = max(most - least, _STEADY * max(abs(least), abs(most))) or 1.0
    return [
        None
        if value is None or not math.isfinite(value)
        else 0.5 + (value - (least + most) / 2) / span
        for value in values
    ]
