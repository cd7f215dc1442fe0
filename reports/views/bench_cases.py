"""The rows of a record of `bench`, case by case and kernel by kernel.

Every ratio is of times: 2 took twice as long. Rows are compared where they are of one case, cache
and distribution. A weighted total has the calls on which its kernel has a time, and stands beside
the reference's total of the same calls, since a kernel that skips the slow ones is no faster. Texts
are as the record has them.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernel_workbench.reports.views.performance import by_case, over
from kernel_workbench.reports.views.run import name_of, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kernel_workbench.reports.record import BenchRow, Record


@dataclass(frozen=True, slots=True)
class CaseRow:
    """A row with what it is next to the others of its case; None where there is no figure.

    Attributes:
        name: the kernel's, with what it computes, "dx alone", where that isn't all of the op; then
            no ratio compares it with a kernel that computes more.
    """

    row: BenchRow
    name: str
    to_best: float | None
    to_baseline: float | None

    @property
    def is_part(self) -> bool:
        """True if its kernel computes a part of the op alone."""
        return self.name != self.row.kernel

    @property
    def is_best(self) -> bool:
        """True if no row of its case took less time."""
        return self.to_best == 1


@dataclass(frozen=True, slots=True)
class CaseRows:
    """The rows of one case, the fastest first and those without a figure last."""

    op: str
    title: str
    weight: float | None
    rows: tuple[CaseRow, ...]


@dataclass(frozen=True, slots=True)
class KernelRows:
    """One kernel over the cases of its op. Ratios are None where no case has them."""

    op: str
    kernel: str
    name: str
    origin: str
    timed: int
    fastest: int
    to_best: float | None
    to_baseline: float | None
    share: float | None
    without: str


@dataclass(frozen=True, slots=True)
class CallsTotal:
    """A model's calls of one kernel: each case as often as its weight says.

    Attributes:
        name: the kernel's, as in `CaseRow`.
        share: the op's share of the time of all calls with a weight, 0 to 1: each call takes the
            baseline's time, or the fastest kernel's where the baseline has none. None if no row of
            the op has a time.
        calls: those on which the kernel has a time.
        of: the op's calls with a weight.
        time_us: the kernel's, of `calls`.
        reference_us: the baseline's, or without a baseline the fastest kernel's, of the calls on
            which it and the kernel have a time and compute the same; None where there are none.
        ratio: the kernel's time of these calls over `reference_us`.
    """

    op: str
    name: str
    share: float | None
    calls: float
    of: float
    time_us: float
    reference_us: float | None
    ratio: float | None


def short_case(row: BenchRow) -> str:
    """Return the case's id without its op's name, and what of it the id doesn't say."""
    text = row.case.id.removeprefix(f"{row.op}-")
    besides: list[str] = [row.cache] if row.cache != "cold" else []
    if row.distribution not in {"normal", row.case.distribution}:
        besides.append(row.distribution)
    return f"{text} ({', '.join(besides)})" if besides else text


def cases_of(record: Record, baseline: str | None = None) -> tuple[CaseRows, ...]:
    """Return the rows case by case, op by op, each in the order in which it came first."""
    parts = parts_of(record.header)
    result = []
    for (op, title), rows in by_case(record.benches, short_case).items():
        part = {row.kernel: parts.get((op, row.kernel)) for row in rows}
        whole = (time_us(row) for row in rows if part[row.kernel] is None)
        best = min(filter(None, whole), default=None)
        base = next((time_us(row) for row in rows if row.kernel == baseline), None)
        timed = [
            CaseRow(
                row,
                name_of(row.kernel, part[row.kernel]),
                over(time_us(row), best) if part[row.kernel] is None else None,
                over(time_us(row), base) if part[row.kernel] == part.get(baseline or "") else None,
            )
            for row in rows
        ]
        timed.sort(key=lambda item: math.inf if item.to_best is None else item.to_best)
        weight = next((row.weight for row in rows if row.weight is not None), None)
        result.append(CaseRows(op, title, weight, tuple(timed)))
    return tuple(result)


def time_us(row: BenchRow) -> float | None:
    """Return the row's median, where it is one that can be compared."""
    us = row.median_us
    return us if row.status == "timed" and us is not None and 0 < us < math.inf else None


def roof_of(cases: Sequence[CaseRows]) -> str:
    """Return the roof of shares: the datasheet's `peak`, else the measured `ceiling`."""
    rows = (row.row for case in cases for row in case.rows)
    return "peak" if any(row.share_of_peak is not None for row in rows) else "ceiling"


def share_of(row: BenchRow, roof: str) -> float | None:
    """Return the row's share of `roof_of`."""
    return row.share_of_peak if roof == "peak" else row.share_of_ceiling


def kernels_of(record: Record, cases: Sequence[CaseRows]) -> tuple[KernelRows, ...]:
    """Each kernel over the cases of its op, by the geometric mean of its ratios to the best."""
    origins = {(kernel.op, kernel.name): kernel.origin for kernel in record.header.kernels}
    rows: dict[tuple[str, str], list[CaseRow]] = {}
    for case in cases:
        for row in case.rows:
            rows.setdefault((case.op, row.row.kernel), []).append(row)
    roof = roof_of(cases)
    result = []
    for (op, kernel), of_kernel in rows.items():
        timed = [entry for entry in of_kernel if time_us(entry.row) is not None]
        shares = (share_of(timed_row.row, roof) for timed_row in timed)
        values = sorted(
            share_value
            for share_value in shares
            if share_value is not None and math.isfinite(share_value)
        )
        statuses = Counter(entry.row.status for entry in of_kernel if entry.row.status != "timed")
        result.append(
            KernelRows(
                op=op,
                kernel=kernel,
                name=of_kernel[0].name,
                origin=origins.get((op, kernel), "not listed"),
                timed=len(timed),
                fastest=sum(timed_row.is_best for timed_row in timed),
                to_best=_geometric_mean([timed_row.to_best for timed_row in timed]),
                to_baseline=_geometric_mean([timed_row.to_baseline for timed_row in timed]),
                share=values[len(values) // 2] if values else None,
                without=", ".join(f"{times:,} {status}" for status, times in statuses.items()),
            )
        )
    ops = list(dict.fromkeys(entry.op for entry in result))
    result.sort(key=lambda item: (ops.index(item.op), item.to_best or math.inf))
    return tuple(result)


def totals_of(cases: Sequence[CaseRows], baseline: str | None = None) -> tuple[CallsTotal, ...]:
    """Return the weighted totals of each op's kernels: ops by their time, kernels by their calls.

    Args:
        cases: those of a record. A case that was timed with a cold and a warm cache, or under
            several distributions, counts once, by its first rows.
        baseline: the kernel of `reference_us`.
    """
    by_op: dict[str, dict[str, CaseRows]] = {}
    for case in cases:
        if case.weight is not None:
            by_op.setdefault(case.op, {}).setdefault(case.rows[0].row.case.id, case)
    of_ops = {op: _op_time(of_op.values(), baseline) for op, of_op in by_op.items()}
    whole = sum(of_ops.values())
    result: list[CallsTotal] = []
    for op, of_op in by_op.items():
        share = of_ops[op] / whole if of_ops[op] else None
        totals = _totals(op, tuple(of_op.values()), share, with_baseline=baseline is not None)
        result += sorted(totals, key=lambda total: (-total.calls, total.ratio or math.inf))
    result.sort(key=lambda total: -of_ops[total.op])
    return tuple(result)


def _op_time(cases: Iterable[CaseRows], baseline: str | None) -> float:
    """Return the time of all calls of an op, by the baseline or by the fastest kernel."""
    total = 0.0
    for case in cases:
        times = {item.row.kernel: time_us(item.row) for item in case.rows if not item.is_part}
        fastest = min(filter(None, times.values()), default=0.0)
        total += (case.weight or 0.0) * (times.get(baseline or "") or fastest)
    return total


def _totals(
    op: str, cases: Sequence[CaseRows], share: float | None, *, with_baseline: bool
) -> list[CallsTotal]:
    """Return the total of each kernel that has a time on a call of the op."""
    timed: dict[str, list[tuple[float, float, float | None]]] = {}  # weight, time, ratio
    for case in cases:
        for item in case.rows:
            time = time_us(item.row)
            if time is not None:
                ratio = item.to_baseline if with_baseline else item.to_best
                timed.setdefault(item.name, []).append((case.weight or 0.0, time, ratio))
    result = []
    for name, calls in timed.items():
        both = [(weight * time, ratio) for weight, time, ratio in calls if ratio is not None]
        reference = sum(time / ratio for time, ratio in both) or None
        result.append(
            CallsTotal(
                op=op,
                name=name,
                share=share,
                calls=sum(weight for weight, _, _ in calls),
                of=sum(case.weight or 0.0 for case in cases),
                time_us=sum(weight * time for weight, time, _ in calls),
                reference_us=reference,
                ratio=over(sum(time for time, _ in both), reference),
            )
        )
    return result


def _geometric_mean(ratios: Sequence[float | None]) -> float | None:
    present = [value for value in ratios if value is not None]
    return math.exp(sum(map(math.log, present)) / len(present)) if present else None
