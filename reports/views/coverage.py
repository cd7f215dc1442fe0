"""Which pairs of levels a kernel's cases met, in records of accuracy and of search."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kernel_workbench.reports.document.fields import number, table_of, text

if TYPE_CHECKING:
    from kernel_workbench.reports.document.model import Table
    from kernel_workbench.reports.record import CoverageRow


def share_met(rows: Iterable[CoverageRow]) -> float | None:
    """Return the share of possible pairs that met; None where no pair was looked for."""
    kept = list(rows)
    possible = sum(row.possible for row in kept)
    return sum(row.met for row in kept) / possible if possible else None


def unmet_pairs(rows: Iterable[CoverageRow]) -> Table:
    """Return a table of the pairs that no case met."""
    return table_of(
        "Pairs of levels that no case met",
        (
            text("op", lambda each: each.op, group=True),
            text("kernel", lambda each: each.kernel),
            text("factors", lambda each: f"{each.factor}, {each.other}"),
            number("met", lambda each: each.met),
            number("possible", lambda each: each.possible),
            text("for example", lambda each: "; ".join(each.missing), below=True),
        ),
        [row for row in rows if row.met < row.possible],
        level="details",
    )
