"""What the tables of a comparison have in common: how rows and figures are named, rows left out."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernel_workbench.reports.document.fields import number, table_of, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kernel_workbench.reports.comparison.pairs import Dropped, PairedRows
    from kernel_workbench.reports.comparison.side import Key, RecordSide
    from kernel_workbench.reports.document.fields import Field
    from kernel_workbench.reports.document.model import Table

# Op, kernel, its weight in either record, and what a call takes of either side.
Weighed = tuple[str, str, float | None, float | None, float, float]


def name_fields(key_of: Callable[[Any], Key]) -> list[Field[Any]]:
    """The kernel after its op, and below it the case."""
    return [
        text("kernel", lambda each: f"{key_of(each).op} {key_of(each).kernel}"),
        text("case", lambda each: case_text(key_of(each)), below=True),
    ]


def case_text(key: Key) -> str:
    """The case's id without its op, with what isn't as usual."""
    told = [key.case.removeprefix(f"{key.op}-")]
    if key.cache not in ("", "cold"):
        told.append(f"{key.cache} cache")
    if key.distribution != "normal" and key.distribution not in key.case:
        told.append(f"{key.distribution} inputs")
    return ", ".join(told)


def named(side: RecordSide) -> str:
    """The side's letter and what it is of: `B: H100 PCIe, published`."""
    model = side.machine.name.removeprefix("NVIDIA ")
    kind = "" if side.figures == "measured" else f", {side.figures}"
    return f"{side.letter}: {model}{kind}"


def change_text(change: float) -> str:
    """`+2.1 %`, `-0.34 %`: two digits, and no more than are meant."""
    percent = 100 * change
    digits = 2 if abs(percent) < 0.995 else 1
    return f"{percent:+,.{digits}f} %"


def rate_text(value: float, unit: str) -> str:
    """`447 TFLOP/s`."""
    return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.2f} {unit}"


def renamed_notes(base: RecordSide, other: RecordSide, pairs: PairedRows[Any]) -> list[str]:
    """Which kernels were compared though their names differ."""
    return [
        f"{op}: {its} of {other.letter} is held against {mine} of {base.letter}"
        for op, (mine, its) in pairs.renamed.items()
    ]


def dropped_tables(pairs: PairedRows[Any], of: str = "") -> list[Table]:
    """What isn't compared, with the reason: refused first, then what one side has alone."""
    fields: list[Field[Dropped]] = [
        *name_fields(lambda each: each.key),
        text("why", lambda each: each.reason),
    ]
    return [
        table_of(f"Refused{of}", fields, pairs.refused, folded=True),
        table_of(f"In one record alone{of}", fields, pairs.unmatched, folded=True),
    ]


def weighted_total(
    base: RecordSide,
    other: RecordSide,
    rows: Iterable[Weighed],
    unit: str,
    told: Callable[[float], str],
) -> Table:
    """What a model's calls take of either side: of the rows that have the same weight in both."""
    sums: dict[tuple[str, str], _WeightedSums] = defaultdict(_WeightedSums)
    for op, kernel, weight, others, before, after in rows:
        if weight is not None and weight == others:
            total = sums[op, kernel]
            total.before += weight * before
            total.after += weight * after
            total.cases += 1
    fields: list[Field[tuple[tuple[str, str], _WeightedSums]]] = [
        text("op", lambda each: each[0][0]),
        text("kernel", lambda each: each[0][1]),
        number("cases", lambda each: each[1].cases),
        number(f"{base.letter} {unit}", lambda each: each[1].before, told),
        number(f"{other.letter} {unit}", lambda each: each[1].after, told),
        number("change", lambda each: each[1].after / each[1].before - 1, change_text),
    ]
    return table_of(
        "Weighted total",
        fields,
        [(of, each) for of, each in sums.items() if each.before > 0],
        "Each case as often as its weight says. A sum, not a verdict.",
    )


@dataclass(slots=True)
class _WeightedSums:
    """Of a kernel: weight times what a call takes, of either side."""

    before: float = 0.0
    after: float = 0.0
    cases: int = 0
