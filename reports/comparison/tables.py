"""What the tables of a comparison have in common: how rows and figures are named, rows left out."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from reports.document.model import Cell, Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from reports.comparison.pairs import Pairs
    from reports.comparison.side import Key, Side

NAMES = (Column("kernel"), Column("case", below=True))  # of the cells that `names` gives
MOST = 5  # rows of a table that a screen has room for, of two lines each
# Op, kernel, its weight in either record, and what a call takes of either side.
Weighed = tuple[str, str, float | None, float | None, float, float]


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


def changed(change: float) -> Cell:
    """`+2.1 %`, `-0.34 %`: two digits, and no more than are meant."""
    percent = 100 * change
    digits = 2 if abs(percent) < 0.995 else 1
    return Cell(f"{percent:+,.{digits}f} %", change)


def time_told(time_us: float) -> Cell:
    """A time of microseconds in four digits: `5.024`, `47.31`, `1,228`."""
    digits = 3 if time_us < 10 else 2 if time_us < 100 else 1 if time_us < 1000 else 0
    return Cell(f"{time_us:,.{digits}f}", time_us)


def rate_text(value: float, unit: str) -> str:
    """`447 TFLOP/s`."""
    return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.2f} {unit}"


def times(ratio: float) -> str:
    """How many times as fast, or as much."""
    return f"{ratio:.3f}x" if ratio < 1 else f"{ratio:.2f}x" if ratio < 10 else f"{ratio:,.1f}x"


def renamed_notes(base: Side, other: Side, pairs: Pairs[Any]) -> list[str]:
    """Which kernels were compared though their names differ."""
    return [
        f"{op}: {its} of {other.letter} is held against {mine} of {base.letter}"
        for op, (mine, its) in pairs.renamed.items()
    ]


def dropped_tables(pairs: Pairs[Any], of: str = "") -> list[Table]:
    """What isn't compared, with the reason: refused first, then what one side has alone."""
    refused, unmatched = (
        [(*names(each.key), each.reason) for each in rows]
        for rows in (pairs.refused, pairs.unmatched)
    )
    columns = (*NAMES, Column("why"))
    return [
        Table(f"Refused{of}", columns, refused, most=3),
        Table(f"In one record alone{of}", columns, unmatched, folded=True),
    ]


def weighted_total(
    base: Side, other: Side, rows: Iterable[Weighed], unit: str, told: Callable[[float], Cell]
) -> Table:
    """What a model's calls take of either side: of the rows that have the same weight in both."""
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for op, kernel, weight, others, before, after in rows:
        if weight is not None and weight == others:
            total = sums[op, kernel]
            total[0] += weight * before
            total[1] += weight * after
            total[2] += 1
    return Table(
        "Weighted total",
        (
            Column("op"),
            Column("kernel"),
            Column("cases", "number"),
            Column(f"{base.letter} {unit}", "number"),
            Column(f"{other.letter} {unit}", "number"),
            Column("change", "number"),
        ),
        [
            (op, kernel, Cell(f"{cases:,.0f}", cases), told(before), told(after),
             changed(after / before - 1))
            for (op, kernel), (before, after, cases) in sums.items()
            if before > 0
        ],
        "Each case as often as its weight says. A sum, not a verdict.",
    )  # fmt: skip
