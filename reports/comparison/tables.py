"""Fields and tables that all comparisons have: names of rows, rows left out, weighted totals."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernel_workbench.reports.document.fields import number, table_of, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_workbench.reports.comparison.pairs import AnyRow, Dropped, PairedRows
    from kernel_workbench.reports.comparison.side import Key, RecordSide
    from kernel_workbench.reports.document.fields import Field
    from kernel_workbench.reports.document.model import Table


def name_fields(key_of: Callable[[Any], Key]) -> list[Field[Any]]:
    """Return the kernel after its op, and below it the case."""
    return [
        text("kernel", lambda item: f"{key_of(item).op} {key_of(item).kernel}"),
        text("case", lambda item: case_text(key_of(item)), below=True),
    ]


def case_text(key: Key) -> str:
    """Return the case's id without its op, with what isn't as usual."""
    words = [key.case.removeprefix(f"{key.op}-")]
    if key.cache not in ("", "cold"):
        words.append(f"{key.cache} cache")
    if key.distribution != "normal" and key.distribution not in key.case:
        words.append(f"{key.distribution} inputs")
    return ", ".join(words)


def named(side: RecordSide) -> str:
    """Return the side's letter and what it is of: `B: H100 PCIe, published`."""
    model = side.machine.name.removeprefix("NVIDIA ")
    kind = "" if side.figures == "measured" else f", {side.figures}"
    return f"{side.letter}: {model}{kind}"


def change_text(change: float) -> str:
    """Return `+2.1 %`, `-0.34 %`: two digits, and no more than are meant."""
    percent = 100 * change
    digits = 2 if abs(percent) < 0.995 else 1
    return f"{percent:+,.{digits}f} %"


def rate_text(value: float, unit: str) -> str:
    """Return `447 TFLOP/s`."""
    return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.2f} {unit}"


def renamed_notes(base: RecordSide, other: RecordSide, pairs: PairedRows[Any]) -> list[str]:
    """Return a note for each op whose compared kernels have different names."""
    return [
        f"{op}: {its} of {other.letter} is compared with {mine} of {base.letter}"
        for op, (mine, its) in pairs.renamed.items()
    ]


def dropped_tables(pairs: PairedRows[Any], of: str = "") -> list[Table]:
    """Return tables of the rows that are not compared, with the reasons: refused ones first."""
    fields: list[Field[Dropped]] = [
        *name_fields(lambda dropped: dropped.key),
        text("why", lambda dropped: dropped.reason),
    ]
    return [
        table_of(f"Refused{of}", fields, pairs.refused, folded=True),
        table_of(f"In one record alone{of}", fields, pairs.unmatched, folded=True),
    ]


def weighted_total(
    base: RecordSide,
    other: RecordSide,
    pairs: PairedRows[AnyRow],
    taken: Callable[[AnyRow], float],
    unit: str,
    form: Callable[[float], str],
) -> Table:
    """Return a table of what a model's calls take: rows with the same weight on both sides.

    Args:
        taken: what a call of a row takes.
        unit: of it, as `form` writes it.
    """
    sums: dict[tuple[str, str], _WeightedSums] = defaultdict(_WeightedSums)
    for pair in pairs.pairs:
        key, weight = pair.key, pair.base.row.weight
        if weight is not None and weight == pair.other.row.weight:
            inputs = "" if key.distribution == "normal" else f", {key.distribution} inputs"
            total = sums[key.op, f"{key.kernel}{inputs}"]
            total.before += weight * taken(pair.base)
            total.after += weight * taken(pair.other)
            total.cases += 1
    fields: list[Field[tuple[tuple[str, str], _WeightedSums]]] = [
        text("op", lambda item: item[0][0]),
        text("kernel", lambda item: item[0][1]),
        number("cases", lambda item: item[1].cases),
        number(f"{base.letter} {unit}", lambda item: item[1].before, form),
        number(f"{other.letter} {unit}", lambda item: item[1].after, form),
        number("change", lambda item: item[1].after / item[1].before - 1, change_text),
    ]
    return table_of(
        "Weighted total",
        fields,
        [(of, sums_of_kernel) for of, sums_of_kernel in sums.items() if sums_of_kernel.before > 0],
        "Each case as often as its weight says. A sum, not a verdict.",
    )


@dataclass(slots=True)
class _WeightedSums:
    """The sums of one kernel: weight times what a call takes, on either side."""

    before: float = 0.0
    after: float = 0.0
    cases: int = 0
