"""Records of different GPUs, or of figures that weren't measured here, side by side.

No verdict: another machine is no change of a kernel. Ratios are times of the first record over
another's, so 2.00x is twice as fast. Their geometric mean over the cases that both have comes with
a t-interval of 95 % on the logarithms, cases taken as a sample of those that there might be.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reports.comparison.pairs import Pairs, pair_speeds
from reports.comparison.words import dropped_tables, named, names, rate_text, time_text, times
from reports.page import Cell, Column, Part, Table
from reports.phrases import count, figure

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reports.comparison.sides import Key, Side, Timed

_OfCase = tuple[str, float]  # a case, and the ratio of a row of it
_LEVEL = 0.95
_MOST_SOURCES = 4
_SHARES = (
    "Shares of the datasheet's roof / of the roof measured in the run / of the datasheet's at the "
    "clock that it ran at; -: the record doesn't have it."
)
_FASTEST = (
    "Whichever of a record's kernels was the fastest on a case: across generations kernels differ. "
    "The fastest of many is flattered by noise."
)


@dataclass(frozen=True, slots=True)
class Mean:
    """A geometric mean of ratios, with its interval; without one where there is one case."""

    value: float
    interval: tuple[float, float] | None
    cases: int


def geometric_mean(ratios: Sequence[float]) -> Mean:
    """The geometric mean of at least one ratio, with a t-interval on the logarithms."""
    logs = [math.log(each) for each in ratios]
    centre = statistics.fmean(logs)
    if len(logs) < 2:
        return Mean(math.exp(centre), None, len(logs))
    from scipy.stats import t  # noqa: PLC0415  (half a second that a refusal needn't take)

    error = statistics.stdev(logs) / math.sqrt(len(logs))
    reach = float(t.ppf((1 + _LEVEL) / 2, len(logs) - 1)) * error
    return Mean(math.exp(centre), (math.exp(centre - reach), math.exp(centre + reach)), len(logs))


def generations_part(
    base: Side, others: Sequence[Side], reasons: Sequence[str]
) -> tuple[Part, int]:
    """The part of a report on records that no verdict can be given on, and how many rows it has.

    reasons: why each of `others` is here: another GPU, or figures that weren't measured.
    """
    paired = [pair_speeds(base, each) for each in others]
    tables = [_means(base, others, paired)]
    rows = {pair.key: None for pairs in paired for pair in pairs.pairs}
    tables += [
        _times(base, others, paired, rows),
        _rates(base, others, paired, rows),
    ]
    tables.append(_fastest(base, others))
    notes = [f"{named(each)}: {reason}" for each, reason in zip(others, reasons, strict=True)]
    for side in (base, *others):
        notes += _sources(side)
        if side.empty_call_us is not None:
            empty = f"an empty call takes {figure(side.empty_call_us)} us, part of every time"
            notes.append(f"{named(side)}: {empty}")
    for side, pairs in zip(others, paired, strict=True):
        notes += [
            f"{op}: {its} of {side.letter} is held against {mine} of {base.letter}"
            for op, (mine, its) in pairs.renamed.items()
        ]
        tables += [
            Table(
                f"{each.title}: {named(side)} beside {base.letter}",
                each.columns,
                each.rows,
                folded=each.folded,
            )
            for each in dropped_tables(pairs)
        ]
    sentence = (
        f"{count(len(rows), 'row')} of {named(base)} beside "
        f"{', '.join(named(each) for each in others)}; ratios, and no verdict"
    )
    kept = [each for each in tables if each.rows]
    part = Part("Speed across machines", "SIDE BY SIDE", "", sentence, notes, items=kept)
    return part, len(rows)


def _sources(side: Side) -> list[str]:
    """Where figures that weren't measured are from."""
    sources = list(dict.fromkeys(each.source for each in side.speeds.values() if each.source))
    told = [f"{side.letter} is from: {source}" for source in sources[:_MOST_SOURCES]]
    if len(sources) > _MOST_SOURCES:
        more = count(len(sources) - _MOST_SOURCES, "more source")
        told.append(f"{side.letter} is from {more}, which its rows name")
    return told


def _ratio(base: Timed, other: Timed) -> float:
    """How many times as fast `other` is."""
    assert base.evidence is not None
    assert other.evidence is not None
    return base.evidence.time_us.centre / other.evidence.time_us.centre


def _means(base: Side, others: Sequence[Side], paired: Sequence[Pairs[Timed]]) -> Table:
    rows: list[tuple[Cell | str, ...]] = []
    for side, pairs in zip(others, paired, strict=True):
        groups: dict[tuple[str, str], list[_OfCase]] = defaultdict(list)
        for pair in pairs.pairs:
            of_case = pair.key.case, _ratio(pair.base, pair.other)
            groups[pair.key.op, pair.key.kernel].append(of_case)
        if len(groups) > 1:
            every = [of_case for group in groups.values() for of_case in group]
            rows.append((named(side), "all rows", *_mean_cells(every)))
        for (op, kernel), ratios in groups.items():
            rows.append((named(side), f"{op} {kernel}", *_mean_cells(ratios)))
        best = list(_best_ratios(base, side))
        if best:
            rows.append((named(side), "fastest of each case", *_mean_cells(best)))
    return Table(
        f"Geometric mean: how many times as fast as {named(base)}",
        (
            Column("record"),
            Column("kernel"),
            Column("mean", "number"),
            Column("95 %", "number", "t-interval on the logarithms"),
            Column("cases", "number", "that both records have"),
        ),
        rows,
    )


def _mean_cells(ratios: Iterable[_OfCase]) -> tuple[Cell, Cell, Cell]:
    """Rows of one case, by several kernels or caches, count as one: they aren't independent."""
    of_cases: dict[str, list[float]] = defaultdict(list)
    for case, ratio in ratios:
        of_cases[case].append(ratio)
    mean = geometric_mean([statistics.geometric_mean(each) for each in of_cases.values()])
    interval = "one case" if mean.interval is None else " to ".join(map(times, mean.interval))
    return (
        Cell(times(mean.value), mean.value),
        Cell(interval),
        Cell(f"{mean.cases:,}", mean.cases),
    )


def _times(
    base: Side, others: Sequence[Side], paired: Sequence[Pairs[Timed]], keys: Iterable[Key]
) -> Table:
    """A column for each record: the time of a call, and how many times as fast as the base."""
    found = [{pair.key: pair.other for pair in pairs.pairs} for pairs in paired]
    rows: list[tuple[Cell | str, ...]] = []
    for key in keys:
        ours = base.speeds[key]
        assert ours.evidence is not None
        cells = [Cell(time_text(ours.evidence.time_us.centre), ours.evidence.time_us.centre)]
        for each in found:
            theirs = each.get(key)
            if theirs is None or theirs.evidence is None:
                cells.append(Cell("-"))
                continue
            ratio = _ratio(ours, theirs)
            cells.append(Cell(f"{time_text(theirs.evidence.time_us.centre)} {times(ratio)}", ratio))
        rows.append((*names(key), *cells))
    return Table(
        f"Time of a call in us, and how many times as fast as {base.letter}",
        (Column("kernel"), Column("case"), *_columns(base, others)),
        rows,
    )


def _rates(
    base: Side, others: Sequence[Side], paired: Sequence[Pairs[Timed]], keys: Iterable[Key]
) -> Table:
    """A column for each record: what a second of it does, and how near to its own roofs."""
    found = [{pair.key: pair.other for pair in pairs.pairs} for pairs in paired]
    rows: list[tuple[Cell | str, ...]] = []
    for key in keys:
        ours: list[Timed | None] = [base.speeds[key], *(each.get(key) for each in found)]
        cells = [Cell("-") if each is None else _rate(each) for each in ours]
        if any(each.text != "-" for each in cells):
            rows.append((*names(key), *cells))
    return Table(
        "Rate, and shares of each machine's own roofs",
        (Column("kernel"), Column("case"), *_columns(base, others)),
        rows,
        _SHARES,
    )


def _rate(row: Timed) -> Cell:
    shares = (row.share_of_peak, row.share_of_ceiling, row.share_of_clocked_peak)
    told = "/".join("-" if each is None else f"{100 * each:.0f}" for each in shares)
    rate = row.rate
    if rate is None:
        return Cell("-" if told == "-/-/-" else f"{told} %")
    shares_told = "" if told == "-/-/-" else f" {told} %"
    return Cell(f"{rate_text(*rate)}{shares_told}", rate[0])


def _columns(base: Side, others: Sequence[Side]) -> tuple[Column, ...]:
    return tuple(Column(named(each), "number") for each in (base, *others))


def _best(side: Side) -> dict[tuple[str, str, str, str], Timed]:
    """The fastest row of each op, case, cache and distribution, of kernels that compute all."""
    found: dict[tuple[str, str, str, str], Timed] = {}
    for key, row in side.speeds.items():
        if row.evidence is None or row.status != "timed" or side.left_out(key):
            continue
        if side.figures == "measured" and row.accuracy != "passed":
            continue
        place = key.op, key.case, key.cache, key.distribution
        if place not in found or _ratio(found[place], row) > 1:
            found[place] = row
    return found


def _best_ratios(base: Side, other: Side) -> Iterable[_OfCase]:
    theirs = _best(other)
    for place, row in _best(base).items():
        if place in theirs:
            yield row.key.case, _ratio(row, theirs[place])


def _fastest(base: Side, others: Sequence[Side]) -> Table:
    ours = _best(base)
    found = [_best(each) for each in others]
    rows: list[tuple[Cell | str, ...]] = []
    for place, row in ours.items():
        if not any(place in each for each in found):
            continue
        cells = [_fast(row, row)]
        cells += [_fast(each[place], row) if place in each else Cell("-") for each in found]
        rows.append((_case(row.key), *cells))
    return Table(
        "The fastest of each record",
        (Column("case"), *(Column(named(each)) for each in (base, *others))),
        rows,
        _FASTEST,
    )


def _case(key: Key) -> str:
    return f"{key.op} {names(key)[1]}"


def _fast(row: Timed, base: Timed) -> Cell:
    ratio = _ratio(base, row)
    rate = "" if row.rate is None else f" {rate_text(*row.rate)}"
    return Cell(f"{row.key.kernel}{rate} {times(ratio)}")
