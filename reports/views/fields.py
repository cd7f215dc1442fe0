"""Fields of words and of numbers, tables of them, and how many of these fit a screen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from reports.document.model import Cell, Column, Item, Table, table_of

if TYPE_CHECKING:
    from reports.document.model import Field, Kind, Level, Tone

Number = TypeVar("Number", int, float)

_SCREEN = 32  # lines that tables may take of 40: the verdict stands above them and below
_COLUMNS = 100  # at which lines are counted


def text(
    title: str,
    cell: Callable[[Item], Cell | str],
    note: str = "",
    *,
    rank: int = 0,
    group: bool = False,
    below: bool = False,
) -> Field[Item]:
    """A field of words; note, rank, group and below as a column's."""
    return Column(title, note=note, rank=rank, group=group, below=below), cell


def number(
    title: str,
    value: Callable[[Item], Number | None],
    told: Callable[[Number], str],
    note: str = "",
    *,
    rank: int = 0,
    kind: Kind = "number",
    tone: Callable[[Item], Tone] = lambda _: "",
    missing: str = "-",
) -> Field[Item]:
    """A field of a number as `told` puts it; `missing` where there is none."""

    def cell(item: Item) -> Cell:
        found = value(item)
        return Cell(missing) if found is None else Cell(told(found), found, tone(item))

    return Column(title, kind, note, rank=rank), cell


def only(where: Callable[[Item], bool], fields: Iterable[Field[Item]]) -> list[Field[Item]]:
    """The fields, empty of an item of which it doesn't hold."""

    def held(cell: Callable[[Item], Cell | str]) -> Callable[[Item], Cell | str]:
        return lambda item: cell(item) if where(item) else ""

    return [(column, held(cell)) for column, cell in fields]


def whole(value: float) -> str:
    """`1,234`."""
    return f"{value:,.0f}"


def listed(
    title: str,
    fields: Sequence[Field[Item]],
    items: Iterable[Item],
    note: str = "",
    *,
    level: Level = "summary",
    folded: bool = False,
) -> Table:
    """A table of the items, without the columns that have a rank and hold nothing."""
    table = table_of(title, items, fields, note, level=level, folded=folded)
    held = [
        place
        for place, column in enumerate(table.columns)
        if not column.rank or any(_words(row[place]) not in {"", "-"} for row in table.rows)
    ]
    return replace(
        table,
        columns=[table.columns[place] for place in held],
        rows=[[row[place] for place in held] for row in table.rows],
    )


def meanings(tables: Iterable[Table]) -> Table:
    """What the columns of these tables mean, for who can't point at their titles."""
    notes = {each.title: each.note for table in tables for each in table.columns if each.note}
    columns = (Column("column"), Column("meaning"))
    return Table("What columns mean", columns, [*notes.items()], level="details", folded=True)


def fitted(above: Iterable[Table], tables: Iterable[Table]) -> Iterator[Table]:
    """Of the tables as much as a screen has room for below those `above`; the rest by --details.

    The first that doesn't fit is cut after a group of rows.
    """
    left = _SCREEN - sum(map(_lines, above))
    for table in tables:
        if table.level != "summary":
            yield table
            continue
        left -= _lines(table)
        most, over = len(table.rows), -left
        if over > 0:
            over += 2  # lines that say which columns and how many rows aren't there
            for rows, lines in reversed(list(_groups(table))):
                most, over = most - rows, over - lines
                if over <= 0:
                    break
        yield replace(table, most=most) if most else replace(table, level="details")


def _lines(table: Table) -> int:
    """That the table takes: a blank one, title, head, rule, rows and note."""
    if not table.rows:
        return 0
    rows = sum(lines for _, lines in _groups(table))
    return 4 + rows + math.ceil(len(table.note) / _COLUMNS)


def _groups(table: Table) -> Iterator[tuple[int, int]]:
    """Of each group of rows their number, and the lines that they take with their heading."""
    heads = [place for place, each in enumerate(table.columns) if each.group]
    below = [
        place for place, each in enumerate(table.columns) if each.below or each.kind == "command"
    ]

    def heading(row: Sequence[Cell | str]) -> object:
        return [row[place] for place in heads] or id(row)

    for _, group in groupby(table.rows, heading):
        rows = list(group)
        lines = sum(bool(_words(row[place])) for row in rows for place in below)
        yield len(rows), len(rows) + bool(heads) + lines


def _words(cell: Cell | str) -> str:
    return cell if isinstance(cell, str) else cell.text
