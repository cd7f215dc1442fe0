"""Compare the accuracy of two records; a report shows it before any speed.

Inputs are the same at every run, so a kernel's errors repeat, but for what atomics or another
version of a compiler move. Errors that grow by more than a tenth are a change, and so is an output
that a kernel computed, and now leaves out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kernel_workbench.reports.comparison.tables import name_fields
from kernel_workbench.reports.document.fields import table_of, text
from kernel_workbench.reports.document.model import Cell, ReportPart
from kernel_workbench.reports.phrases import count, number, ratio

if TYPE_CHECKING:
    from kernel_workbench.reports.comparison.side import JudgedRow, Key, RecordSide
    from kernel_workbench.reports.document.fields import Field
    from kernel_workbench.reports.document.model import Tone

GROWTH = 1.1
Kind = Literal["LESS ACCURATE", "MORE ACCURATE", "OTHER STATUS"]
# Statuses that say how right a kernel was; of others (refused, not checked) nothing is known.
_KNOWN = {"passed", "failed"}
_TONES: dict[Kind, Tone] = {
    "LESS ACCURATE": "bad",
    "MORE ACCURATE": "good",
    "OTHER STATUS": "doubtful",
}


@dataclass(frozen=True, slots=True)
class AccuracyChange:
    """How a row's accuracy changed from the base to the other side."""

    key: Key
    kind: Kind
    before: str
    after: str
    gates: bool


def accuracy_changes(base: RecordSide, other: RecordSide) -> tuple[list[AccuracyChange], int]:
    """Return the changes, and the number of rows that both sides judged."""
    common = [key for key in base.judged if key in other.judged]
    changes = []
    for key in common:
        before, after = base.judged[key], other.judged[key]
        given_up = [problem for problem in other.left_out(key) if problem not in base.left_out(key)]
        change = _change(before, after)
        if given_up:
            without = f"{_status_text(after)}, without {', '.join(given_up)}"
            change = AccuracyChange(
                key, "LESS ACCURATE", _status_text(before), without, after.gates
            )
        if change is not None:
            changes.append(change)
    return changes, len(common)


def accuracy_part(
    base: RecordSide, other: RecordSide
) -> tuple[ReportPart | None, list[AccuracyChange]]:
    """Return the part of a report; None where the sides share no row whose accuracy is known."""
    changes, common = accuracy_changes(base, other)
    if not common:
        return None, []
    of_kind = {kind: [change for change in changes if change.kind == kind] for kind in _TONES}

    def fields(tone: Tone) -> list[Field[AccuracyChange]]:
        return [
            *name_fields(lambda change: change.key),
            text(base.letter, lambda change: change.before),
            text(other.letter, lambda change: Cell(change.after, tone=tone)),
        ]

    tables = [
        table_of(
            kind.capitalize(),
            fields(_TONES[kind]),
            rows,
            least=3 if kind == "LESS ACCURATE" else 0,
        )
        for kind, rows in of_kind.items()
    ]
    worse, better, other_status = map(len, of_kind.values())
    verdict = "LESS ACCURATE" if worse else "MORE ACCURATE" if better else "AS ACCURATE"
    sentence = (
        f"of {count(common, 'row')} that both have, {worse:,} less accurate, {better:,} more, "
        f"{other_status:,} of another status, {common - len(changes):,} as before"
    )
    title = f"Accuracy: {other.letter} beside {base.letter}"
    return ReportPart(title, verdict, "bad" if worse else "good", sentence, items=tables), changes


def _change(before: JudgedRow, after: JudgedRow) -> AccuracyChange | None:
    kind: Kind | None = None
    words = _status_text(before), _status_text(after)
    if before.status != after.status:
        if before.status not in _KNOWN or after.status not in _KNOWN:
            kind = "OTHER STATUS"
        else:
            kind = "LESS ACCURATE" if after.status == "failed" else "MORE ACCURATE"
    else:
        grown = _growth(before.worst_ratio, after.worst_ratio)
        name = None
        for output, error in before.rmse.items():
            growth = _growth(error, after.rmse.get(output))
            if _extent(growth) > _extent(grown):
                grown, name = growth, output
        if _extent(grown) > GROWTH:
            kind = "LESS ACCURATE" if grown > 1 else "MORE ACCURATE"
            if name is not None:
                words = (
                    f"{words[0]}, rmse of {name} {number(before.rmse[name])}",
                    f"{words[1]}, rmse of {name} {number(after.rmse[name])}",
                )
    if kind is None:
        return None
    return AccuracyChange(after.key, kind, *words, gates=after.gates)


def _growth(before: float | None, after: float | None) -> float:
    """Return how many times as large an error became, NaN being the largest; 1 if unknown."""
    if before is None or after is None:
        return 1.0
    before, after = (math.inf if math.isnan(item) else item for item in (before, after))
    if before == after:
        return 1.0
    return math.inf if before == 0 or math.isinf(after) else after / before


def _extent(growth: float) -> float:
    """Return how far from 1 a factor is, either way."""
    return math.inf if growth == 0 else max(growth, 1 / growth)


def _status_text(row: JudgedRow) -> str:
    rule = f" by {row.rule}" if row.rule else ""
    worst = "" if row.worst_ratio is None else f", worst {ratio(row.worst_ratio)}"
    return f"{row.status}{rule}{worst}"
