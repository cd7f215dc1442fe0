"""The pieces of a terminal report: headings, tables, and texts of a record, shown literally.

Every text of a record is a rich `Text`, never markup, with control characters spelled out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Protocol, TypeVar

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from reports.record import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console, ConsoleOptions, RenderResult

_PADDING = 2
_LONGEST = 600  # characters
# Of verdicts. Exact colours, as a terminal's own white on its green may be hard to read.
GOOD, BAD, DOUBTFUL = (
    "bold #ffffff on #1a7f37",
    "bold #ffffff on #b42318",
    "bold #000000 on #d0b344",
)
GAP = _PADDING + 1  # columns from one cell to the next: the padding, and the box's divider


class _OfAnOp(Protocol):
    @property
    def op(self) -> str: ...


_Item = TypeVar("_Item", bound=_OfAnOp)


def heading(console: Console, title: str) -> None:
    """Print a blank line and a title."""
    console.print()
    console.print(Text(title, style="bold"))


def labelled(console: Console, lines: Iterable[tuple[str, str]]) -> None:
    """Print labels and beside each its text, folded."""
    table = Table.grid(padding=(0, _PADDING, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, text in lines:
        table.add_row(Text(shown(label)), Text(shown(text)))
    console.print(table)


def new_table() -> Table:
    """A table with a rule under its head and none around it."""
    return Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, _PADDING, 0, 0),
        header_style="italic",  # bold is the heading's, right above
    )


@dataclass(frozen=True, slots=True)
class Folded:
    """A case's id, or what ends in one: folded at its hyphens, and not in the middle of a part."""

    text: str
    style: str = ""

    def lines(self, width: int) -> list[str]:
        """The text in lines of at most `width` columns, but where one part alone is wider."""
        lines = [""]
        for part in _parts(self.text):
            if lines[-1] and cell_len(lines[-1] + part.rstrip()) > width:
                lines[-1] = lines[-1].rstrip()
                lines.append("")
            lines[-1] += part
        return lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = self.lines(options.max_width)
        yield Text("\n".join(lines), style=self.style, overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widest = max(map(cell_len, _parts(self.text)), default=0)
        return Measurement(widest, cell_len(self.text)).with_maximum(options.max_width)


def cut(text: str) -> str:
    """`text` shown literally, cut where no name is as long: a damaged record's fills no screen."""
    line = shown(text)
    more = len(line) - _LONGEST
    return line if more <= 0 else f"{line[:_LONGEST]}... ({more:,} more characters)"


def _parts(text: str) -> list[str]:
    """`b2-`, `s_q129-`, `bfloat16` of an id; of a sentence its words, with what follows each."""
    return re.findall(r"[^\s-]*[\s-]+|[^\s-]+", text)


def indented(console: Console, text: str, *, by: int = 2, style: str = "") -> None:
    """Print a text that may take several lines, each `by` columns in."""
    console.print(Padding(Folded(text, style), (0, 0, 0, by), expand=False))


def left_out(console: Console, number: int, most: int, what: str) -> None:
    """Say how many of a part's lines aren't there, where it has more than `most`."""
    if number > most:
        more = f"{number - most:,} more {what} not shown: --html PATH has them all"
        indented(console, more, style="yellow")


def op_by_op(items: Iterable[_Item], table: Table, *, several: bool) -> Iterator[tuple[_Item, str]]:
    """Each item with the space before its name; where there are several ops, under its op's.

    Items of one op come in a row.
    """
    for op, group in groupby(items, key=lambda each: each.op):
        if several:
            table.add_row(Text(shown(op), style="bold"))
        yield from ((each, "  " * several) for each in group)
