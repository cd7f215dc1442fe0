"""How many units in the last place kernels' results are off: what is measured, not judged.

Errors are counted over the spacing of the output's dtype at what is right. Correct arithmetic is
off by 0.5 of its last rounding, and where a result cancels by any number: the shares tell kernels
apart, and one release of a kernel from the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from reports.phrases import share
from reports.record import shown
from reports.schema import ULP_EDGES
from reports.summary import by_kernel, several_ops
from reports.tables import heading, new_table, op_by_op

if TYPE_CHECKING:
    from rich.console import Console

    from reports.record import Record

# What is shown: the last of `ULP_EDGES` in each column, and all beyond them.
_SHOWN = (0.0, 0.5, 1.0, 2.0, 4.0, 2.0**4, 2.0**8, 2.0**16)
TITLE = "Errors in units of the last place, by the share of a kernel's elements"
HEAD = ("kernel", *(f"<= {edge:g}" if edge else "0" for edge in _SHOWN), "more")


@dataclass(frozen=True, slots=True)
class UlpShares:
    """A kernel's errors: the share of its compared elements in each of HEAD's columns."""

    op: str
    kernel: str
    shares: tuple[float, ...]


def ulp_shares(record: Record) -> tuple[UlpShares, ...]:
    """Of every kernel of which some element was compared."""
    found = []
    for (op, kernel), rows in by_kernel(record).items():
        counts = [0] * (len(ULP_EDGES) + 1)
        for row in rows:
            for output in row.outputs:
                for place, number in enumerate(output.ulp_histogram):
                    counts[place] += number
        total = sum(counts)
        if total:
            ends = [ULP_EDGES.index(edge) + 1 for edge in _SHOWN]
            parts = zip((0, *ends), (*ends, len(counts)), strict=True)
            shares = tuple(sum(counts[start:end]) / total for start, end in parts)
            found.append(UlpShares(op, kernel, shares))
    return tuple(found)


def render_ulps(record: Record, console: Console) -> None:
    """Print a line for each kernel."""
    found = ulp_shares(record)
    if not found:
        return
    heading(console, TITLE)
    table = new_table()
    table.add_column(HEAD[0], overflow="fold")
    for title in HEAD[1:]:
        table.add_column(title, justify="right", no_wrap=True)
    for each, indent in op_by_op(found, table, several=several_ops(record)):
        table.add_row(Text(indent + shown(each.kernel)), *map(share, each.shares))
    console.print(table)


def ulp_rows(record: Record) -> list[tuple[str, ...]]:
    """The same as rows under HEAD, for a table of another kind."""
    several = several_ops(record)
    return [
        (f"{each.op} {each.kernel}" if several else each.kernel, *map(share, each.shares))
        for each in ulp_shares(record)
    ]
