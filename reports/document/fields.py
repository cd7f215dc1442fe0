"""A field: a column of a table, and what its cell shows of an item. Every form shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kernel_workbench.reports.document.model import Cell, Column, Kind, Level, Table, Tone
from kernel_workbench.reports.phrases import whole

Item = TypeVar("Item")
Whole = TypeVar("Whole")
Number = TypeVar("Number", int, float)
Field = tuple[Column, Callable[[Item], Cell | str]]


def text(
    title: str,
    cell: Callable[[Item], Cell | str],
    note: str = "",
    *,
    rank: int = 0,
    group: bool = False,
    below: bool = False,
) -> Field[Item]:
    """Return a field of words; note, rank, group and below are those of `Column`."""
    return Column(title, note=note, rank=rank, group=group, below=below), cell


def number(
    title: str,
    value: Callable[[Item], Number | None],
    form: Callable[[Number], str] = whole,
    note: str = "",
    *,
    rank: int = 0,
    kind: Kind = "number",
    tone: Callable[[Item], Tone] = lambda _: "",
    missing: str = "-",
) -> Field[Item]:
    """Return a field of a number as `form` puts it; `missing` where there is none."""

    def cell(item: Item) -> Cell:
        result = value(item)
        return Cell(missing) if result is None else Cell(form(result), result, tone(item))

    return Column(title, kind, note, rank=rank), cell


def command(title: str, of: Callable[[Item], str]) -> Field[Item]:
    """Return a field of a command that is to be copied."""
    return Column(title, "command"), of


def of_part(field: Field[Item], part_of: Callable[[Whole], Item]) -> Field[Whole]:
    """Return a field of items by the same field of a part of each item."""
    column, cell = field
    return column, lambda item: cell(part_of(item))


def only(where: Callable[[Item], bool], fields: Iterable[Field[Item]]) -> list[Field[Item]]:
    """Return the fields with empty cells for items for which `where` returns False."""

    def where_true(cell: Callable[[Item], Cell | str]) -> Callable[[Item], Cell | str]:
        return lambda item: cell(item) if where(item) else ""

    return [(column, where_true(cell)) for column, cell in fields]


def table_of(
    title: str,
    fields: Sequence[Field[Item]],
    items: Iterable[Item],
    note: str = "",
    *,
    level: Level = "summary",
    folded: bool = False,
    least: int = 0,
) -> Table:
    """Return a table with a row for each item.

    Args:
        fields: the columns, each with a function that returns an item's cell, or its text alone.
        note: explains the table below its title.
        level, folded, least: as of `Table`.

    Example:
        >>> fields = [text("kernel", lambda row: row.kernel), number("us", lambda row: row.us)]
        >>> table_of("Slow rows", fields, [row for row in rows if row.us > 100])
    """
    rows = [[_cell(show(item)) for _, show in fields] for item in items]
    columns = [column for column, _ in fields]
    return Table(title, columns, rows, note, level=level, folded=folded, least=least)


def _cell(shown: Cell | str) -> Cell:
    return Cell(shown) if isinstance(shown, str) else shown


def meanings(tables: Iterable[Table]) -> Table:
    """Return a table of what columns mean, for readers who can't point at a title."""
    shown = (table.columns[place] for table in tables for place in table.places)
    notes = {column.title: column.note for column in shown if column.note}
    fields: list[Field[str]] = [text("column", str), text("meaning", lambda title: notes[title])]
    return table_of("Meaning of the columns", fields, notes, level="details", folded=True)
