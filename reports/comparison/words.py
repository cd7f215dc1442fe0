"""How a comparison puts figures, rows and sides into words, and rows left out into tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reports.page import Cell, Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reports.comparison.pairs import Dropped, Pairs
    from reports.comparison.sides import Key, Side


def changed(change: float) -> str:
    """`+2.1 %`, `-0.34 %`: two digits, and no more than are meant."""
    percent = 100 * change
    return f"{percent:+,.2f} %" if abs(percent) < 0.995 else f"{percent:+,.1f} %"


def time_text(time_us: float) -> str:
    """A time in four digits: `5.024`, `47.31`, `1,228`."""
    if time_us >= 1000:
        return f"{time_us:,.0f}"
    digits = 3 if time_us < 10 else 2 if time_us < 100 else 1
    return f"{time_us:.{digits}f}"


def time_told(time_us: float) -> Cell:
    """A time in microseconds, as a cell that sorts."""
    return Cell(time_text(time_us), time_us)


def rate_text(value: float, unit: str) -> str:
    """`447 TFLOP/s`."""
    return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.2f} {unit}"


def times(ratio: float) -> str:
    """How many times as fast, or as much."""
    return f"{ratio:.3f}x" if ratio < 1 else f"{ratio:.2f}x" if ratio < 10 else f"{ratio:,.1f}x"


def names(key: Key) -> tuple[str, str]:
    """The kernel after its op, and the case without it, with what isn't as usual."""
    told = [key.case.removeprefix(f"{key.op}-")]
    if key.cache not in ("", "cold"):
        told.append(f"{key.cache} cache")
    if key.distribution != "normal" and key.distribution not in key.case:
        told.append(f"{key.distribution} inputs")
    return f"{key.op} {key.kernel}", ", ".join(told)


def named(side: Side) -> str:
    """The side's letter and what it is of: `B: H100 PCIe, published`."""
    model = side.machine.name.removeprefix("NVIDIA ")
    kind = "" if side.figures == "measured" else f", {side.figures}"
    return f"{side.letter}: {model}{kind}"


def dropped_tables(pairs: Pairs[Any]) -> list[Table]:
    """What isn't compared, with the reason: refused first, then what one side has alone."""
    return [
        Table(title, (Column("kernel"), Column("case"), Column("why")), _rows(rows), folded=folded)
        for title, rows, folded in (
            ("Refused", pairs.refused, False),
            ("In one record alone", pairs.unmatched, True),
        )
        if rows
    ]


def _rows(dropped: Sequence[Dropped]) -> list[tuple[str, str, str]]:
    return [(*names(each.key), each.reason) for each in dropped]
