"""Which pairs of levels a kernel's cases met, in records of accuracy and of search."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kernel_workbench.reports.document.fields import number, table_of, text

if TYPE_CHECKING:
    from kernel_workbench.reports.document.model import Table
    from kernel_workbench.reports.record import CoverageRow


def share_met(rows: Iterable[CoverageRow]) -> float | None:
    """Of the pairs that some case has which the kernel serves; None where none was looked for."""
    kept = list(rows)
    possible = sum(each.possible for each in kept)
    return sum(each.met for each in kept) / possible if possible else None


def unmet_pairs(rows: Iterable[CoverageRow]) -> Table:
    """What no case met."""
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
        [each for each in rows if each.met < each.possible],
        level="details",
    )
