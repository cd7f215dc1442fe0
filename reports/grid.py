"""Figures in columns on a terminal, under the name of what they are of, which has its own line.

No figure is ever cut or folded: where a console is too narrow, the columns that matter least are
left out, and a line says which. Texts are shown literally.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from reports.tables import Folded, cut, indented

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

_GAP = "  "
_INDENT = "  "
_BARS = " ▏▎▍▌▋▊▉█"
_SPARKS = "▁▂▃▄▅▆▇█"
_ASCII_SPARKS = "_.:-=+*#"

Styled = tuple[str, str]  # a text and its style
Group = tuple[str, "Sequence[Sequence[Styled]]"]  # what its rows are of, and the rows


@dataclass(frozen=True, slots=True)
class GridColumn:
    """A column; of those with a rank above 0 the greatest is left out first.

    A column with nothing but "-" is always left out, and isn't told of.
    """

    title: str
    rank: int
    left: bool = False


def print_grid(console: Console, columns: Sequence[GridColumn], groups: Sequence[Group]) -> None:
    """Print groups of rows; each row has a cell for each column, the first its name."""
    rows = [row for _, group in groups for row in group]
    if not rows:
        return
    names = max(20, console.width // 3)  # a longer name has a line of its own
    columns = [replace(each, title=plain(console, each.title)) for each in columns]
    widths = [
        max(cell_len(title.title), *(_width(row[place][0], names, place) for row in rows))
        for place, title in enumerate(columns)
    ]
    told = [
        place
        for place in range(len(columns))
        if not columns[place].rank or any(row[place][0] not in {"", "-"} for row in rows)
    ]
    kept = list(told)
    while _total(kept, widths) > console.width:
        last = max(kept, key=lambda place: (columns[place].rank, place))
        if not columns[last].rank:
            break
        kept.remove(last)
    head = [_aligned(columns[place].title, widths[place], columns[place]) for place in kept]
    console.print(Text(_INDENT + _GAP.join(head).rstrip(), style="italic"))
    rule = "-" if console.options.ascii_only else "─"
    console.print(Text(rule * min(_total(kept, widths), console.width), style="dim"))
    for label, group in groups:
        if label:
            lines = Folded(cut(label)).lines(console.width - len(_INDENT))
            console.print(Text(f"\n{_INDENT}".join(lines), style="bold", overflow="fold"))
        pieces = [piece for row in group for piece in _pieces(row, columns, kept, widths)]
        console.print(Text.assemble(*pieces[:-1]))
    left_out = [columns[place].title for place in told if place not in kept]
    if left_out:
        told_of = f"Left out at {console.width} columns: {', '.join(left_out)}"
        indented(console, told_of, style="dim")


def bar(console: Console, value: float | None, width: int) -> str:
    """A bar of `width` columns for a share of 0 to 1; spaces where there is none."""
    if value is None or not value > 0:
        return " " * width
    eighths = round(8 * width * min(value, 1.0))
    if console.options.ascii_only:
        return ("#" * round(eighths / 8)).ljust(width)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + _BARS[rest] * (rest > 0)).ljust(width)


def sparkline(console: Console, values: Sequence[float | None], width: int, *, least: float) -> str:
    """Means of `width` stretches of the values as blocks, the lowest of them to the highest.

    A stretch in which nothing was read is a space. The blocks span `least` at the least, so that
    what is steady looks so.
    """
    stretches: list[float | None] = []
    columns = min(width, len(values))
    for place in range(columns):
        part = values[place * len(values) // columns : (place + 1) * len(values) // columns]
        known = [value for value in part if value is not None and abs(value) < float("inf")]
        stretches.append(sum(known) / len(known) if known else None)
    known = [value for value in stretches if value is not None]
    if not known:
        return ""
    middle, span = (min(known) + max(known)) / 2, max(max(known) - min(known), least)
    blocks = _ASCII_SPARKS if console.options.ascii_only else _SPARKS
    highest = len(blocks) - 1
    return "".join(
        " " if value is None else blocks[round(highest * (0.5 + (value - middle) / span))]
        for value in stretches
    )


def plain(console: Console, text: str) -> str:
    """The text with its signs spelled in ASCII for a terminal that has no more."""
    return text.replace("±", "+-").replace("°C", "C") if console.options.ascii_only else text


def _width(text: str, names: int, place: int) -> int:
    width = cell_len(text)
    return width if place or width <= names else 0


def _total(kept: Sequence[int], widths: Sequence[int]) -> int:
    return len(_INDENT) + sum(widths[place] for place in kept) + len(_GAP) * (len(kept) - 1)


def _pieces(
    row: Sequence[Styled],
    columns: Sequence[GridColumn],
    kept: Sequence[int],
    widths: Sequence[int],
) -> Iterator[Styled]:
    """The row's line, piece by piece, its end last."""
    yield _INDENT, ""
    for place in kept:
        cell, style = row[place]
        if place == 0 and cell_len(cell) > widths[0]:
            yield f"{cell}\n", style
            cell = ""
            yield _INDENT, ""
        if place:
            yield _GAP, ""
        yield _aligned(cell, widths[place], columns[place]), style
    yield "\n", ""


def _aligned(text: str, width: int, column: GridColumn) -> str:
    spaces = " " * max(0, width - cell_len(text))
    return text + spaces if column.left else spaces + text
