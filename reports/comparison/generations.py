"""Records of different GPUs, or of figures that weren't measured here, side by side.

No verdict: another machine is no change of a kernel. Ratios are times of the first record over
another's, so 2.00 x is twice as fast. Their geometric mean over the cases that both have comes with
a t-interval of 95 % on the logarithms, cases taken as a sample of those that there might be.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kernel_workbench.reports.comparison.pairs import PairedRows, pair_speeds
from kernel_workbench.reports.comparison.tables import (
    case_text,
    dropped_tables,
    name_fields,
    named,
    rate_text,
    renamed_notes,
)
from kernel_workbench.reports.document.fields import number, table_of, text
from kernel_workbench.reports.document.model import Cell, Column, ReportPart
from kernel_workbench.reports.phrases import count, figure, microseconds, times

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kernel_workbench.reports.comparison.side import Key, RecordSide, TimedRow
    from kernel_workbench.reports.document.fields import Field
    from kernel_workbench.reports.document.model import Table

_OfCase = tuple[str, float]  # a case, and the ratio of a row of it
_LEVEL = 0.95
_SHARES = (
    "Shares of the datasheet's roof / of the roof measured in the run / of the datasheet's at the "
    "clock that it ran at; -: the record doesn't have it."
)
_FASTEST = (
    "Each record's fastest kernel on a case, among the kernels that both records timed on it. The "
    "fastest of many is flattered by noise."
)


@dataclass(frozen=True, slots=True)
class Mean:
    """A geometric mean of ratios, with its interval; without one where there is one case."""

    value: float
    interval: tuple[float, float] | None
    cases: int


def geometric_mean(ratios: Sequence[float]) -> Mean:
    """Return the geometric mean of at least one ratio, with a t-interval on the logarithms."""
    logs = [math.log(value) for value in ratios]
    centre = statistics.fmean(logs)
    if len(logs) < 2:
        return Mean(math.exp(centre), None, len(logs))
    from scipy.stats import t  # noqa: PLC0415  (half a second that a refusal needn't take)

    error = statistics.stdev(logs) / math.sqrt(len(logs))
    reach = float(t.ppf((1 + _LEVEL) / 2, len(logs) - 1)) * error
    return Mean(math.exp(centre), (math.exp(centre - reach), math.exp(centre + reach)), len(logs))


def generations_part(
    base: RecordSide, others: Sequence[RecordSide], reasons: Sequence[str]
) -> tuple[ReportPart, int]:
    """Return the part on records that no verdict can be given on, and its number of rows.

    Args:
        reasons: why each of `others` is here: another GPU, or figures that weren't measured.
    """
    paired = [pair_speeds(base, other) for other in others]
    keys = dict.fromkeys(pair.key for pairs in paired for pair in pairs.pairs)
    tables = [
        _means(base, others, paired),
        *(_fastest(base, side) for side in others),
        *_rows(base, others, paired, keys),
    ]
    notes = [f"{named(other)}: {reason}" for other, reason in zip(others, reasons, strict=True)]
    for side in (base, *others):
        if side.empty_call_us is not None:
            empty = f"an empty call takes {figure(side.empty_call_us)} us, part of every time"
            notes.append(f"{named(side)}: {empty}")
        disturbed = sum(
            bool(row.evidence and row.evidence.disturbed) for row in side.speeds.values()
        )
        if disturbed:
            notes.append(f"{named(side)}: {count(disturbed, 'row')} timed beside other work")
    for side, pairs in zip(others, paired, strict=True):
        notes += renamed_notes(base, side, pairs)
        tables += dropped_tables(pairs, f": {named(side)} beside {base.letter}")
    sentence = (
        f"{count(len(keys), 'row')} of {', '.join(other.letter for other in others)} beside "
        f"{named(base)}; ratios, and no verdict"
    )
    part = ReportPart(
        "Speed across machines",
        "SIDE BY SIDE",
        "",
        sentence,
        notes,
        items=tables,
        environment=[source for side in (base, *others) for source in _sources(side)],
    )
    return part, len(keys)


def _sources(side: RecordSide) -> list[tuple[str, str]]:
    """Where figures that weren't measured are from."""
    sources = dict.fromkeys(row.row.source for row in side.speeds.values())
    return [(f"{side.letter} is from", source) for source in sources if source]


class _MeanOf(NamedTuple):
    """A mean, with the record and the kernels that it is of."""

    side: RecordSide
    of: str
    mean: Mean


def _means(
    base: RecordSide, others: Sequence[RecordSide], paired: Sequence[PairedRows[TimedRow]]
) -> Table:
    rows: list[_MeanOf] = []
    for side, pairs in zip(others, paired, strict=True):
        groups: dict[str, list[_OfCase]] = defaultdict(list)
        for pair in pairs.pairs:
            ratio = pair.base.time_us / pair.other.time_us
            kernels = dict.fromkeys((pair.key.kernel, pair.other.key.kernel))
            of = f"{pair.key.op} {' beside '.join(kernels)}"
            groups[of].append((pair.key.case, ratio))
        every = [of_case for group in groups.values() for of_case in group]
        means = {"all rows": every} if len(groups) > 1 else {}
        means |= groups
        fastest = _fastest_rows(base, side)
        means[_fastest_named(base, side, fastest)] = [
            (row.place.case, row.base.time_us / row.other.time_us) for row in fastest
        ]
        rows += [_MeanOf(side, of, _mean_of(ratios)) for of, ratios in means.items() if ratios]
    fields: list[Field[_MeanOf]] = [
        text("record", lambda mean_of: named(mean_of.side), group=True),
        text("kernel", lambda mean_of: mean_of.of),
        number("mean", lambda mean_of: mean_of.mean.value, times),
        (Column("95 %", "number", "t-interval on the logarithms"), _interval),
        number("cases", lambda mean_of: mean_of.mean.cases, note="that both records have"),
    ]
    title = f"Geometric mean: how many times as fast as {named(base)}"
    return table_of(title, fields, rows, least=20)


def _interval(of: _MeanOf) -> str:
    return "one case" if of.mean.interval is None else " to ".join(map(times, of.mean.interval))


def _mean_of(ratios: Iterable[_OfCase]) -> Mean:
    """Rows of one case, by several kernels or caches, count as one: they aren't independent."""
    of_cases: dict[str, list[float]] = defaultdict(list)
    for case, ratio in ratios:
        of_cases[case].append(ratio)
    return geometric_mean([statistics.geometric_mean(of_case) for of_case in of_cases.values()])


def _rows(
    base: RecordSide,
    others: Sequence[RecordSide],
    paired: Sequence[PairedRows[TimedRow]],
    keys: Iterable[Key],
) -> Iterator[Table]:
    """Yield a column for each record: the time of a call; and what a second of it does."""
    rows_of = [{pair.key: pair.other for pair in pairs.pairs} for pairs in paired]
    ours = {key: base.speeds[key] for key in keys}

    def compared(side: RecordSide, rows: dict[Key, TimedRow]) -> Field[Key]:
        return (
            Column(named(side), "number"),
            lambda key: _compared(ours[key], rows[key]) if key in rows else "-",
        )

    def rated(side: RecordSide, rows: dict[Key, TimedRow]) -> Field[Key]:
        return (
            Column(named(side), "number"),
            lambda key: _rate(rows[key]) if key in rows else "-",
        )

    names = name_fields(lambda key: key)
    times_us: list[Field[Key]] = [
        *names,
        number(named(base), lambda key: ours[key].time_us, microseconds),
        *map(compared, others, rows_of),
    ]
    title = f"Time of a call in us, and how many times as fast as {base.letter}"
    yield table_of(title, times_us, ours, least=3)
    rates = list(map(rated, (base, *others), (ours, *rows_of)))
    having = [key for key in ours if any(_text(cell(key)) != "-" for _, cell in rates)]
    title = "Rate, and shares of each machine's own roofs"
    yield table_of(title, [*names, *rates], having, _SHARES, level="details")


def _text(cell: Cell | str) -> str:
    return cell if isinstance(cell, str) else cell.text


def _compared(base: TimedRow, other: TimedRow) -> Cell:
    ratio = base.time_us / other.time_us
    return Cell(f"{microseconds(other.time_us)} {times(ratio)}", ratio)


def _rate(timed: TimedRow) -> Cell:
    row, rate = timed.row, timed.rate
    shares = (row.share_of_peak, row.share_of_ceiling, row.share_of_clocked_peak)
    words = "/".join(
        "-" if share_value is None else f"{100 * share_value:.0f}" for share_value in shares
    )
    texts = [] if rate is None else [rate_text(*rate)]
    texts += [] if words == "-/-/-" else [f"{words} %"]
    return Cell(" ".join(texts) or "-", rate and rate[0])


class _Fastest(NamedTuple):
    """A case, and each record's fastest row of it among the kernels that both records have."""

    place: Key  # without its kernel
    base: TimedRow
    other: TimedRow


def _whole(side: RecordSide) -> dict[Key, dict[str, TimedRow]]:
    """By case, then by kernel: the rows of kernels that compute all of their op and are right."""
    rows: dict[Key, dict[str, TimedRow]] = defaultdict(dict)
    for key, timed in side.speeds.items():
        if timed.evidence is None or side.left_out(key):
            continue
        if side.figures == "measured" and timed.row.accuracy != "passed":
            continue
        rows[key._replace(kernel="")][key.kernel] = timed
    return rows


def _fastest_rows(base: RecordSide, other: RecordSide) -> list[_Fastest]:
    """Return the fastest rows of the cases on which both records have a kernel by the same name.

    A kernel that one record lacks says nothing of the machines.
    """
    mine, its = _whole(base), _whole(other)
    rows = []
    for place, by_kernel in mine.items():
        shared = [kernel for kernel in by_kernel if kernel in its.get(place, {})]
        if shared:
            fastest, its_fastest = (
                min((side[place][kernel] for kernel in shared), key=lambda row: row.time_us)
                for side in (mine, its)
            )
            rows.append(_Fastest(place, fastest, its_fastest))
    return rows


def _fastest_named(base: RecordSide, other: RecordSide, rows: Sequence[_Fastest]) -> str:
    """Return `fastest that both have: flash of A, torch_cudnn of B`."""

    def kernels(side: RecordSide, fastest: Iterable[TimedRow]) -> str:
        return f"{', '.join(dict.fromkeys(row.key.kernel for row in fastest))} of {side.letter}"

    mine, its = kernels(base, (row.base for row in rows)), (row.other for row in rows)
    return f"fastest that both have: {mine}, {kernels(other, its)}"


def _fastest(base: RecordSide, other: RecordSide) -> Table:
    fields: list[Field[_Fastest]] = [
        text("case", lambda case: f"{case.place.op} {case_text(case.place)}", below=True),
        text(named(base), lambda case: _fast(case.base, case.base)),
        text(named(other), lambda case: _fast(case.other, case.base)),
    ]
    title = f"The fastest of the kernels that {base.letter} and {other.letter} have"
    return table_of(title, fields, _fastest_rows(base, other), _FASTEST, level="details")


def _fast(timed: TimedRow, base: TimedRow) -> str:
    rate = "" if timed.rate is None else f" {rate_text(*timed.rate)}"
    return f"{timed.key.kernel}{rate} {times(base.time_us / timed.time_us)}"
