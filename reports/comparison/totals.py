"""What a model's calls take of either side, where the rows say how often it makes each."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from reports.comparison.words import changed
from reports.page import Cell, Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from reports.comparison.sides import Side

# Op, kernel, its weight in either record, and what a call takes of either side.
Weighed = tuple[str, str, float | None, float | None, float, float]


def weighted_total(
    base: Side, other: Side, rows: Iterable[Weighed], unit: str, told: Callable[[float], Cell]
) -> list[Table]:
    """A table of the sums, if there are any: of the rows that have the same weight in both."""
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for op, kernel, weight, others, before, after in rows:
        if weight is None or weight != others:
            continue
        total = sums[op, kernel]
        total[0] += weight * before
        total[1] += weight * after
        total[2] += 1
    columns = (
        Column("op"),
        Column("kernel"),
        Column("cases", "number"),
        Column(f"{base.letter} {unit}", "number"),
        Column(f"{other.letter} {unit}", "number"),
        Column("change", "number"),
    )
    lines: list[tuple[Cell | str, ...]] = [
        (
            op,
            kernel,
            Cell(f"{cases:,.0f}", cases),
            told(before),
            told(after),
            Cell(changed(after / before - 1), after / before - 1),
        )
        for (op, kernel), (before, after, cases) in sums.items()
        if before > 0
    ]
    note = "Each case as often as its weight says. A sum, not a verdict."
    return [Table("Weighted total", columns, lines, note)] if lines else []
