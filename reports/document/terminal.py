"""Print a document to a terminal: verdicts, and rich's tables in the width that there is.

No figure is cut or folded. A table that is too wide loses its bars first, then the columns of the
highest rank, which a line names; columns that still don't fit follow as a further table, with the
rows' names again. Words say what colours say, and texts are shown literally, never as markup.
"""

from __future__ import annotations

import math
import re
from itertools import chain, pairwise, takewhile
from typing import TYPE_CHECKING

from rich.cells import cell_len, chop_cells
from rich.table import Table as Grid
from rich.text import Text

from kernel_workbench.reports.document.model import Table, trend_heights
from kernel_workbench.reports.phrases import count, cut, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.align import VerticalAlignMethod
    from rich.console import Console, JustifyMethod

    from kernel_workbench.reports.document.model import Cell, Column, Document, ReportPart, Tone

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
_Block = tuple[list[Text], list[list[Text]]]  # the lines of titles, and of each row


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
        hidden = [cut(item.table.title) for item in of_part if not item.visible]
        lines += _hidden_tables(hidden, console.width)
        for line in lines:
            # As it is: a terminal may wrap a command, and the reader still copies one line.
            console.print(line, soft_wrap=True)
    for line in ends:
        console.print(line, soft_wrap=True)


def _hidden_tables(titles: Sequence[str], width: int) -> list[Text]:
    """Name the tables that a screen has no room for, as many as one line has room for."""
    for named in range(len(titles), 0, -1):
        more = f"; {count(len(titles) - named, 'more table')}" if named < len(titles) else ""
        line = f"By --details: {'; '.join(titles[:named])}{more}"
        if cell_len(line) <= width or named == 1:
            return _text_lines(line, width, "dim")
    return []


def _badge(part: ReportPart) -> Text:
    badge = f" {part.verdict} ", _VERDICTS.get(part.tone, "bold reverse")
    return Text.assemble(badge, " ")


def _head(part: ReportPart, console: Console, *, titled: bool, details: bool) -> list[Text]:
    """Return the verdict, and the notes and facts below it."""
    width = console.width
    lines = _text_lines(part.title, width, "bold") if titled and part.title else []
    lines += _text_lines(part.sentence, width, head=_badge(part))
    for note in part.notes:
        lines += _text_lines(note, width, head=Text("  "))
    facts = (*part.facts, *(part.environment if details else ()))
    lines += [Text()] * bool(facts)
    widest = max((cell_len(label) for label, _ in facts), default=0) + _GAP
    for label, text in facts:
        name = Text(label, "dim")
        name.pad_right(widest - name.cell_len)
        lines += _text_lines(text, width, head=name)
    return lines


def _end(part: ReportPart) -> list[Text]:
    if not part.closing:
        return []
    record = [Text(f"record: {shown(part.record)}")] if part.record else []
    return [Text(), *record, _badge(part) + Text(shown(part.closing))]


def _fit(layouts: Sequence[_TableLayout], room: int) -> None:
    """Show as many rows of each table as a screen has room for, the first tables first."""
    for layout in layouts:
        layout.visible = min(layout.table.least, len(layout.table.rows))
        room -= len(layout.lines(layout.visible))
    for layout in layouts:
        room += len(layout.lines(layout.visible))
        fitting = (rows for rows in _ends(layout.table, room) if len(layout.lines(rows)) <= room)
        layout.visible = next(fitting, layout.visible)
        room -= len(layout.lines(layout.visible))


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
        self._rows = table.rows[:rows]
        self.visible = len(self._rows)
        columns = table.columns
        self._groups = [place for place, column in enumerate(columns) if column.group]
        rest = [place for place in table.places if place not in self._groups]
        self._below = [place for place in rest if _is_below(columns[place])]
        self._places = [place for place in rest if place not in self._below]
        self._indent = _GAP if self._groups else 0
        self._full = {place: self._full_width(place) for place in self._places}
        self._bars = 6 if self._width < 110 else 10  # columns of a share's bar; 0: no bar
        blocks, self._dropped = self._fitted()
        self._blocks = [self._block(places) for places in blocks]
        for row, lines in zip(self._rows, self._blocks[-1][1], strict=True):
            for place in self._below:
                lines += self._lines_below(row[place], columns[place])

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
        for place, (head, lines_of_rows) in enumerate(self._blocks):
            lines += [Text()] * bool(place) + head
            lines += [line for row in lines_of_rows[:rows] for line in row]
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

    def _full_width(self, place: int) -> int:
        """Return the columns of the terminal in which no text or line of a column is cut."""
        column, cells = self.table.columns[place], [row[place] for row in self._rows]
        if column.kind == "trend":
            return min(_TREND, max((len(cell.trend) for cell in cells), default=0))
        title = 0 if column.is_figure else cell_len(column.title)
        return max(title, 0, *(cell_len(self._plain(cell.text)) for cell in cells))

    def _least(self, place: int) -> int:
        """Return the columns of the terminal that a column takes at the least."""
        column, full = self.table.columns[place], self._full[place]
        if column.kind == "trend":
            return _NAME
        if column.is_figure:
            bar = self._bars + 1 if column.kind == "share" and self._bars else 0
            full = max(full, _SHARE) + bar if bar else full
            return max(full, *map(cell_len, self._title(place, full)))
        # A row's name, which comes first, may take a third of the width before it is folded.
        most = max(_NAME, self._width // 3) if place == self._places[0] else _NAME
        return min(most, full)

    def _widths(self, places: Sequence[int]) -> dict[int, int]:
        """Return the columns of the terminal that each column takes, by its place.

        Names have the room that figures leave; other texts share the rest.
        """
        widths = {place: self._least(place) for place in places}
        spare = self._width - self._total(places)
        texts = [place for place in places if not self.table.columns[place].is_figure]
        texts.sort(key=lambda place: (place != places[0], self._full[place]))
        for number, place in enumerate(texts):
            share = spare if place == places[0] else spare // (len(texts) - number)
            more = max(0, min(self._full[place] - widths[place], share))
            widths[place] += more
            spare -= more
        return widths

    def _title(self, place: int, width: int) -> list[str]:
        column = self.table.columns[place]
        title = self._plain(column.title)
        least = max(_TITLE, *map(cell_len, title.split())) if column.is_figure else 0
        return folded(title, max(width, least))

    def _block(self, places: Sequence[int]) -> _Block:
        """Return the lines of some columns' titles, and those of each row."""
        widths = self._widths(places)
        titles = [Text("\n".join(self._title(*item)), "italic") for item in widths.items()]
        head = self._grid(titles, widths, "bottom")
        rows = [
            self._grid([self._cell(row, *item) for item in widths.items()], widths)
            for row in self._rows
        ]
        rule = max(map(len, chain(head, *rows)))
        head.append(Text(("-" if self._ascii else "─") * min(rule, self._width), "dim"))
        previous = ""
        for row, lines in zip(self._rows, rows, strict=True):
            heading = ", ".join(filter(None, (cut(row[at].text) for at in self._groups)))
            if heading != previous:
                lines[:0] = _text_lines(heading, self._width, "bold")
            previous = heading
        return head, rows

    def _grid(
        self, cells: Iterable[Text], widths: dict[int, int], vertical: VerticalAlignMethod = "top"
    ) -> list[Text]:
        """Return cells side by side, as the lines that rich makes of them."""
        grid = Grid.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
        for place, width in widths.items():
            side: JustifyMethod = "right" if self.table.columns[place].is_figure else "left"
            grid.add_column(justify=side, vertical=vertical, width=width, no_wrap=True)
        grid.add_row(*cells)
        options = self._console.options.update(width=sum(widths.values()) + _GAP * len(widths))
        lines = []
        for segments in self._console.render_lines(grid, options, pad=False):
            texts = ((text, style or "") for text, style, _ in segments)
            lines.append(Text.assemble(" " * self._indent, *texts))
            lines[-1].rstrip()
        return lines

    def _cell(self, row: Sequence[Cell], place: int, width: int) -> Text:
        """Return a cell in so many columns of the terminal, a share beside its bar."""
        cell, column = row[place], self.table.columns[place]
        text, style = self._plain(cell.text), _STYLES[cell.tone]
        if column.kind == "trend" and cell.trend:
            return Text(_sparkline(cell.trend, width, plain=self._ascii))
        if column.kind == "share" and self._bars and cell.value is not None:
            bar = _bar(cell.value, self._bars, plain=self._ascii)
            return Text.assemble((bar, "cyan"), " ", (f"{text:>{_SHARE}}", style))
        return Text(text if column.is_figure else "\n".join(folded(text, width)), style)

    def _lines_below(self, cell: Cell, column: Column) -> list[Text]:
        if not cell.text:
            return []
        indent = Text(" " * (self._indent + 2))
        if column.kind == "command":  # on one line, so that it can be copied
            return [indent + Text(shown(cell.text), "cyan")]
        return _text_lines(self._plain(cell.text), self._width, _STYLES[cell.tone], indent)

    def _plain(self, text: str) -> str:
        """Return the text with its signs spelled in ASCII for a terminal that has no others."""
        line = cut(text)
        return line.replace("±", "+-").replace("°C", "C") if self._ascii else line


def _is_below(column: Column) -> bool:
    return column.below or column.kind == "command"


def _text_lines(text: str, width: int, style: str = "", head: Text | None = None) -> list[Text]:
    """Return a text in as many lines as it takes, to the right of a head."""
    head = head or Text()
    first, *rest = folded(cut(text), width - head.cell_len)
    return [
        head + Text(first, style),
        *(Text(" " * head.cell_len).append(line, style) for line in rest),
    ]


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
