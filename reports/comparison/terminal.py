"""A page in the terminal: parts, their verdicts, and tables that fit its width.

A table of many rows shows its first ones; a folded one, what it holds. Columns of figures that
don't fit come as further tables with the rows' names again, so that no figure is cut.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.padding import Padding
from rich.text import Text

from reports.page import Cell, Table
from reports.phrases import count
from reports.record import shown
from reports.tables import BAD, DOUBTFUL, GAP, GOOD, Folded, heading, labelled, new_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from reports.page import Column, Page, Part, Tone

_STYLES: dict[Tone, str] = {
    "": "",
    "good": "green",
    "bad": "bold red",
    "doubtful": "yellow",
    "dim": "dim",
}
_VERDICTS: dict[Tone, str] = {
    "": "bold reverse",
    "good": GOOD,
    "bad": BAD,
    "doubtful": DOUBTFUL,
    "dim": "bold reverse",
}
_MOST_ROWS = 40
_MOST_FOLDED = 12  # rows up to which a folded table is shown all the same
_LONGEST = 1_000  # characters of a cell


def render_page_terminal(page: Page, console: Console, *, every_row: bool = False) -> None:
    """Print the page; every_row: tables whole, however long."""
    for number, part in enumerate(page.parts):
        if number:
            console.print()
        _part(part, console, every_row=every_row)


def _part(part: Part, console: Console, *, every_row: bool) -> None:
    if part.title:
        console.print(Text(shown(part.title), style="bold"))
    console.print(
        Text.assemble((f" {part.verdict} ", _VERDICTS[part.tone]), f" {shown(part.sentence)}")
    )
    for note in part.notes:
        console.print(Padding(Text(shown(note), overflow="fold"), (0, 0, 0, 2)))
    if part.facts:
        console.print()
        labelled(console, part.facts)
    for item in part.items:
        if isinstance(item, Table) and item.rows:
            _table(item, console, every_row=every_row)


def _table(table: Table, console: Console, *, every_row: bool) -> None:
    rows = count(len(table.rows), "row")
    if table.folded and len(table.rows) > _MOST_FOLDED and not every_row:
        heading(console, f"{shown(table.title)}: {rows}, shown by --all")
        return
    heading(console, f"{shown(table.title)}: {rows}")
    most = len(table.rows) if every_row else _MOST_ROWS
    for place, columns in enumerate(_fitting(table, table.rows[:most], console.width)):
        if place:
            console.print()
        console.print(_columns_of(table, columns, table.rows[:most]))
    if len(table.rows) > most:
        console.print(
            Text(f"{len(table.rows) - most:,} more not shown; --all shows them", style="dim")
        )
    if table.note:
        console.print()
        console.print(Text(shown(table.note), style="dim"))


def _columns_of(
    table: Table, places: Sequence[int], rows: Sequence[Sequence[Cell | str]]
) -> object:
    drawn = new_table()
    for place in places:
        column = table.columns[place]
        title = Text(shown(column.title), overflow="fold")
        if _is_figure(column):
            title = Text(_wrapped(column.title, _widest(place, table, rows)))
            drawn.add_column(title, justify="right", no_wrap=True)
        else:
            drawn.add_column(title, overflow="fold")
    for row in rows:
        drawn.add_row(*(_drawn(row[place], table.columns[place]) for place in places))
    return drawn


def _drawn(cell: Cell | str, column: Column) -> Text | Folded:
    whole = Cell(cell) if isinstance(cell, str) else cell
    told, style = shown(whole.text[:_LONGEST]), _STYLES[whole.tone]
    return Text(told, style=style) if _is_figure(column) else Folded(told, style)


def _is_figure(column: Column) -> bool:
    return column.kind in {"number", "share"}


def _fitting(table: Table, rows: Sequence[Sequence[Cell | str]], width: int) -> Iterator[list[int]]:
    """The places of the columns that come together: the rows' names, and others as they fit."""
    names = list(takewhile(lambda place: not _is_figure(table.columns[place]), _places(table)))
    needed = {place: _needed(place, table, rows) for place in _places(table)}
    room = width + GAP - sum(needed[place] for place in names)
    together: list[int] = []
    for place in _places(table)[len(names) :]:
        if together and sum(needed[each] for each in (*together, place)) > room:
            yield names + together
            together = []
        together.append(place)
    yield names + together


def _places(table: Table) -> range:
    return range(len(table.columns))


def _needed(place: int, table: Table, rows: Sequence[Sequence[Cell | str]]) -> int:
    """Columns of the terminal that a column takes at the least: a figure's aren't folded."""
    widest = _widest(place, table, rows)
    return (widest if _is_figure(table.columns[place]) else min(_NAME, widest)) + GAP


def _wrapped(title: str, width: int) -> str:
    """The title's words on as many lines as the figures below it make it take."""
    lines = [""]
    for word in shown(title).split():
        if lines[-1] and cell_len(f"{lines[-1]} {word}") > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


_TITLE = 12  # up to which a title isn't wrapped, however narrow its figures
_NAME = 19  # columns in which a folded name still reads


def _widest(place: int, table: Table, rows: Sequence[Sequence[Cell | str]]) -> int:
    """A figure's column is as wide as its widest cell, and as the longest word of its title."""
    texts = (cell if isinstance(cell, str) else cell.text for cell in (row[place] for row in rows))
    title = table.columns[place].title
    words = max(map(cell_len, title.split()), default=0)
    words = max(words, min(cell_len(title), _TITLE))
    return max(words, max((cell_len(shown(each)) for each in texts), default=0))
