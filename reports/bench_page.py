"""A record of `nox -s bench` as a part of a page: tables that sort, the roofline, shares of roofs.

Raw samples stay in the record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.bench import LEGEND, interval_text, samples_text
from reports.bench_figures import (
    cases_of,
    check_baseline,
    facts_of,
    kernels_of,
    past_belief,
    rate_text,
    reasons_of,
    roof_of,
    share_of,
    sources_of,
    summary_of,
    verdict_of,
)
from reports.bench_notes import notes_of
from reports.bench_pictures import roofline, shares
from reports.page import Cell, Column, Figure, Part, Table
from reports.phrases import count, duration, figure, memory, microseconds, milliseconds, part, times

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reports.bench_figures import CaseRows, Timed
    from reports.page import Tone
    from reports.record import Record

_TONES: dict[str, Tone] = {"wrong": "bad", "failed": "bad", "absent": "doubtful", "refused": "dim"}


def bench_part(record: Record, baseline: str | None = None) -> Part:
    """The record's part. Raises RecordError where no kernel has the baseline's name."""
    check_baseline(record, baseline)
    verdict, tone = verdict_of(record)
    return Part(
        title=f"Throughput: {record.path.name}",
        verdict=verdict,
        tone=tone,
        sentence=summary_of(record),
        notes=notes_of(record),
        facts=facts_of(record),
        items=tuple(_items(record, baseline)),
    )


def _items(record: Record, baseline: str | None) -> Iterator[Table | Figure]:
    cases = cases_of(record, baseline)
    if not cases:
        return
    yield _kernels(record, cases, baseline)
    yield _reasons(record)
    yield from filter(None, (roofline(record),))
    yield from shares(record, cases)
    for op in dict.fromkeys(case.op for case in cases):
        yield _rows([case for case in cases if case.op == op], op, roof_of(cases), baseline)
    yield _roofs(record)
    rows = [(each, Cell(f"{number:,}", number)) for each, number in sources_of(record).items()]
    yield Table("Sources", (Column("source"), Column("rows", "number")), rows)


def _kernels(record: Record, cases: Sequence[CaseRows], baseline: str | None) -> Table:
    named = () if baseline is None else (Column(f"x {baseline}", "number"),)
    columns = (
        Column("kernel"),
        Column("x best", "number", "times as long as the fastest of each case, geometric mean"),
        *named,
        Column("share of roof", "share", "median over its cases"),
        Column("cases timed", "number"),
        Column("fastest in", "number"),
        Column("weighted total", "number", "on the cases that each kernel has a time on"),
        *(Column("no figure"), Column("origin"), Column("op")),
    )
    rows: list[Sequence[Cell | str]] = [
        (
            each.name,
            Cell(times(each.to_best), each.to_best, "good" if each.to_best == 1 else ""),
            *(Cell(times(each.to_baseline), each.to_baseline) for _ in named),
            Cell(part(each.share), each.share),
            Cell(f"{each.timed:,}", each.timed),
            Cell(f"{each.fastest:,}", each.fastest),
            _weighted(each.weighted_us, each.weighted_cases),
            *(each.without, each.origin, each.op),
        )
        for each in kernels_of(record, cases)
    ]
    return Table("Kernels", columns, rows, "Geometric means and medians over a kernel's cases.")


def _weighted(total_us: float | None, cases: int) -> Cell:
    if total_us is None:
        return Cell("-")
    return Cell(f"{milliseconds(total_us)}, {count(cases, 'case')}", total_us)


def _reasons(record: Record) -> Table:
    columns = (
        *(Column("kernel"), Column("status"), Column("reason"), Column("one case")),
        *(Column("rows", "number"), Column("op"), Column("reproduce", "command")),
    )
    rows = [
        (
            each.kernel,
            Cell(each.status, None, _TONES[each.status]),
            each.reason if each.gates else f"{each.reason} (not gating)",
            each.case,
            Cell(f"{each.rows:,}", each.rows),
            *(each.op, each.reproduce),
        )
        for each in reasons_of(record)
    ]
    return Table("Without a figure", columns, rows, "N: a number that varies.")


def _rows(cases: Sequence[CaseRows], op: str, roof: str, baseline: str | None) -> Table:
    named = () if baseline is None else (Column(f"x {baseline}", "number"),)
    weights = any(case.weight is not None for case in cases)
    columns = (
        *(Column("case"), Column("kernel"), *([Column("weight", "number")] * weights)),
        Column("us", "number", "median device time"),
        Column("±", "number", "the farther end of the median's interval"),
        Column("x best", "number"),
        *named,
        Column("rate", "number", "of what limits it"),
        Column(f"of {roof}", "share"),
        Column(
            "of ceiling",
            "number",
            "of what this device was measured to do, which a kernel may pass",
        ),
        Column("at its clock", "number", "of the datasheet's roof at the clock that it ran at"),
        Column("MHz", "number"),
        Column("host us", "number", "from the call to its end on the device"),
        Column("enqueue us", "number", "host time of a call that is not the first"),
        Column("first call", "number", "compilation and tuning included"),
        Column("memory", "number"),
        Column("workspace", "number"),
        Column("launches", "number"),
        Column("samples", "number"),
        Column("error / bound", "number", "of its accuracy in this run"),
    )
    rows = [
        _row(case, each, roof, weights=weights, named=bool(named))
        for case in cases
        for each in case.rows
    ]
    return Table(f"{op}: {count(len(cases), 'case')}", columns, rows, LEGEND)


def _row(
    case: CaseRows, each: Timed, roof: str, *, weights: bool, named: bool
) -> tuple[Cell | str, ...]:
    row = each.row
    weight = (Cell("-" if case.weight is None else f"{case.weight:g}", case.weight),) * weights
    names: tuple[Cell | str, ...] = (case.title, each.name, *weight)
    if row.status != "timed":
        nothing: tuple[Cell | str, ...] = ("",) * (15 + named)
        return *names, Cell(row.status, None, _TONES[row.status]), *nothing
    best: Tone = "good" if each.is_best else ""
    share = share_of(row, roof)
    wide = None
    if row.median_us and row.low_us is not None and row.high_us is not None:
        wide = max(row.median_us - row.low_us, row.high_us - row.median_us) / row.median_us
    taken = sum(len(process.times_us) for process in row.processes)
    return (
        *names,
        Cell(microseconds(row.median_us), row.median_us, best),
        Cell(interval_text(row), wide),
        Cell(times(each.to_best), each.to_best, best),
        *((Cell(times(each.to_baseline), each.to_baseline),) * named),
        Cell(rate_text(row).rstrip(), row.gb_s if row.limit == "memory" else row.tflops),
        Cell(part(share), share, "bad" if past_belief(share, roof) else ""),
        Cell(part(row.share_of_ceiling), row.share_of_ceiling),
        Cell(part(row.share_of_clocked_peak), row.share_of_clocked_peak),
        Cell(figure(row.clock_mhz, 4), row.clock_mhz),
        Cell(microseconds(row.host_us), row.host_us),
        Cell(microseconds(row.enqueue_us), row.enqueue_us),
        Cell("-" if row.first_call_s is None else duration(row.first_call_s), row.first_call_s),
        Cell("-" if row.peak_bytes is None else memory(row.peak_bytes), row.peak_bytes),
        Cell(
            "-" if row.workspace_bytes is None else memory(row.workspace_bytes),
            row.workspace_bytes,
        ),
        Cell("-" if row.launches is None else f"{row.launches:,}", row.launches),
        Cell(samples_text(row), taken),
        Cell("-" if row.worst_ratio is None else figure(row.worst_ratio), row.worst_ratio),
    )


def _roofs(record: Record) -> Table:
    columns = (
        *(Column("roof"), Column("value", "number"), Column("of"), Column("source")),
        Column("SM MHz", "number"),
    )
    rows = [
        (
            roof.name,
            Cell(f"{figure(roof.value)} {roof.unit}", roof.value),
            "this run" if roof.measured else "the datasheet",
            roof.source,
            Cell(figure(roof.clock_mhz, 4), roof.clock_mhz),
        )
        for roof in record.header.roofs
    ]
    return Table("Roofs", columns, rows, folded=True)
