"""A document in a terminal: verdicts, and tables that fit its width.

No figure is ever cut or folded. Where a table is too wide, first its bars go, then the columns of
the highest rank, which a line names; what is left comes as further tables with the rows' names
again. Status words stand beside the colours, so that it reads without them. Texts are shown
literally, never as markup.
"""

from __future__ import annotations

import math
import re
from itertools import groupby, pairwise, takewhile
from typing import TYPE_CHECKING

from rich.cells import cell_len, chop_cells
from rich.text import Text

from kernel_workbench.reports.document.model import Cell, Table
from kernel_workbench.reports.phrases import count, cut, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from kernel_workbench.reports.document.model import Column, Document, Part, Tone

_STYLES: dict[Tone, str] = {
    "": "",
    "good": "green",
    "bad": "bold red",
    "doubtful": "yellow",
    "dim": "dim",
    "strong": "bold",
}
# Of verdicts. Exact colours, as a terminal's own white on its green may be hard to read.
_VERDICTS: dict[Tone, str] = {
    "good": "bold #ffffff on #1a7f37",
    "bad": "bold #ffffff on #b42318",
    "doubtful": "bold #000000 on #d0b344",
}
_SCREEN = 38  # lines of a report without --details
_FEWEST = 3  # rows of a table that is cut, so that it is worth its head
_GAP = "  "
_INDENT = "  "
_NAME = 19  # columns in which a folded text still reads
_TITLE = 12  # up to which a figure's title isn't wrapped, however narrow its figures
_HEAD = 16  # up to which one is on one line where there is room
_TREND = (12, 60)  # columns of a line, at the least and at the most
_SHARE = 7  # columns of a share beside its bar
_BARS = " ▏▎▍▌▋▊▉█"
_SPARKS = "▁▂▃▄▅▆▇█"
_ASCII_SPARKS = "_.:-=+*#"
_STEADY = 0.1  # of the highest value: a line that moves less looks level


def print_document(document: Document, console: Console, *, details: bool = False) -> None:
    """Print the document; details: all but what only a page has, and every row."""
    tables = [
        [
            each
            for each in part.items
            if isinstance(each, Table)
            and each.rows
            and (each.level == "summary" or (details and each.level == "details"))
        ]
        for part in document.parts
    ]
    titled = len(document.parts) > 1
    heads = [_head(part, console, titled=titled, details=details) for part in document.parts]
    ends = [line for part in document.parts for line in _end(part)]
    room = _SCREEN - sum(map(len, heads)) - len(ends)
    layouts = [[_Layout(table, console) for table in of_part] for of_part in tables]
    every = [layout for of_part in layouts for layout in of_part]
    if details:
        for layout in every:
            layout.show(len(layout.table.rows))
    else:
        _fit(every, room)
    for number, (head, of_part) in enumerate(zip(heads, layouts, strict=True)):
        lines = [Text()] * bool(number) + head
        for layout in of_part:
            lines += layout.lines
        lines += _closed([cut(each.table.title) for each in of_part if not each.lines], console)
        for line in lines:
            # As it is: a terminal may wrap it, and what is copied is one line.
            console.print(line, soft_wrap=True)
    for line in ends:
        console.print(line, soft_wrap=True)


def _closed(titles: Sequence[str], console: Console) -> list[Text]:
    """A line that says which tables a screen has no room for."""
    for named in range(len(titles), 0, -1):
        more = f"; {count(len(titles) - named, 'more table')}" if named < len(titles) else ""
        line = f"By --details: {'; '.join(titles[:named])}{more}"
        if cell_len(line) <= console.width or named == 1:
            return _text_lines(line, console.width, "dim")
    return []


def _verdict(part: Part, words: str) -> Text:
    badge = f" {part.verdict} ", _VERDICTS.get(part.tone, "bold reverse")
    return Text.assemble(badge, f" {shown(words)}")


def _head(part: Part, console: Console, *, titled: bool, details: bool) -> list[Text]:
    """The verdict, and what always stands below it."""
    width = console.width
    lines = _text_lines(part.title, width, "bold") if titled and part.title else []
    badge = cell_len(part.verdict) + 3
    first, *others = folded(shown(part.sentence), width - badge)
    lines += [_verdict(part, first), *(Text(" " * badge + line) for line in others)]
    for note in part.notes:
        lines += _text_lines(note, width, indent=2)
    facts = (*part.facts, *(part.environment if details else ()))
    lines += [Text()] * bool(facts)
    labels = [shown(label) for label, _ in facts]
    widest = max(map(cell_len, labels), default=0) + len(_GAP)
    for label, (_, text) in zip(labels, facts, strict=True):
        first, *others = folded(cut(text), width - widest)
        lines.append(Text.assemble((_padded(label, widest), "dim"), first))
        lines += [Text(" " * widest + line) for line in others]
    return lines


def _end(part: Part) -> list[Text]:
    if not part.closing:
        return []
    record = [Text(f"record: {shown(part.record)}")] if part.record else []
    return [Text(), *record, _verdict(part, part.closing)]


def _fit(layouts: Sequence[_Layout], room: int) -> None:
    """Show as many rows of each table as a screen has room for, of the first tables first."""
    room -= sum(layout.show(layout.table.least) for layout in layouts)
    for layout in layouts:
        room += len(layout.lines)
        if not any(layout.show(rows) <= room for rows in _ends(layout.table, room)):
            layout.show(layout.table.least)
        room -= len(layout.lines)


def _ends(table: Table, room: int) -> Iterator[int]:
    """Numbers of rows after which a table may be cut, the largest first: after a group of rows."""
    heads = [place for place, each in enumerate(table.columns) if each.group]
    most = min(len(table.rows), room)
    fewest = max(table.least, min(_FEWEST, len(table.rows)) - 1)
    for rows in range(most, fewest, -1):
        if rows == len(table.rows):
            yield rows
        elif not table.folded:
            above, below = table.rows[rows - 1], table.rows[rows]
            if not heads or any(above[place] != below[place] for place in heads):
                yield rows


class _Layout:
    """A table laid out for a console. `lines` are none where it shows no row."""

    def __init__(self, table: Table, console: Console) -> None:
        self.table = table
        self.lines: list[Text] = []
        self._width, self._ascii = console.width, console.options.ascii_only
        self._titles = [self._plain(each.title) for each in table.columns]
        columns = table.columns
        self._groups = [place for place, each in enumerate(columns) if each.group]
        others = [place for place in table.places if place not in self._groups]
        self._below = [place for place in others if _is_below(columns[place])]
        self._places = [place for place in others if place not in self._below]
        self._indent = _INDENT if self._groups else ""

    def show(self, rows: int) -> int:
        """Lay the first rows out; how many lines they take."""
        self._bars = 6 if self._width < 110 else 10  # columns of a share's bar; 0: none
        self._rows = [
            [Cell(each) if isinstance(each, str) else each for each in row]
            for row in self.table.rows[:rows]
        ]
        self._widest = {
            place: max((cell_len(self._plain(row[place].text)) for row in self._rows), default=0)
            for place in self._places
        }
        self.lines = [*self._all_lines()] if rows else []
        return len(self.lines)

    def _all_lines(self) -> Iterator[Text]:
        table, width = self.table, self._width
        yield Text()
        *title, last = _text_lines(self._plain(table.title), width, "bold")
        rows = count(len(table.rows), "row")
        fits = last.cell_len + len(rows) + 2 <= width
        yield from [*title, last.append(f": {rows}", "dim")] if fits else [*title, last, Text(rows)]
        columns, dropped = self._fitted()
        for number, places in enumerate(columns):
            if number:
                yield Text()
            yield from self._columns(places, with_below=number == len(columns) - 1)
        left = len(table.rows) - len(self._rows)
        if left:
            yield from _text_lines(f"{left:,} more not shown; --details shows them", width, "dim")
        if dropped:
            named = ", ".join(self._titles[place] for place in dropped)
            yield from _text_lines(f"Left out at {width} columns: {named}", width, "dim")
        if table.note:
            yield from _text_lines(self._plain(table.note), width, "dim")

    def _fitted(self) -> tuple[list[list[int]], list[int]]:
        """The places of the columns of each table that it takes, and those that are left out."""
        kept = list(self._places)
        while self._total(kept) > self._width:
            ranked = [place for place in kept if self.table.columns[place].rank]
            if self._bars:
                self._bars = 0
            elif ranked:
                kept.remove(max(ranked, key=lambda place: (self.table.columns[place].rank, place)))
            else:
                break
        dropped = [place for place in self._places if place not in kept]
        if self._total(kept) <= self._width:
            return [kept], dropped
        columns = self.table.columns
        names = list(takewhile(lambda place: not columns[place].is_figure, kept))
        if len(names) == len(kept) or self._total(names) > 0.7 * self._width:
            names = kept[:1]
        others = kept[len(names) :]
        room = max(1, self._width - self._total(names))
        fewest = len(self._filled(others, room))
        # As few tables as can be, and of those the ones of nearest width.
        limits = range(1, room + 1)
        narrowest = next(each for each in limits if len(self._filled(others, each)) == fewest)
        return [names + part for part in self._filled(others, narrowest)], dropped

    def _filled(self, places: Sequence[int], room: int) -> list[list[int]]:
        parts: list[list[int]] = [[]]
        used = 0
        for place in places:
            needed = self._least(place) + len(_GAP)
            if parts[-1] and used + needed > room:
                parts.append([])
                used = 0
            parts[-1].append(place)
            used += needed
        return parts

    def _total(self, places: Sequence[int]) -> int:
        widths = sum(map(self._least, places))
        return len(self._indent) + widths + len(_GAP) * (len(places) - 1)

    def _least(self, place: int) -> int:
        """Columns of the terminal that a column takes at the least."""
        column, title = self.table.columns[place], self._titles[place]
        if column.kind == "trend":
            return _TREND[0]
        widest = self._wide(place)
        if not column.is_figure:
            name = max(_NAME, self._width // 3) if place == self._places[0] else _NAME
            return max(min(name, widest), min(_NAME, cell_len(title)))
        words = max(map(cell_len, title.split()), default=0)
        return max(words, min(cell_len(title), _TITLE), widest)

    def _wide(self, place: int) -> int:
        """Columns of the widest cell, its bar included."""
        if self.table.columns[place].kind == "share" and self._bars:
            return self._bars + 1 + max(self._widest[place], _SHARE)
        return self._widest[place]

    def _widths(self, places: Sequence[int]) -> dict[int, int]:
        """Each column's width: texts and heads get what is left over, the shorter ones first."""
        columns = self.table.columns
        widths = {place: self._least(place) for place in places}
        spare = self._width - self._total(places)
        wanted = {
            place: _TREND[1]
            if columns[place].kind == "trend"
            else max(cell_len(self._titles[place]), self._widest[place])
            for place in places
            if not columns[place].is_figure or cell_len(self._titles[place]) <= _HEAD
        }
        for place in sorted(wanted, key=lambda each: wanted[each]):
            more = max(0, min(wanted[place] - widths[place], spare))
            widths[place] += more
            spare -= more
        return widths

    def _columns(self, places: Sequence[int], *, with_below: bool) -> Iterator[Text]:
        columns, widths = self.table.columns, self._widths(places)
        head = [folded(self._titles[place], widths[place]) for place in places]
        height = max(map(len, head), default=0)
        head = [[""] * (height - len(lines)) + lines for lines in head]
        yield from self._row(head, ["italic"] * len(places), places, widths)
        rule = "-" if self._ascii else "─"
        wide = len(self._indent) + sum(widths.values()) + len(_GAP) * (len(widths) - 1)
        yield Text(rule * min(wide, self._width), style="dim")
        for heads, rows in groupby(self._rows, key=self._heading):
            if heads:
                yield from _text_lines(heads, self._width, "bold")
            for row in rows:
                lines = [
                    [self._drawn(row[place], columns[place], widths[place])]
                    if columns[place].is_figure or columns[place].kind == "trend"
                    else folded(self._text(row[place], columns[place]), widths[place])
                    for place in places
                ]
                styles = [_STYLES[row[place].tone] for place in places]
                yield from self._row(lines, styles, places, widths)
                for place in self._below if with_below else ():
                    yield from self._below_row(row[place], columns[place])

    def _row(
        self,
        cells: Sequence[Sequence[str]],
        styles: Sequence[str],
        places: Sequence[int],
        widths: dict[int, int],
    ) -> Iterator[Text]:
        """One row of cells, each of some lines."""
        for number in range(max(map(len, cells), default=0)):
            line = Text(self._indent)
            for place, lines, style in zip(places, cells, styles, strict=True):
                text = lines[number] if number < len(lines) else ""
                right = self.table.columns[place].is_figure
                bar = len(text) - len(text.lstrip(_BARS[1:]))
                at = len(line) + (widths[place] - cell_len(text) if right else 0)
                line.append(_padded(text, widths[place], right=right), style)
                line.stylize("cyan", at, at + bar)
                line.append(_GAP)
            line.rstrip()
            yield line

    def _below_row(self, cell: Cell, column: Column) -> Iterator[Text]:
        if not cell.text:
            return
        indent = len(self._indent) + 2
        if column.kind == "command":  # on one line, so that it can be copied
            yield Text(" " * indent + shown(cell.text), style="cyan")
        else:
            text, style = self._plain(cell.text), _STYLES[cell.tone]
            yield from _text_lines(text, self._width, style, indent=indent)

    def _heading(self, row: Sequence[Cell]) -> str:
        return ", ".join(filter(None, (cut(row[place].text) for place in self._groups)))

    def _text(self, cell: Cell, column: Column) -> str:
        """A cell's text; of a share with room for its bar."""
        text = self._plain(cell.text)
        if column.kind == "share" and self._bars and cell.value is not None:
            return f"{_bar(cell.value, self._bars, plain=self._ascii)} {text:>{_SHARE}}"
        return text

    def _drawn(self, cell: Cell, column: Column, width: int) -> str:
        if column.kind == "trend" and cell.trend:
            return _sparkline(cell.trend, width, plain=self._ascii)
        return self._text(cell, column)

    def _plain(self, text: str) -> str:
        """The text with its signs spelled in ASCII for a terminal that has no more."""
        line = cut(text)
        return line.replace("±", "+-").replace("°C", "C") if self._ascii else line


def _is_below(column: Column) -> bool:
    return column.below or column.kind == "command"


def _text_lines(text: str, width: int, style: str = "", *, indent: int = 0) -> list[Text]:
    """A text in as many lines as it takes, each `indent` columns in."""
    lines = folded(cut(text), width - indent)
    return [Text.assemble(" " * indent, (line, style)) for line in lines]


def folded(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` columns: at spaces, and a case's id at its hyphens."""
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


def _padded(text: str, width: int, *, right: bool = False) -> str:
    spaces = " " * max(0, width - cell_len(text))
    return spaces + text if right else text + spaces


def _bar(value: float, width: int, *, plain: bool) -> str:
    """A bar of `width` columns for a share of 0 to 1."""
    if not value > 0:
        return " " * width
    eighths = round(8 * width * min(value, 1.0))
    if plain:
        return ("#" * round(eighths / 8)).ljust(width)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + _BARS[rest] * (rest > 0)).ljust(width)


def _sparkline(values: Sequence[float | None], width: int, *, plain: bool) -> str:
    """Means of `width` stretches of the values as blocks, the lowest of them to the highest.

    A stretch in which nothing was read is a space.
    """
    columns = min(width, len(values))
    ends = [place * len(values) // columns for place in range(columns + 1)]
    stretches = [_mean(values[start:end]) for start, end in pairwise(ends)]
    known = [value for value in stretches if value is not None]
    if not known:
        return ""
    least = _STEADY * max(map(abs, known)) or 1.0
    middle, span = (min(known) + max(known)) / 2, max(max(known) - min(known), least)
    blocks = _ASCII_SPARKS if plain else _SPARKS
    highest = len(blocks) - 1
    return "".join(
        " " if value is None else blocks[round(highest * (0.5 + (value - middle) / span))]
        for value in stretches
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None
