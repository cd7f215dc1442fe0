"""A record of `nox -s profile` on a terminal: energy, power and clocks, and what held them down.

Rows of a case stand together. What isn't a steady state, or couldn't be read, is told with its
reason; a figure that is missing is `-`, never 0.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from reports.bench import VERDICT_STYLES
from reports.codes import meaning
from reports.grid import GridColumn, bar, plain, print_grid, sparkline
from reports.partial import name_of, parts_of
from reports.phrases import count, duration, figure, microseconds, milliseconds, part, times
from reports.profile_figures import (
    GAIN,
    beside,
    cases_of,
    codes_of,
    counter_apart,
    efficiency_text,
    energy_text,
    error_text,
    facts_of,
    held_by,
    held_text,
    highest_of,
    mean_of,
    missing_of,
    named,
    notes_of,
    of_limit,
    over,
    reasons_of,
    short_case,
    summary_of,
    timeline_of,
    totals_of,
    verdict_of,
)
from reports.profile_pictures import timelines_drawn
from reports.record import shown
from reports.tables import cut, heading, indented, labelled, left_out

if TYPE_CHECKING:
    from rich.console import Console

    from reports.grid import Styled
    from reports.record import Record
    from reports.schema import ProfileRow

MOST_CASES = 60
MOST_TIMELINES = 12
_STEADY = 0.1  # of the highest value: a line that moves less looks level
_VALIDITY_STYLES = {"valid": "green", "transient": "yellow", "invalid": "red"}
_COLUMNS = (
    GridColumn("kernel", 0, left=True),
    GridColumn("inputs", 1, left=True),
    GridColumn("energy", 0),
    GridColumn("±", 1),
    GridColumn("W", 1),
    GridColumn("of limit", 2),
    GridColumn("us", 3),
    GridColumn("a watt buys", 5),
    GridColumn("SM MHz", 4),
    GridColumn("held by", 4, left=True),
    GridColumn("°C", 6),
    GridColumn("net", 7),
    GridColumn("J/TFLOP", 8),
    GridColumn("integral", 9),
    GridColumn("idle W", 10),
    GridColumn("trials", 11),
    GridColumn("state", 1, left=True),
)
LEGEND = (
    "energy: of a call, of the whole board; ±: 95 %, of the trials and the counter; net: less idle "
    "power; held by: what kept the clock down, and its share of the windows; °C: the highest; "
    f"integral: energy by sampled power over that by the counter, less 1. {GAIN}"
)

TOTALS = "Weighted totals: each case as often as its weight says"
TOTALS_LEGEND = (
    "cases: those with a weight on which each kernel was measured; ±: 95 %, of the trials and the "
    "counter; W: the mean over these calls; state: the worst of the rows"
)


def render(record: Record, console: Console) -> None:
    """Print the report."""
    render_outline(record, console)
    _totals(record, console)
    _beside(record, console)
    _timelines(record, console)
    _held(record, console)
    _validity(record, console)
    _missing(record, console)
    _reasons(record, console)


def render_outline(record: Record, console: Console) -> None:
    """Print the report's head: the verdict, the environment and each kernel's figures."""
    verdict, tone = verdict_of(record)
    told = Text.assemble((f" {verdict} ", VERDICT_STYLES[tone]), f" {summary_of(record)}")
    console.print(told)
    for note in notes_of(record):
        console.print(Padding(Text(cut(note), overflow="fold"), (0, 0, 0, 2)))
    console.print()
    labelled(console, facts_of(record))
    cases, parts = list(cases_of(record).items()), parts_of(record.header)
    for op, group in groupby(cases, key=lambda item: item[0][0]):
        of_op = list(group)
        heading(console, f"{cut(op)}: energy, power and clocks")
        groups = [
            (title, [_cells(console, row, parts.get((row.op, row.kernel))) for row in rows])
            for (_, title), rows in of_op[:MOST_CASES]
        ]
        print_grid(console, _COLUMNS, groups)
        left_out(console, len(of_op), MOST_CASES, "cases")
    if cases:
        console.print()
        console.print(Text(plain(console, LEGEND), style="dim"))


def _cells(console: Console, row: ProfileRow, part_of_op: str | None) -> list[Styled]:
    name = (cut(name_of(row.kernel, part_of_op)), "")
    inputs = (cut(row.distribution), "")
    if row.status != "measured":
        nothing = [("", "")] * (len(_COLUMNS) - 3)
        return [name, inputs, *nothing, (row.status, "bold red" if row.status == "wrong" else "")]
    limit = of_limit(row)
    width = 6 if console.width < 110 else 10
    clock, warmest = mean_of(row, "sm_clock_mhz"), highest_of(row, "temperature_c")
    apart = counter_apart(row)
    idle = [each for each in (row.idle_before_w, row.idle_after_w) if each is not None]
    held = held_text(row)
    return [
        name,
        inputs,
        (energy_text(row.energy_j), "bold"),
        (error_text(row), "dim"),
        (figure(row.power_w), ""),
        ("-" if limit is None else f"{bar(console, limit, width)} {part(limit):>7}", ""),
        (microseconds(row.device_us), ""),
        (efficiency_text(row), ""),
        ("-" if clock is None else f"{clock:,.0f}", ""),
        (cut(held), "" if held in {"-", "nothing"} else "yellow"),
        ("-" if warmest is None else f"{warmest:.0f}", ""),
        (energy_text(row.net_energy_j), ""),
        (figure(row.joules_per_tflop), ""),
        ("-" if apart is None else f"{100 * apart:+.1f} %", ""),
        (" to ".join(f"{each:,.0f}" for each in idle) or "-", ""),
        (f"{len(row.windows)}", ""),
        (row.validity, _VALIDITY_STYLES[row.validity]),
    ]


def _totals(record: Record, console: Console) -> None:
    totals = totals_of(record)
    if not totals:
        return
    heading(console, TOTALS)
    columns = (
        GridColumn("kernel", 0, left=True),
        GridColumn("cases", 2),
        GridColumn("energy", 0),
        GridColumn("±", 1),
        GridColumn("time", 0),
        GridColumn("W", 2),
        GridColumn("state", 1, left=True),
    )
    groups = [
        (
            f"{op}, {inputs}",
            [
                [
                    (cut(each.kernel), ""),
                    (f"{each.cases:,} of {each.of:,}", ""),
                    (energy_text(each.energy_j), "bold"),
                    (error_text(each), "dim"),
                    (milliseconds(each.device_us), ""),
                    (figure(each.power_w), ""),
                    (each.validity, _VALIDITY_STYLES[each.validity]),
                ]
                for each in of_group
            ],
        )
        for (op, inputs), of_group in groupby(totals, key=lambda each: (each.op, each.distribution))
    ]
    print_grid(console, columns, groups)
    console.print()
    console.print(Text(plain(console, TOTALS_LEGEND), style="dim"))


def _beside(record: Record, console: Console) -> None:
    groups = beside(record)
    if not groups:
        return
    heading(console, "Inputs side by side: what the values alone change")
    columns = (
        GridColumn("inputs", 0, left=True),
        GridColumn("us", 0),
        GridColumn("time", 1),
        GridColumn("W", 1),
        GridColumn("power", 1),
        GridColumn("SM MHz", 2),
        GridColumn("a call", 1),
        GridColumn("energy", 1),
    )
    lines = []
    for rows in groups[:MOST_CASES]:
        first = rows[0]
        cells = []
        for row in rows:
            clock = mean_of(row, "sm_clock_mhz")
            cells.append(
                [
                    (cut(row.distribution), ""),
                    (microseconds(row.device_us), ""),
                    (times(over(row.device_us, first.device_us)), ""),
                    (figure(row.power_w), ""),
                    (times(over(row.power_w, first.power_w)), ""),
                    ("-" if clock is None else f"{clock:,.0f}", ""),
                    (energy_text(row.energy_j), ""),
                    (times(over(row.energy_j, first.energy_j)), ""),
                ]
            )
        lines.append((f"{first.kernel}, {short_case(first)}", cells))
    print_grid(console, columns, lines)
    left_out(console, len(groups), MOST_CASES, "cases")


def _timelines(record: Record, console: Console) -> None:
    found = [(row, each) for row in record.profiles if (each := timeline_of(row)) is not None]
    if not found:
        return
    heading(
        console,
        "Over time: each line from its lowest to its highest, or a tenth apart at the least",
    )
    width = min(60, max(10, console.width - 42))
    for row, (trial, window) in found[:MOST_TIMELINES]:
        series = window.series
        assert series is not None
        name = named(row)
        console.print(Text(cut(name), style="bold", overflow="fold"))
        seconds = duration(window.duration_s)
        indented(console, f"trial {trial} of {len(row.windows)}, {seconds}", style="dim")
        for label, values, unit in (
            ("power", series.power_w, "W"),
            ("SM clock", series.sm_clock_mhz, "MHz"),
            ("temperature", series.temperature_c, "°C"),
        ):
            known = [value for value in values if value is not None]
            least = _STEADY * max(map(abs, known), default=0.0)
            line = sparkline(console, values, width, least=least)
            ends = dict.fromkeys((f"{min(known):,.0f}", f"{max(known):,.0f}")) if known else ()
            scale = f"{' to '.join(ends)} {unit}" if known else "not read"
            console.print(Text(f"  {label:<11}  {line}  {plain(console, scale)}".rstrip()))
    if len(found) > MOST_TIMELINES:
        drawn = timelines_drawn(record)
        has = "has them all" if drawn == len(found) else f"draws {drawn:,} of all {len(found):,}"
        more = f"{len(found) - MOST_TIMELINES:,} more not shown: --html PATH {has}"
        indented(console, more, style="yellow")


def _held(record: Record, console: Console) -> None:
    rows = [(row, held) for row in record.profiles if (held := held_by(row))]
    if not rows:
        return
    heading(console, "What held clocks down, over all trials")
    columns = (
        GridColumn("reason", 0, left=True),
        GridColumn("time", 0),
        GridColumn("of the windows", 0),
        GridColumn("polled beside", 1),
    )
    groups = [
        (
            named(row),
            [
                [
                    (cut(each.reason), ""),
                    ("-" if each.seconds is None else duration(each.seconds), ""),
                    (part(each.share), ""),
                    (part(each.polled), "dim"),
                ]
                for each in held
            ],
        )
        for row, held in rows[:MOST_CASES]
    ]
    print_grid(console, columns, groups)
    left_out(console, len(rows), MOST_CASES, "rows")


def _validity(record: Record, console: Console) -> None:
    rows = [row for row in record.profiles if row.status == "measured" and codes_of(row)]
    if not rows:
        return
    heading(console, "Not valid, or less than whole")
    for row in rows[:MOST_CASES]:
        name = named(row)
        style = _VALIDITY_STYLES[row.validity]
        console.print(Text.assemble((row.validity, style), f": {cut(name)}", overflow="fold"))
        for code in codes_of(row):
            means = meaning(code)
            indented(console, cut(f"{code}: {means}" if means else code))
    left_out(console, len(rows), MOST_CASES, "rows")


def _missing(record: Record, console: Console) -> None:
    found = missing_of(record)
    if not found:
        return
    heading(console, "Figures that are missing, and why")
    for each in found[:MOST_CASES]:
        indented(console, cut(f"{', '.join(each.fields)}: {each.reason}"), by=0)
        indented(console, cut(f"{count(each.rows, 'row')}, as {each.example}"), style="dim")
    left_out(console, len(found), MOST_CASES, "reasons")


def _reasons(record: Record, console: Console) -> None:
    rows = reasons_of(record)
    if not rows:
        return
    heading(console, "Not measured")
    for row in rows[:MOST_CASES]:
        style = "bold red" if row.status in {"wrong", "failed"} else "yellow"
        gating = "" if row.gates else ", not gating"
        name = f"{cut(row.op)} {cut(row.kernel)}, {cut(row.distribution)}: "
        console.print(Text.assemble(name, (row.status, style), gating))
        indented(console, cut(row.reason or "no reason given"))
        indented(console, cut(short_case(row)), by=4, style="dim")
        if row.reproduce and row.status in {"wrong", "failed"}:
            console.print(Text(f"    {shown(row.reproduce)}", style="cyan"), soft_wrap=True)
    left_out(console, len(rows), MOST_CASES, "rows")
