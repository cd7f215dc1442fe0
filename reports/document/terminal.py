"""Print a document to a terminal: verdicts, and rich's tables in the width that there is.

No figure is cut or folded. A table that is too wide loses its bars first, then the columns of the
highest rank, which a line names; columns that still don't fit follow as a further table, with the
rows' names again. Words say what colours say, and texts are shown literally, never as markup.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

from rich.cells import cell_len, chop_cells
from rich.measure import Measurement
from rich.style import Style
from rich.table import Table as Grid
from rich.text import Text

from kernel_workbench.reports.document.model import Cell, Table, trend_heights
from kernel_workbench.reports.phrases import count, cut, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType

    from kernel_workbench.reports.document.model import Column, Document, ReportPart, Tone

_STYLES: dict[Tone, str] = {
    "": "",
    "good": "green",
    "bad": "bold red",
    "doubtful": "yellow",
    "dim": "dim",
    "strong": "bold",
}
# Exact colours, as a terminal's own white on its green may be hard to read.
_VERDICTS: dict[Tone, str] = {
    "good": "bold #ffffff on #1a7f37",
    "bad": "bold #ffffff on #b42318",
    "doubtful": "bold #000000 on #d0b344",
}
_SCREEN = 38  # lines of a report without --details
_FEWEST = 3  # rows of a table that is cut, so that it is worth its head
_GAP = 2  # columns between two columns of a table, and before rows that stand under a heading
_NAME = 19  # columns in which a folded text still reads
_TITLE = 14  # columns in which a figure's title isn't folded, however narrow its figures
_TREND = 60  # columns of a line over time, at the most
_SHARE = 7  # columns of a share beside its bar
_BARS = " ▏▎▍▌▋▊▉█"
_SPARKS = "▁▂▃▄▅▆▇█"
_ASCII_SPARKS = "_.:-=+*#"


def print_document(document: Document, console: Console, *, details: bool = False) -> None:
    """Print a document.

    Args:
        document: the parts to print, one after another; the verdicts are repeated at the end.
        console: where to print; its width decides the layout.
        details: print every row and every table but those of level "page". False: as much of the
            tables of level "summary" as a screen has room for, the first tables first.
    """
    titled = len(document.parts) > 1
    heads = [_head(part, console, titled=titled, details=details) for part in document.parts]
    ends = [line for part in document.parts for line in _end(part)]
    levels = {"summary", "details"} if details else {"summary"}
    room = _SCREEN - sum(map(len, heads)) - len(ends)
    layouts = [
        [
            _TableLayout(item, console, None if details else max(room, 0))
            for item in part.items
            if isinstance(item, Table) and item.rows and item.level in levels
        ]
        for part in document.parts
    ]
    if not details:
        _fit([layout for of_part in layouts for layout in of_part], room)
    for number, (head, of_part) in enumerate(zip(heads, layouts, strict=True)):
        lines = [Text()] * bool(number) + head
        for layout in of_part:
            lines += layout.lines(layout.visible)
        lines += _hidden_tables(
            [cut(item.table.title) for item in of_part if not item.visible], console
        )
        for line in lines:
            # As it is: a terminal may wrap a command, and the reader still copies one line.
            console.print(line, soft_wrap=True)
    for line in ends:
        console.print(line, soft_wrap=True)


def _hidden_tables(titles: Sequence[str], console: Console) -> list[Text]:
    """Name the tables that a screen has no room for."""
    for named in range(len(titles), 0, -1):
        more = f"; {count(len(titles) - named, 'more table')}" if named < len(titles) else ""
        line = f"By --details: {'; '.join(titles[:named])}{more}"
        if cell_len(line) <= console.width or named == 1:
            return _text_lines(line, console.width, "dim")
    return []


def _verdict(part: ReportPart, sentence: str) -> Text:
    badge = f" {part.verdict} ", _VERDICTS.get(part.tone, "bold reverse")
    return Text.assemble(badge, f" {shown(sentence)}")


def _head(part: ReportPart, console: Console, *, titled: bool, details: bool) -> list[Text]:
    """Return the verdict, and the notes and facts below it."""
    width = console.width
    lines = _text_lines(part.title, width, "bold") if titled and part.title else []
    badge = cell_len(part.verdict) + 3
    first, *rest = folded(shown(part.sentence), width - badge)
    lines += [_verdict(part, first), *(Text(" " * badge + line) for line in rest)]
    for note in part.notes:
        lines += _text_lines(note, width, indent=2)
    facts = (*part.facts, *(part.environment if details else ()))
    lines += [Text()] * bool(facts)
    labels = [shown(label) for label, _ in facts]
    widest = max(map(cell_len, labels), default=0) + _GAP
    for label, (_, text) in zip(labels, facts, strict=True):
        first, *rest = folded(cut(text), width - widest)
        lines.append(Text.assemble((label, "dim"), " " * (widest - cell_len(label)), first))
        lines += [Text(" " * widest + line) for line in rest]
    return lines


def _end(part: ReportPart) -> list[Text]:
    if not part.closing:
        return []
    record = [Text(f"record: {shown(part.record)}")] if part.record else []
    return [Text(), *record, _verdict(part, part.closing)]


def _fit(layouts: Sequence[_TableLayout], room: int) -> None:
    """Show as many rows of each table as a screen has room for, the first tables first."""
    for layout in layouts:
        layout.visible = min(layout.table.least, len(layout.table.rows))
        room -= layout.height(layout.visible)
    for layout in layouts:
        room += layout.height(layout.visible)
        fitting = (rows for rows in _ends(layout.table, room) if layout.height(rows) <= room)
        layout.visible = next(fitting, layout.visible)
        room -= layout.height(layout.visible)


def _ends(table: Table, room: int) -> Iterator[int]:
    """Yield numbers of rows after which a table may be cut, the largest first.

    A table with headings is cut between two headings only; a folded one is shown whole or not.
    """
    headings = [place for place, column in enumerate(table.columns) if column.group]
    most = min(len(table.rows), room)
    fewest = max(table.least, min(_FEWEST, len(table.rows)) - 1)
    for rows in range(most, fewest, -1):
        if rows == len(table.rows):
            yield rows
        elif not table.folded:
            above, below = table.rows[rows - 1], table.rows[rows]
            if not headings or any(above[place] != below[place] for place in headings):
                yield rows


@dataclass(frozen=True, slots=True)
class _Block:
    """The lines of some columns of a table: their titles, and each row's."""

    head: list[Text]
    rows: list[list[Text]]


class _TableLayout:
    """A table laid out for a console.

    Args:
        most: rows to lay out, beside the table's `least`. None: all.

    Attributes:
        visible: the number of rows to print; 0 leaves the table out.
    """

    def __init__(self, table: Table, console: Console, most: int | None) -> None:
        self.table = table
        self._console = console
        self._width, self._ascii = console.width, console.options.ascii_only
        rows = len(table.rows) if most is None else max(most, table.least)
        self._rows = [
            [Cell(cell) if isinstance(cell, str) else cell for cell in row]
            for row in table.rows[:rows]
        ]
        self.visible = len(self._rows)
        columns = table.columns
        self._groups = [place for place, column in enumerate(columns) if column.group]
        rest = [place for place in table.places if place not in self._groups]
        self._below = [place for place in rest if _is_below(columns[place])]
        self._places = [place for place in rest if place not in self._below]
        self._indent = _GAP if self._groups else 0
        self._widest = {
            place: max((cell_len(self._plain(row[place].text)) for row in self._rows), default=0)
            for place in self._places
        }
        self._bars = 6 if self._width < 110 else 10  # columns of a share's bar; 0: no bar
        blocks, self._dropped = self._fitted()
        self._blocks = [self._block(places) for places in blocks]
        for row, lines in zip(self._rows, self._blocks[-1].rows, strict=True):
            for place in self._below:
                lines += self._lines_below(row[place], columns[place])

    def height(self, rows: int) -> int:
        """Return the number of lines that the first rows take."""
        return len(self.lines(rows))

    def lines(self, rows: int) -> list[Text]:
        """Return the lines of the table's first rows, with its title; none of no rows."""
        if not rows:
            return []
        table, width = self.table, self._width
        *title, last = _text_lines(self._plain(table.title), width, "bold")
        number = count(len(table.rows), "row")
        fits = last.cell_len + len(number) + 2 <= width
        lines = [Text(), *title]
        lines += [last.copy().append(f": {number}", "dim")] if fits else [last, Text(number)]
        for place, block in enumerate(self._blocks):
            lines += [Text()] * bool(place) + block.head
            lines += [line for row in block.rows[:rows] for line in row]
        if rows < len(table.rows):
            hidden = f"{len(table.rows) - rows:,} more not shown; --details shows them"
            lines += _text_lines(hidden, width, "dim")
        if self._dropped:
            titles = ", ".join(self._plain(table.columns[place].title) for place in self._dropped)
            lines += _text_lines(f"Left out at {width} columns: {titles}", width, "dim")
        return lines + (_text_lines(self._plain(table.note), width, "dim") if table.note else [])

    def _fitted(self) -> tuple[list[list[int]], list[int]]:
        """Return the places of each block's columns, and those of the columns left out."""
        columns, kept = self.table.columns, list(self._places)
        while self._total(kept) > self._width:
            ranked = [place for place in kept if columns[place].rank]
            if self._bars:
                self._bars = 0
            elif ranked:
                kept.remove(max(ranked, key=lambda place: (columns[place].rank, place)))
            else:
                break
        dropped = [place for place in self._places if place not in kept]
        names = list(takewhile(lambda place: not columns[place].is_figure, kept))
        if len(names) == len(kept) or self._total(names) > 0.7 * self._width:
            names = kept[:1]
        blocks = [list(names)]
        for place in kept[len(names) :]:
            if len(blocks[-1]) > len(names) and self._total([*blocks[-1], place]) > self._width:
                blocks.append(list(names))
            blocks[-1].append(place)
        return blocks, dropped

    def _total(self, places: Sequence[int]) -> int:
        return self._indent + sum(map(self._least, places)) + _GAP * (len(places) - 1)

    def _least(self, place: int) -> int:
        """Return the columns of the terminal that a column takes at the least."""
        column, widest = self.table.columns[place], self._widest[place]
        if column.kind == "trend":
            return _NAME
        if column.is_figure:
            bar = self._bars + 1 if column.kind == "share" and self._bars else 0
            widest = max(widest, _SHARE) + bar if bar else widest
            return max(widest, *map(cell_len, self._title(place, widest)))
        # A row's name, which comes first, may take a third of the width before it is folded.
        most = max(_NAME, self._width // 3) if place == self._places[0] else _NAME
        return min(most, max(widest, cell_len(column.title)))

    def _title(self, place: int, width: int) -> list[str]:
        title = self._plain(self.table.columns[place].title)
        return folded(title, max(width, _TITLE, *map(cell_len, title.split())))

    def _block(self, places: Sequence[int]) -> _Block:
        """Let rich lay out some columns, and give each line to its row."""
        grid = Grid(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="italic")
        spare = max(0, self._width - self._total(places))
        for place in places:
            column, least = self.table.columns[place], self._least(place)
            if column.is_figure:
                title = Text("\n".join(self._title(place, self._widest[place])))
                grid.add_column(title, justify="right", no_wrap=True, min_width=least)
                continue
            # Names have the room that figures leave, other texts share the rest.
            is_name = place == places[0] and column.kind == "text"
            full = max(self._widest[place], cell_len(column.title))
            width = min(full, least + spare) if is_name else None
            grid.add_column(_Folded(self._plain(column.title), ""), width=width, min_width=least)
        for number, row in enumerate(self._rows):
            cells = [self._cell(row[place], self.table.columns[place]) for place in places]
            grid.add_row(*cells, style=Style(meta={"row": number}))
        width = max(self._width, self._total(places)) - self._indent
        options = self._console.options.update(width=width)
        block = _Block([], [[] for _ in self._rows])
        place_of_row: int | None = None
        for segments in self._console.render_lines(grid, options, pad=False):
            line = Text(" " * self._indent)
            for text, style, _ in segments:
                place_of_row = style.meta.get("row", place_of_row) if style else place_of_row
                line.append(text, style)
            line.rstrip()
            (block.head if place_of_row is None else block.rows[place_of_row]).append(line)
        rule = max(map(len, (*block.head, *(line for lines in block.rows for line in lines))))
        block.head.append(Text(("-" if self._ascii else "─") * min(rule, self._width), "dim"))
        previous = ""
        for number, row_cells in enumerate(self._rows):
            heading = ", ".join(filter(None, (cut(row_cells[at].text) for at in self._groups)))
            if heading != previous:
                block.rows[number][:0] = _text_lines(heading, self._width, "bold")
            previous = heading
        return block

    def _cell(self, cell: Cell, column: Column) -> RenderableType:
        """Return a cell as rich shows it, a share beside its bar."""
        text, style = self._plain(cell.text), _STYLES[cell.tone]
        if column.kind == "trend" and cell.trend:
            return _Trend(cell.trend, plain=self._ascii)
        if not column.is_figure:
            return _Folded(text, style)
        if column.kind == "share" and self._bars and cell.value is not None:
            bar = _bar(cell.value, self._bars, plain=self._ascii)
            return Text.assemble((bar, "cyan"), " ", (f"{text:>{_SHARE}}", style))
        return Text(text, style)

    def _lines_below(self, cell: Cell, column: Column) -> list[Text]:
        if not cell.text:
            return []
        indent = self._indent + 2
        if column.kind == "command":  # on one line, so that it can be copied
            return [Text(" " * indent + shown(cell.text), style="cyan")]
        return _text_lines(self._plain(cell.text), self._width, _STYLES[cell.tone], indent=indent)

    def _plain(self, text: str) -> str:
        """Return the text with its signs spelled in ASCII for a terminal that has no others."""
        line = cut(text)
        return line.replace("±", "+-").replace("°C", "C") if self._ascii else line


@dataclass(frozen=True, slots=True)
class _Folded:
    """A text that rich folds at spaces and at hyphens, as a case's id needs."""

    text: str
    style: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text("\n".join(folded(self.text, options.max_width)), self.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, max(cell_len(self.text), 1))


@dataclass(frozen=True, slots=True)
class _Trend:
    """Values over time as a line of blocks, as long as there is room for."""

    values: Sequence[float | None]
    plain: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(_sparkline(self.values, options.max_width, plain=self.plain))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, min(len(self.values), _TREND))


def _is_below(column: Column) -> bool:
    return column.below or column.kind == "command"


def _text_lines(text: str, width: int, style: str = "", *, indent: int = 0) -> list[Text]:
    """Return a text in as many lines as it takes, each `indent` columns in."""
    lines = folded(cut(text), width - indent)
    return [Text.assemble(" " * indent, (line, style)) for line in lines]


def folded(text: str, width: int) -> list[str]:
    """Fold a text into lines of at most `width` columns: at spaces and at hyphens."""
    width = max(width, 1)
    if cell_len(text) <= width:
        return [text]
    lines = [""]
    for part in re.findall(r"[^\s-]*[\s-]+|[^\s-]+", text):
        for piece in chop_cells(part, width) if cell_len(part.rstrip()) > width else [part]:
            if lines[-1] and cell_len(lines[-1] + piece.rstrip()) > width:
                lines[-1] = lines[-1].rstrip()
                lines.append("")
            lines[-1] += piece
    lines[-1] = lines[-1].rstrip()
    return lines


def _bar(value: float, width: int, *, plain: bool) -> str:
    """Return a bar of `width` columns for a share of 0 to 1."""
    if not value > 0:
        return " " * width
    eighths = round(8 * width * min(value, 1.0))
    if plain:
        return ("#" * round(eighths / 8)).ljust(width)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + _BARS[rest] * (rest > 0)).ljust(width)


def _sparkline(values: Sequence[float | None], width: int, *, plain: bool) -> str:
    """Return the means of `width` stretches of the values as blocks, from lowest to highest.

    A stretch in which nothing was read is a space.
    """
    if not any(value is not None and math.isfinite(value) for value in values):
        return ""
    columns = min(width, len(values))
    ends = [place * len(values) // columns for place in range(columns + 1)]
    stretches = [_mean(values[start:end]) for start, end in pairwise(ends)]
    blocks = _ASCII_SPARKS if plain else _SPARKS
    highest = len(blocks) - 1
    heights = trend_heights(stretches)
    return "".join(" " if height is None else blocks[round(highest * height)] for height in heights)


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None
