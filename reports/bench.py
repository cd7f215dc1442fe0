"""A record of `nox -s bench` on a terminal: the verdict, the kernels, then case by case.

Rows of a case stand together, the fastest first. Status words stand beside the colours, so that it
reads without them. Records of publications are shown alike, and say that they are.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

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
from reports.grid import GridColumn, bar, plain, print_grid
from reports.phrases import count, duration, memory, microseconds, milliseconds, part, times
from reports.record import shown
from reports.tables import BAD, DOUBTFUL, GOOD, cut, heading, indented, labelled, left_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from reports.bench_figures import CaseRows, KernelRows, Timed
    from reports.grid import Styled
    from reports.record import Record
    from reports.schema import BenchRow

VERDICT_STYLES = {
    "good": GOOD,
    "bad": BAD,
    "doubtful": DOUBTFUL,
}
MOST_CASES = 120  # of an op; a page has them all, and sorts them
_STATUS_STYLES = {"wrong": "bold red", "failed": "bold red", "refused": "dim", "absent": "yellow"}
LEGEND = (
    "us: median device time; ±: the farther end of its 95 % interval, in this process (another may "
    "differ by some per cent), or of several processes' medians; x best, x NAME: times as long; of "
    "peak: of the datasheet's roof; of ceiling: of what this device was measured to do, which a "
    "kernel may pass; at its clock: of the datasheet's at the clock that it ran at; host: from the "
    "call to its end."
)


def render(record: Record, console: Console, *, baseline: str | None = None) -> None:
    """Print the report. Raises RecordError where no kernel has the baseline's name."""
    check_baseline(record, baseline)
    cases = cases_of(record, baseline)
    _head(record, console, cases, baseline)
    _cases(console, cases, baseline)
    _reasons(record, console)
    _sources(record, console)


def render_outline(record: Record, console: Console, *, baseline: str | None = None) -> None:
    """Print the report's head: the verdict, the environment and the kernels."""
    _head(record, console, cases_of(record, baseline), baseline)


def _head(
    record: Record, console: Console, cases: Sequence[CaseRows], baseline: str | None
) -> None:
    verdict, tone = verdict_of(record)
    told = Text.assemble((f" {verdict} ", VERDICT_STYLES[tone]), f" {summary_of(record)}")
    console.print(told)
    for note in notes_of(record):
        console.print(Padding(Text(cut(note), overflow="fold"), (0, 0, 0, 2)))
    console.print()
    labelled(console, facts_of(record))
    _kernels(record, console, cases, baseline)


def _kernels(
    record: Record, console: Console, cases: Sequence[CaseRows], baseline: str | None
) -> None:
    kernels = kernels_of(record, cases)
    if not kernels:
        return
    heading(console, "Kernels: geometric means over their cases")
    named = "baseline" if baseline is None else f"x {cut(baseline)}"
    columns = (
        GridColumn("kernel", 0, left=True),
        GridColumn("timed", 0),
        GridColumn("fastest", 2),
        GridColumn("x best", 1),
        GridColumn(named, 1),
        GridColumn("share, median", 2, left=True),
        GridColumn("weighted total", 1),
        GridColumn("no figure", 3, left=True),
        GridColumn("origin", 4, left=True),
    )
    width = _bar_width(console)
    groups = [
        (op, [_kernel_cells(console, each, width) for each in of_op])
        for op, of_op in groupby(kernels, key=lambda each: each.op)
    ]
    print_grid(console, columns, groups)
    for op, number in {
        each.op: each.weighted_cases for each in kernels if each.weighted_us is not None
    }.items():
        having = sum(case.op == op and case.weight is not None for case in cases)
        text = f"{cut(op)}: totals are of {number:,} of {count(having, 'case')} with a weight: "
        indented(console, f"{text}those that each kernel with a total has a time on", style="dim")


def _kernel_cells(console: Console, each: KernelRows, width: int) -> list[Styled]:
    total = "-" if each.weighted_us is None else milliseconds(each.weighted_us)
    share = f"{bar(console, each.share, width)} {part(each.share):>7} of {each.share_of}"
    return [
        (cut(each.name), ""),
        (f"{each.timed:,}", ""),
        (f"{each.fastest:,}", ""),
        (times(each.to_best), "green" if each.to_best == 1 else ""),
        (times(each.to_baseline), ""),
        ("-" if each.share is None else share, ""),
        (total, ""),
        (each.without or "-", "yellow" if each.without else ""),
        (cut(each.origin), "dim"),
    ]


def _bar_width(console: Console) -> int:
    return 6 if console.width < 110 else 10 if console.width < 160 else 16


def _cases(console: Console, cases: Sequence[CaseRows], baseline: str | None) -> None:
    roof = roof_of(cases)
    for op, group in groupby(cases, key=lambda each: each.op):
        of_op = list(group)
        heading(console, f"{cut(op)}: {count(len(of_op), 'case')}")
        print_grid(
            console,
            _columns(baseline, roof),
            [
                (
                    each.title if each.weight is None else f"{each.title}, weight {each.weight:g}",
                    [_cells(console, row, roof) for row in each.rows],
                )
                for each in of_op[:MOST_CASES]
            ],
        )
        left_out(console, len(of_op), MOST_CASES, "cases")
    if cases:
        console.print()
        console.print(Text(plain(console, LEGEND), style="dim"))


def _columns(baseline: str | None, roof: str) -> tuple[GridColumn, ...]:
    named = "baseline" if baseline is None else f"x {cut(baseline)}"
    return (
        GridColumn("kernel", 0, left=True),
        GridColumn("us", 0),
        GridColumn("±", 2),
        GridColumn("x best", 1),
        GridColumn(named, 1),
        GridColumn("rate", 1),
        GridColumn(f"of {roof}", 1),
        GridColumn("of ceiling", 3),
        GridColumn("at its clock", 8),
        GridColumn("MHz", 4),
        GridColumn("host us", 5),
        GridColumn("first call", 6),
        GridColumn("memory", 7),
        GridColumn("workspace", 9),
        GridColumn("enqueue us", 10),
        GridColumn("samples", 11),
        GridColumn("launches", 12),
    )


def _cells(console: Console, each: Timed, roof: str) -> list[Styled]:
    row = each.row
    if row.status != "timed":
        nothing = [("", "")] * (len(_columns(None, roof)) - 2)
        return [(cut(each.name), ""), (row.status, _STATUS_STYLES[row.status]), *nothing]
    by_sheet = roof == "peak"
    share = share_of(row, roof)
    drawn = f"{bar(console, share, _bar_width(console))} {part(share):>7}"
    return [
        (cut(each.name), "bold" if each.is_best else ""),
        (microseconds(row.median_us), "bold" if each.is_best else ""),
        (interval_text(row), "dim"),
        (times(each.to_best), "green" if each.is_best else ""),
        (times(each.to_baseline), ""),
        (rate_text(row), ""),
        ("-" if share is None else drawn, "bold red" if past_belief(share, roof) else ""),
        (part(row.share_of_ceiling) if by_sheet else "-", ""),
        (part(row.share_of_clocked_peak), ""),
        ("-" if row.clock_mhz is None else f"{row.clock_mhz:,.0f}", ""),
        (microseconds(row.host_us), ""),
        ("-" if row.first_call_s is None else duration(row.first_call_s), ""),
        ("-" if row.peak_bytes is None else memory(row.peak_bytes), ""),
        ("-" if row.workspace_bytes is None else memory(row.workspace_bytes), ""),
        (microseconds(row.enqueue_us), ""),
        (samples_text(row), ""),
        ("-" if row.launches is None else f"{row.launches:,}", ""),
    ]


def interval_text(row: BenchRow) -> str:
    """`0.11 %`: how far the farther end of the median's interval is from it."""
    if row.median_us is None or row.low_us is None or row.high_us is None:
        return "-"
    farther = max(row.median_us - row.low_us, row.high_us - row.median_us)
    return f"{100 * farther / row.median_us:.2f} %" if row.median_us > 0 else "-"


def samples_text(row: BenchRow) -> str:
    """`40`, `2 x 40`, `40, 2 discarded`."""
    taken = [len(each.times_us) for each in row.processes]
    if not taken:
        return "-"
    text = f"{len(taken)} x {min(taken)}" if len(taken) > 1 else f"{taken[0]}"
    throttled = sum(each.throttled for each in row.processes)
    return f"{text}, {throttled:,} discarded" if throttled else text


def _sources(record: Record, console: Console) -> None:
    found = sources_of(record)
    if found:
        heading(console, "Sources")
    for source, rows in list(found.items())[:MOST_CASES]:
        indented(console, f"{cut(source)} ({count(rows, 'row')})")


def _reasons(record: Record, console: Console) -> None:
    found = reasons_of(record)
    if not found:
        return
    heading(console, "Without a figure (N: a number that varies)")
    for each in found:
        title = Text.assemble(
            f"{cut(each.op)} {cut(each.kernel)}: ",
            (each.status, _STATUS_STYLES[each.status]),
            f", {count(each.rows, 'row')}" + ("" if each.gates else ", not gating"),
        )
        console.print(title)
        indented(console, cut(each.reason))
        indented(console, cut(each.case), by=4, style="dim")
        if each.reproduce and each.status in {"wrong", "failed"}:
            console.print(Text(f"    {shown(each.reproduce)}", style="cyan"), soft_wrap=True)
