"""Summarise the pairs of levels that kernels' cases met, in records of accuracy and search."""

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
            text("op", lambda item: item.op, group=True),
            text("kernel", lambda item: item.kernel),
            text("factors", lambda item: f"{item.factor}, {item.other}"),
            number("met", lambda item: item.met),
            number("possible", lambda item: item.possible),
            text("for example", lambda item: "; ".join(item.missing), below=True),
        ),
        [row for row in rows if row.met < row.possible],
        level="details",
    )
