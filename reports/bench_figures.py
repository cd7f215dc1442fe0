"""The rows of a record of `nox -s bench`, grouped and compared, for every kind of report.

Every ratio is of times: 2 took twice as long. Rows are compared where they are of one case, cache
and distribution. A total with weights counts the cases on which each kernel of the op has a time,
since one that skips the slow ones is no faster. Texts are as the record has them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from reports.bench_notes import believed
from reports.headline import environment_lines, total_duration
from reports.partial import name_of, parts_of
from reports.phrases import count, figure
from reports.record import RecordError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reports.page import Tone
    from reports.record import Record
    from reports.schema import BenchRow, Roof

Value = TypeVar("Value")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")  # whole words: not of float16
_TONES: dict[str, Tone] = {
    "TIMED": "good",
    "PUBLISHED": "doubtful",
    "IMPORTED": "doubtful",
    "FAILED": "bad",
    "INCOMPLETE": "doubtful",
    "NOTHING TIMED": "bad",
}


@dataclass(frozen=True, slots=True)
class Timed:
    """A row with what it is next to the others of its case; None where there is no figure.

    part: what its kernel computes, "dx alone", where that isn't all of the op; then it is held
    against no kernel that computes more
    """

    row: BenchRow
    to_best: float | None
    to_baseline: float | None
    part: str | None = None

    @property
    def name(self) -> str:
        """The kernel's, with the part that it computes."""
        return name_of(self.row.kernel, self.part)

    @property
    def is_best(self) -> bool:
        """Whether no row of its case took less time."""
        return self.to_best == 1


@dataclass(frozen=True, slots=True)
class CaseRows:
    """The rows of one case, the fastest first and those without a figure last."""

    op: str
    title: str
    weight: float | None
    rows: tuple[Timed, ...]


@dataclass(frozen=True, slots=True)
class KernelRows:
    """One kernel over the cases of its op. Ratios and totals are None where no case has them.

    part: what it computes, "dx alone", where that isn't all of the op
    """

    op: str
    kernel: str
    origin: str
    timed: int
    fastest: int
    to_best: float | None
    to_baseline: float | None
    share: float | None
    share_of: str
    without: str
    weighted_us: float | None
    weighted_cases: int
    part: str | None = None

    @property
    def name(self) -> str:
        """The kernel's, with the part that it computes."""
        return name_of(self.kernel, self.part)


def verdict_of(record: Record) -> tuple[str, Tone]:
    """The verdict and its tone; TIMED needs a whole record and nothing against it."""
    rows = record.benches
    gated = any(row.status in {"wrong", "failed"} and row.gates for row in rows)
    status = 0 if record.end is None else record.end.exit_status
    if record.problem is not None:
        verdict = "INCOMPLETE"
    elif gated or status or not believed(record):
        verdict = "FAILED"
    elif not any(row.status == "timed" for row in rows):
        verdict = "NOTHING TIMED"
    else:
        verdict = {"published": "PUBLISHED", "imported": "IMPORTED"}.get(
            record.header.figures, "TIMED"
        )
    return verdict, _TONES[verdict]


def summary_of(record: Record) -> str:
    """What was timed, in one sentence."""
    rows = record.benches
    statuses: Counter[str] = Counter(row.status for row in rows)
    kernels = {(row.op, row.kernel) for row in rows}
    cases = {(row.op, row.case.id) for row in rows}
    counted = [f"{statuses['timed']:,} timed"]
    without = ("wrong", "failed", "refused", "absent")
    counted += [f"{statuses[each]:,} {each}" for each in without if statuses[each]]
    caches = Counter(row.cache for row in rows if row.status == "timed")
    cached = {1: f", {next(iter(caches), '')} cache", 2: ", cold and warm cache"}.get(
        len(caches), ""
    )
    here = f"{cached}, in {total_duration(record)}" if record.header.figures == "measured" else ""
    return (
        f"{count(len(rows), 'row')} ({count(len(kernels), 'kernel')}, "
        f"{count(len(cases), 'case')}): {', '.join(counted)}{here}"
    )


def facts_of(record: Record) -> tuple[tuple[str, str], ...]:
    """What was run where, under which roofs, as (label, text)."""
    header, machine = record.header, record.header.environment
    facts = list(environment_lines(record))
    if machine.device == "cpu":  # nothing is interpreted here: what runs is timed as it is
        facts = [
            (label, f"no GPU: {machine.device_name}" if label == "device" else text)
            for label, text in facts
        ]
    if machine.power_limit_w is not None or machine.max_sm_clock_mhz is not None:
        parts = (
            machine.power_limit_w and f"{figure(machine.power_limit_w)} W enforced",
            machine.default_sm_clock_mhz and f"SM clock {machine.default_sm_clock_mhz:,} MHz",
            machine.max_sm_clock_mhz and f"at most {machine.max_sm_clock_mhz:,} MHz",
        )
        facts.insert(2, ("limits", ", ".join(part for part in parts if part)))
    for label, measured in (("datasheet", False), ("measured", True)):
        roofs = [roof for roof in header.roofs if roof.measured is measured]
        if roofs:
            facts.append((label, ", ".join(map(roof_text, roofs))))
    if header.flush is not None:
        word = "evicts" if header.flush.evicts else "DOES NOT EVICT"
        facts.append(("L2 flush", f"{word}: {header.flush.reason}"))
    empty_us = header.empty_call_us
    if empty_us is not None:
        facts.append(("empty call", f"{figure(empty_us)} us, which are part of every time here"))
    if machine.missing:
        facts.append(
            ("not read", "; ".join(f"{name} ({why})" for name, why in machine.missing.items()))
        )
    return tuple(facts)


def roof_text(roof: Roof) -> str:
    """`add 4,390 GB/s`, with the clock that the SMs ran at where it is known."""
    clock = "" if roof.clock_mhz is None else f" at {figure(roof.clock_mhz)} MHz"
    return f"{roof.name} {figure(roof.value)} {roof.unit}{clock}"


def short_case(row: BenchRow) -> str:
    """The case's id without its op's name, and what of it the id doesn't say."""
    text = row.case.id.removeprefix(f"{row.op}-")
    besides: list[str] = [row.cache] if row.cache != "cold" else []
    if row.distribution not in {"normal", row.case.distribution}:
        besides.append(row.distribution)
    return f"{text} ({', '.join(besides)})" if besides else text


def cases_of(record: Record, baseline: str | None = None) -> tuple[CaseRows, ...]:
    """The rows case by case, op by op, each in the order in which it came first."""
    groups: dict[tuple[str, str], list[BenchRow]] = {}
    for row in record.benches:
        groups.setdefault((row.op, short_case(row)), []).append(row)
    ops = list(dict.fromkeys(op for op, _ in groups))
    parts = parts_of(record.header)
    found = []
    for (op, title), rows in sorted(groups.items(), key=lambda item: ops.index(item[0][0])):
        part = {row.kernel: parts.get((op, row.kernel)) for row in rows}
        whole = (time_us(row) for row in rows if part[row.kernel] is None)
        best = min(filter(None, whole), default=None)
        base = next((time_us(row) for row in rows if row.kernel == baseline), None)
        timed = [
            Timed(
                row,
                _over(time_us(row), best) if part[row.kernel] is None else None,
                _over(time_us(row), base) if part[row.kernel] == part.get(baseline or "") else None,
                part[row.kernel],
            )
            for row in rows
        ]
        timed.sort(key=lambda each: math.inf if each.to_best is None else each.to_best)
        weight = next((row.weight for row in rows if row.weight is not None), None)
        found.append(CaseRows(op, title, weight, tuple(timed)))
    return tuple(found)


def check_baseline(record: Record, baseline: str | None) -> None:
    """Raise RecordError where no row of the record is of the kernel named."""
    if baseline is None:
        return
    names = sorted({row.kernel for row in record.benches})
    if baseline not in names:
        known = ", ".join(map(shown, names[:12])) or "none"
        raise RecordError(
            f"{shown(record.path)}: no row is of a kernel {shown(baseline)!r}, so it can't be the "
            f"baseline; the record has {known}"
        )


def time_us(row: BenchRow) -> float | None:
    """The row's median, where it is one that can be compared."""
    us = row.median_us
    return us if row.status == "timed" and us is not None and 0 < us < math.inf else None


def roof_of(cases: Sequence[CaseRows]) -> str:
    """What shares are of: the datasheet's `peak`, or the measured `ceiling` where none is known."""
    rows = (each.row for case in cases for each in case.rows)
    return "peak" if any(row.share_of_peak is not None for row in rows) else "ceiling"


def share_of(row: BenchRow, roof: str) -> float | None:
    """The row's share of `roof_of`."""
    return row.share_of_peak if roof == "peak" else row.share_of_ceiling


def past_belief(share: float | None, roof: str) -> bool:
    """Whether no device has such a share: of roofs only a measured one can be passed."""
    return share is not None and (not math.isfinite(share) or (roof == "peak" and share > 1))


def rate_text(row: BenchRow) -> str:
    """What the row achieved of what limits it: `2,621 GB/s`, `520.3 TFLOP/s`."""
    if row.limit == "memory" or row.tflops is None:
        return "-" if row.gb_s is None else f"{figure(row.gb_s, 3)} GB/s   "
    return f"{figure(row.tflops, 4)} TFLOP/s"


def kernels_of(record: Record, cases: Sequence[CaseRows]) -> tuple[KernelRows, ...]:
    """Each kernel over the cases of its op, by the geometric mean of its ratios to the best."""
    origins = {(each.op, each.name): each.origin for each in record.header.kernels}
    rows: dict[tuple[str, str], list[tuple[CaseRows, Timed]]] = {}
    for case in cases:
        for each in case.rows:
            rows.setdefault((case.op, each.row.kernel), []).append((case, each))
    totals = _weighted(cases)
    roof = roof_of(cases)
    found = []
    for (op, kernel), pairs in rows.items():
        timed = [each for _, each in pairs if time_us(each.row) is not None]
        shares = (share_of(each.row, roof) for each in timed)
        values = sorted(each for each in shares if each is not None and math.isfinite(each))
        statuses = Counter(each.row.status for _, each in pairs if each.row.status != "timed")
        total, counted = totals.get((op, kernel), (None, 0))
        found.append(
            KernelRows(
                op=op,
                kernel=kernel,
                part=pairs[0][1].part,
                origin=origins.get((op, kernel), "not listed"),
                timed=len(timed),
                fastest=sum(each.is_best for each in timed),
                to_best=_geometric_mean([each.to_best for each in timed]),
                to_baseline=_geometric_mean([each.to_baseline for each in timed]),
                share=values[len(values) // 2] if values else None,
                share_of=roof,
                without=", ".join(f"{times:,} {status}" for status, times in statuses.items()),
                weighted_us=total,
                weighted_cases=counted,
            )
        )
    ops = list(dict.fromkeys(each.op for each in found))
    found.sort(key=lambda each: (ops.index(each.op), each.to_best or math.inf))
    return tuple(found)


def _weighted(cases: Sequence[CaseRows]) -> dict[tuple[str, str], tuple[float, int]]:
    """By op and kernel: weight x time over the cases in common, and the number of these."""
    times: dict[str, list[tuple[float, dict[str, float]]]] = {}
    for case in cases:
        if case.weight is not None:
            whole = (each.row for each in case.rows if each.part is None)
            known = ((row.kernel, time_us(row)) for row in whole)
            taken = {kernel: time for kernel, time in known if time is not None}
            times.setdefault(case.op, []).append((case.weight, taken))
    found = {}
    for op, of_op in times.items():
        common = in_common(of_op)
        for kernel in common[0][1] if common else ():
            total = sum(weight * taken[kernel] for weight, taken in common)
            found[op, kernel] = total, len(common)
    return found


def in_common(
    cases: Sequence[tuple[float, Mapping[str, Value]]],
) -> list[tuple[float, Mapping[str, Value]]]:
    """Of cases, each a weight and figures by kernel, those that have a figure of every kernel.

    A kernel with no figure on any of them takes no part: it would leave none in common.
    """
    everyone = {kernel for _, having in cases for kernel in having}
    return [each for each in cases if everyone <= each[1].keys()]


def _over(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value / other


def _geometric_mean(ratios: Sequence[float | None]) -> float | None:
    known = [each for each in ratios if each is not None]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else None


def sources_of(record: Record) -> dict[str, int]:
    """What figures that weren't measured here are of, and how many rows are of each."""
    return dict(Counter(row.source for row in record.benches if row.source is not None))


@dataclass(frozen=True, slots=True)
class NoFigure:
    """Rows of one kernel without a figure for one reason, and one of their cases."""

    op: str
    kernel: str
    status: str
    gates: bool
    reason: str
    rows: int
    case: str
    reproduce: str


def reasons_of(record: Record) -> tuple[NoFigure, ...]:
    """Why rows have no figure: what gates first, then wrong, failed, absent and refused."""
    groups: dict[tuple[str, str, str, bool, str], list[BenchRow]] = {}
    for row in record.benches:
        if row.status != "timed":
            alike = _NUMBER.sub("N", row.reason or "no reason given")
            key = (row.op, row.kernel, row.status, row.gates, alike)
            groups.setdefault(key, []).append(row)
    found = [
        NoFigure(
            op=op,
            kernel=kernel,
            status=status,
            gates=gates,
            reason=alike if len({row.reason for row in rows}) > 1 else rows[0].reason or alike,
            rows=len(rows),
            case=short_case(rows[0]),
            reproduce=rows[0].reproduce,
        )
        for (op, kernel, status, gates, alike), rows in groups.items()
    ]
    ranks = {"wrong": 0, "failed": 1, "absent": 2, "refused": 3}
    bad = {"wrong", "failed"}
    found.sort(
        key=lambda each: (not (each.gates and each.status in bad), ranks[each.status], -each.rows)
    )
    return tuple(found)
