"""A record of `bench` as a document: kernels, then case by case, the fastest first.

The columns of a row's own fields are those that its class declares. Raw samples stay in the record.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from kernel_workbench.reports.document.fields import meanings, number, only, table_of, text
from kernel_workbench.reports.document.model import Cell, Column
from kernel_workbench.reports.phrases import (
    count,
    figure,
    microseconds,
    milliseconds,
    share,
    shown,
    times,
)
from kernel_workbench.reports.record import (
    BUSY_HOST,
    SHARED_GPU,
    BenchRow,
    CountedLaunch,
    RecordError,
)
from kernel_workbench.reports.views.bench_cases import (
    cases_of,
    kernels_of,
    roof_of,
    share_of,
    short_case,
    totals_of,
)
from kernel_workbench.reports.views.bench_pictures import roofline, shares
from kernel_workbench.reports.views.performance import (
    STATUSES,
    part_of,
    problems_of,
    reasons_of,
    reasons_tables,
    statuses_of,
    verdict_of,
)
from kernel_workbench.reports.views.row_columns import column_of, fields_in_order
from kernel_workbench.reports.views.run import total_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kernel_workbench.reports.document.fields import Field
    from kernel_workbench.reports.document.model import Figure, ReportPart, Table, Tone
    from kernel_workbench.reports.record import Record, Roof, TimedProcess
    from kernel_workbench.reports.views.bench_cases import CallsTotal, CaseRow, CaseRows, KernelRows

_CEILING = column_of(BenchRow, "share_of_ceiling").note
_MEANS = "ratios are geometric means over a kernel's cases, shares medians"
# A longer time by CUPTI than by events: of the time by CUPTI, and in microseconds.
_APART, _APART_US = 0.25, 3.0
_STEADY = 0.005  # of the mean; at less a row's sampling ends before its time does


def bench_part(record: Record, baseline: str | None = None) -> ReportPart:
    """Return the record's part of a document.

    Raises:
        RecordError: no row is of the baseline.
    """
    rows = record.benches
    names = sorted({row.kernel for row in rows})
    if baseline is not None and baseline not in names:
        timed_kernels = ", ".join(map(shown, names[:12])) or "none"
        raise RecordError(
            f"{shown(record.path)}: no row is of a kernel {shown(baseline)!r}, so it can't be the "
            f"baseline; the record has {timed_kernels}"
        )
    kernels = count(len({(row.op, row.kernel) for row in rows}), "kernel")
    cases = count(len({(row.op, row.case.id) for row in rows}), "case")
    caches = Counter(row.cache for row in rows if row.status == "timed")
    cached = {1: f"{next(iter(caches), '')} cache, ", 2: "cold and warm cache, "}
    here = f"{cached.get(len(caches), '')}in {total_duration(record)}"
    return part_of(
        record,
        verdict_of(record, rows, "timed", believed=_is_believed(record)),
        f"{count(len(rows), 'row')} ({kernels}, {cases})",
        ", ".join(statuses_of(rows, "timed")),
        here if record.header.figures == "measured" else "",
        _notes(record),
        _items(record, baseline),
    )


def _is_believed(record: Record) -> bool:
    """True if cold rows were cold; False if the flush was seen not to evict."""
    flush = record.header.flush
    cold = any(row.status == "timed" and row.cache == "cold" for row in record.benches)
    return flush is None or flush.evicts or not cold


def _notes(record: Record) -> Iterator[str]:
    """Yield notes: problems of the run, figures that aren't believed, samples discarded."""
    rows, header = record.benches, record.header
    timed = [row for row in rows if row.status == "timed"]
    yield from problems_of(record, timed)
    if not _is_believed(record):
        yield "the flush leaves data in the cache, so no cold figure is believed"
    if header.figures == "published":
        yield "taken from publications: measured neither here nor by this workbench"
    if header.figures == "imported":
        yield "imported from another program's record: its rules aren't this workbench's"
    unchecked = sum(row.accuracy is None for row in timed)
    wrong = sum(row.accuracy not in {"passed", None} for row in timed)
    if unchecked + wrong and header.figures != "measured":
        yield f"{count(unchecked + wrong, 'row')} of unknown accuracy"
    elif wrong:
        yield f"{count(wrong, 'row')} timed though their outputs were wrong"
    if unchecked and header.figures == "measured":
        yield f"{count(unchecked, 'row')} timed whose outputs were not checked"
    processes = [process for row in timed for process in row.processes]
    used = sum(len(process.times_us) for process in processes)
    throttled = sum(process.throttled for process in processes)
    if throttled:
        discarded = f"{count(throttled, 'sample')} discarded since the clock was low"
        yield f"{discarded}, {share(throttled / (used + throttled))} of all"
    queued = sum(any(process.held is False for process in row.processes) for row in timed)
    if queued:
        yield (
            f"{count(queued, 'row')} whose calls took longer to queue than the device could be "
            "held: host time may be in their samples"
        )
    yield from _unconfirmed(timed)
    yield from _longer_by_cupti(timed)
    yield from _other_work(timed)
    uncounted = Counter(row.counters_reason for row in timed if row.counters_reason)
    for reason, times_said in uncounted.items():
        yield f"no counters of {count(times_said, 'row')}: {reason}"
    varying = sum(any(map(_still_varied, row.processes)) for row in timed)
    if varying:
        yield (
            f"{count(varying, 'row')} still varied from call to call when the time for samples was "
            "up; a longer --row-time makes medians surer"
        )
    if header.roofs and all(roof.measured for roof in header.roofs):
        what = "CPU" if header.environment.device == "cpu" else "GPU"
        yield f"no datasheet of this {what} is known, so shares are of roofs measured in this run"


def _unconfirmed(timed: Sequence[BenchRow]) -> Iterator[str]:
    """Say which figures the judge's clock doesn't confirm, and why."""
    rows = [row for row in timed if row.unconfirmed]
    if rows:
        shortest = min(rows, key=lambda row: row.median_us or 0.0)
        yield (
            f"the judge's clock doesn't confirm {count(len(rows), 'row')}: their times are the "
            f"word of the kernel's own process; {shown(shortest.kernel)}: {shortest.unconfirmed}"
        )


def _longer_by_cupti(timed: Sequence[BenchRow]) -> Iterator[str]:
    """Say which rows kept the device at work for longer than their time by events.

    The reverse is usual: gaps between kernels are in the time by events alone.
    """
    longer = [
        (row.cupti_us - row.median_us, row.cupti_us, row)
        for row in timed
        if row.cupti_us is not None
        and row.median_us is not None
        and row.cupti_us - row.median_us > max(_APART_US, _APART * row.cupti_us)
    ]
    if longer:
        excess_us, cupti_us, row = max(longer, key=itemgetter(0))
        yield (
            f"{count(len(longer), 'row')} in which CUPTI saw the device at work for longer than "
            f"the events say; {shown(row.kernel)}: {microseconds(cupti_us)} us instead of "
            f"{microseconds(cupti_us - excess_us)}; events don't see the work of other streams"
        )


def _other_work(timed: Sequence[BenchRow]) -> Iterator[str]:
    """Yield notes on other work that ran while rows were timed and may be in their times."""
    shared = sum(SHARED_GPU in row.codes for row in timed)
    if shared:
        yield f"{count(shared, 'row')} timed while another process had the GPU"
    loads = [row.host_load or 0.0 for row in timed if BUSY_HOST in row.codes]
    if loads:
        yield (
            f"{count(len(loads), 'row')} timed while others took a tenth of the host's cores or "
            f"more, {share(max(loads))} at most"
        )
    unknown = Counter(row.gpu_processes_reason for row in timed if row.gpu_processes_reason)
    for reason, rows in unknown.items():
        yield f"whether others had the GPU isn't known of {count(rows, 'row')} ({reason})"


def _still_varied(process: TimedProcess) -> bool:
    """True if sampling ended because its time was up, before the samples were steady."""
    times_us = process.times_us
    if process.stopped != "time limit" or len(times_us) < 2:
        return False
    mean = sum(times_us) / len(times_us)
    deviation = math.hypot(*(time_us - mean for time_us in times_us)) / math.sqrt(len(times_us) - 1)
    return deviation > _STEADY * mean


def _items(record: Record, baseline: str | None) -> Iterator[Table | Figure]:
    cases = cases_of(record, baseline)
    roof = roof_of(cases)
    kernels = _kernels(record, cases, baseline)
    by_op = [list(group) for _, group in groupby(cases, key=lambda case: case.op)]
    failed, rest = reasons_tables(reasons_of(record.benches, "timed", short_case))
    of_ops = [_cases(of_op, roof, baseline) for of_op in by_op]
    yield from (failed, kernels, _totals(cases, baseline), rest)
    yield from filter(None, (roofline(record),))
    yield from shares(record, cases)
    yield from of_ops
    counters = _counters(record.benches)
    yield counters
    yield meanings((kernels, *of_ops, counters))
    yield _roofs(record.header.roofs)
    yield _sources(record.benches)


def _kernels(record: Record, cases: Sequence[CaseRows], baseline: str | None) -> Table:
    fields: list[Field[KernelRows]] = [
        text("op", lambda kernel: kernel.op, group=True),
        text(
            "kernel",
            lambda kernel: Cell(
                kernel.name, tone="strong" if kernel.origin in {"ours", "user"} else ""
            ),
        ),
        number("x best", lambda kernel: kernel.to_best, times, tone=_best, rank=1),
        *_to_baseline(baseline),
        number(f"of {roof_of(cases)}", lambda kernel: kernel.share, share, kind="share", rank=2),
        number("timed", lambda kernel: kernel.timed, note="cases"),
        number("fastest", lambda kernel: kernel.fastest, note="in so many cases", rank=2),
        text("no figure", lambda kernel: Cell(kernel.without, tone="doubtful"), "cases", rank=3),
        text("origin", lambda kernel: Cell(kernel.origin, tone="dim"), rank=4),
    ]
    return table_of("Kernels", fields, kernels_of(record, cases), _MEANS, least=60)


def _totals(cases: Sequence[CaseRows], baseline: str | None) -> Table:
    """Return what a model's calls take: each op's share, and each kernel beside the reference."""
    reference = "fastest" if baseline is None else baseline
    fields: list[Field[CallsTotal]] = [
        text("op", lambda total: total.op, group=True),
        text("share", _share_of_calls, "of the time of all ops' calls", group=True),
        text("kernel", lambda total: total.name),
        (
            Column("calls", "number", "of the op's calls, those that the kernel has a time on"),
            lambda total: Cell(f"{_calls(total.calls)} of {_calls(total.of)}", total.calls),
        ),
        number("time", lambda total: total.time_us, milliseconds, "of these calls"),
        number(
            f"time of {reference}",
            lambda total: total.reference_us,
            milliseconds,
            "of the calls on which both have a time",
            rank=2,
        ),
        number(
            f"x {'best' if baseline is None else baseline}",
            lambda total: total.ratio,
            times,
            "of these calls' time",
            rank=1,
        ),
    ]
    shares = (
        f"{baseline}'s time, or by the fastest's where it has none"
        if baseline
        else "the fastest's time"
    )
    note = f"Each case as often as its weight says; shares are by {shares}."
    return table_of("Weighted totals", fields, totals_of(cases, baseline), note, least=60)


def _share_of_calls(total: CallsTotal) -> Cell:
    """Return `62.2 % of the calls' time`."""
    if total.share is None:
        return Cell("")
    return Cell(f"{share(total.share)} of the calls' time", total.share)


def _calls(number_of_calls: float) -> str:
    """Return a sum of weights, which are whole in a recording: `1,536`, `0.5`."""
    return f"{number_of_calls:,.0f}" if number_of_calls.is_integer() else figure(number_of_calls)


def _cases(cases: Sequence[CaseRows], roof: str, baseline: str | None) -> Table:
    """Return the rows of an op, case by case; a status stands where there is no time."""
    names: list[Field[CaseRow]] = [
        text("case", lambda entry: short_case(entry.row), group=True),
        text("kernel", lambda entry: Cell(entry.name, tone="strong" if entry.is_best else "")),
        (column_of(BenchRow, "median_us"), _median),
    ]
    derived: list[Field[CaseRow]] = [
        number(
            "±",
            lambda entry: _farther_end(entry.row),
            lambda share: f"{100 * share:.2f} %",
            "the farther end of the median's 95 % interval, in this process (another may differ by "
            "some per cent), or of several processes' medians",
            rank=2,
        ),
        number("x best", lambda entry: entry.to_best, times, "times as long", tone=_best, rank=1),
        *_to_baseline(baseline),
        (Column("rate", "number", "of what limits it", rank=1), lambda entry: _rate(entry.row)),
        number(
            f"of {roof}",
            lambda entry: share_of(entry.row, roof),
            share,
            "of the datasheet's roof" if roof == "peak" else _CEILING,
            kind="share",
            tone=lambda entry: _share_tone(share_of(entry.row, roof), roof),
            rank=1,
        ),
    ]
    samples: Field[CaseRow] = (
        Column("samples", "number", rank=11),
        lambda entry: _samples(entry.row),
    )
    figures = fields_in_order(
        BenchRow,
        lambda item: item.row,
        without={"median_us"} | ({"share_of_ceiling"} if roof != "peak" else set()),
        derived={"median_us": derived, "launches": [samples]},
    )
    fields = [*names, *only(lambda item: item.row.status == "timed", figures)]
    rows = [row for case in cases for row in case.rows]
    return table_of(f"{cases[0].op}, {count(len(cases), 'case')}", fields, rows)


def _counters(rows: Sequence[BenchRow]) -> Table:
    """Return the counters of Nsight Compute for one call of each row, launch by launch."""
    launches: list[Field[tuple[BenchRow, CountedLaunch]]] = fields_in_order(
        CountedLaunch, lambda item: item[1], derived={}
    )
    fields: list[Field[tuple[BenchRow, CountedLaunch]]] = [
        text("case", lambda item: short_case(item[0]), group=True),
        text("kernel", lambda item: item[0].kernel),
        *launches,
        text("report", lambda item: Cell(item[0].counters_file or "", tone="dim"), below=True),
    ]
    counted = [(row, launch) for row in rows for launch in row.counters]
    return table_of("Counters of a call, by Nsight Compute", fields, counted, level="details")


def _to_baseline(baseline: str | None) -> list[Field[Any]]:
    """Return the column of ratios to the baseline, where there is one."""
    if baseline is None:
        return []
    return [number(f"x {baseline}", lambda item: item.to_baseline, times, "times as long", rank=1)]


def _median(entry: CaseRow) -> Cell:
    row = entry.row
    if row.status != "timed":
        return Cell(row.status, None, STATUSES[row.status])
    if row.median_us is None:
        return Cell("-")
    return Cell(microseconds(row.median_us), row.median_us, _best(entry))


def _best(entry: CaseRow | KernelRows) -> Tone:
    return "good" if entry.to_best == 1 else ""


def _share_tone(share: float | None, roof: str) -> Tone:
    """Bad of a share that no device has: of roofs only a measured one can be passed."""
    beyond = share is not None and (not math.isfinite(share) or (roof == "peak" and share > 1))
    return "bad" if beyond else ""


def _farther_end(row: BenchRow) -> float | None:
    """Return the distance of the median's interval's farther end, as a share of the median.

    None means that the row has no median or no interval.
    """
    if not row.median_us or row.low_us is None or row.high_us is None:
        return None
    return max(row.median_us - row.low_us, row.high_us - row.median_us) / row.median_us


def _rate(row: BenchRow) -> Cell:
    """Return the rate of the resource that limits the row: `2,621 GB/s`, `520.3 TFLOP/s`."""
    if row.limit != "memory" and row.tflops is not None:
        return Cell(f"{figure(row.tflops, 4)} TFLOP/s", row.tflops)
    return Cell("-") if row.gb_s is None else Cell(f"{figure(row.gb_s)} GB/s", row.gb_s)


def _samples(row: BenchRow) -> Cell:
    """Return `40`, `2 x 40`, `40, 2 discarded`."""
    used = [len(process.times_us) for process in row.processes]
    if not used:
        return Cell("-")
    samples = f"{len(used)} x {min(used)}" if len(used) > 1 else f"{used[0]}"
    throttled = sum(process.throttled for process in row.processes)
    return Cell(f"{samples}, {throttled:,} discarded" if throttled else samples, sum(used))


def _roofs(roofs: Sequence[Roof]) -> Table:
    fields: list[Field[Roof]] = [
        text("roof", lambda roof: roof.name),
        (
            Column("value", "number"),
            lambda roof: Cell(f"{figure(roof.value)} {roof.unit}", roof.value),
        ),
        text("of", lambda roof: "this run" if roof.measured else "the datasheet"),
        text("source", lambda roof: roof.source),
        number("SM MHz", lambda roof: roof.clock_mhz, rank=1),
    ]
    return table_of("Roofs", fields, roofs, level="details", folded=True)


def _sources(rows: Sequence[BenchRow]) -> Table:
    """Return the sources of figures that weren't measured here."""
    fields: list[Field[tuple[str, int]]] = [
        text("source", lambda item: item[0]),
        number("rows", lambda item: item[1]),
    ]
    sources = Counter(row.source for row in rows if row.source is not None)
    return table_of("Sources", fields, sources.items(), level="details")
