"""A record of `nox -s profile` as a part of a page: tables that sort, and timelines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.codes import meaning
from reports.page import Cell, Column, Figure, Part, Table
from reports.partial import name_of, parts_of
from reports.phrases import duration, figure, microseconds, milliseconds, part, times
from reports.profile import LEGEND, TOTALS, TOTALS_LEGEND
from reports.profile_figures import (
    beside,
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
    totals_of,
    verdict_of,
)
from reports.profile_pictures import timelines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reports.page import Tone
    from reports.record import Record
    from reports.schema import ProfileRow
    from reports.schema_profile import Window

MOST_WINDOWS = 2000  # of 500 rows with four trials: more is slow to make and to open
_TONES: dict[str, Tone] = {
    "valid": "good",
    "transient": "doubtful",
    "invalid": "bad",
    "wrong": "bad",
    "failed": "bad",
    "absent": "doubtful",
    "refused": "dim",
}


def profile_part(record: Record) -> Part:
    """The record's part of a page."""
    verdict, tone = verdict_of(record)
    return Part(
        title=f"Power: {record.path.name}",
        verdict=verdict,
        tone=tone,
        sentence=summary_of(record),
        notes=notes_of(record),
        facts=facts_of(record),
        items=tuple(_items(record)),
    )


def _items(record: Record) -> Iterator[Table | Figure]:
    yield _rows(record)
    yield _totals(record)
    yield _not_measured(record)
    yield _beside(record)
    yield from timelines(record)
    yield _held(record)
    yield _validity(record)
    yield _missing(record)
    yield _windows(record)


def _rows(record: Record) -> Table:
    columns = (
        *(Column("kernel"), Column("inputs"), Column("state"), Column("case")),
        Column("energy", "number", "of a call, of the whole board"),
        Column("±", "number", "95 %, of the trials and the counter"),
        Column("W", "number", "mean over the trials"),
        Column("of limit", "share", "of the power limit in force"),
        Column("us", "number", "of a call in the loop"),
        Column("a watt buys", "number"),
        Column("SM MHz", "number", "mean"),
        Column("held by", note="what kept the clock down longest, and its share of the windows"),
        Column("°C", "number", "the highest"),
        Column("net", "number", "energy less idle power"),
        Column("J/TFLOP", "number"),
        Column("integral", "number", "energy by sampled power over that by the counter, less 1"),
        Column("idle W", "number", "before and after"),
        Column("sampler", "number", "by how much it slows a call"),
        Column("op"),
    )
    parts = parts_of(record.header)
    rows = [_row(row, parts.get((row.op, row.kernel))) for row in record.profiles]
    return Table("Energy, power and clocks", columns, rows, LEGEND)


def _row(row: ProfileRow, part_of_op: str | None) -> tuple[Cell | str, ...]:
    state = row.validity if row.status == "measured" else row.status
    name = name_of(row.kernel, part_of_op)
    names: tuple[Cell | str, ...] = (
        *(name, row.distribution, Cell(state, None, _TONES[state]), short_case(row)),
    )
    if row.status != "measured":
        return *names, *("",) * 14, row.op
    limit, apart = of_limit(row), counter_apart(row)
    clock, warmest = mean_of(row, "sm_clock_mhz"), highest_of(row, "temperature_c")
    error = over(row.energy_error_j, row.energy_j)
    bought = efficiency_text(row)
    buys = row.gb_s_per_w if "GB" in bought else row.tflops_per_w
    idle = [each for each in (row.idle_before_w, row.idle_after_w) if each is not None]
    slower = row.sampler_slowdown
    return (
        *names,
        Cell(energy_text(row.energy_j), row.energy_j),
        Cell(error_text(row), error),
        Cell(figure(row.power_w), row.power_w),
        Cell(part(limit), limit),
        Cell(microseconds(row.device_us), row.device_us),
        Cell(bought, buys),
        Cell(figure(clock, 4), clock),
        held_text(row),
        Cell("-" if warmest is None else f"{warmest:.0f}", warmest),
        Cell(energy_text(row.net_energy_j), row.net_energy_j),
        Cell(figure(row.joules_per_tflop), row.joules_per_tflop),
        Cell("-" if apart is None else f"{100 * apart:+.1f} %", apart),
        Cell(" to ".join(f"{each:,.0f}" for each in idle) or "-", idle[0] if idle else None),
        Cell("-" if slower is None else f"{100 * slower:+.2f} %", slower),
        row.op,
    )


def _totals(record: Record) -> Table:
    columns = (
        *(Column("kernel"), Column("inputs"), Column("cases", "number")),
        *(Column("energy", "number"), Column("±", "number")),
        *(Column("time", "number"), Column("W", "number"), Column("state"), Column("op")),
    )
    rows = []
    for each in totals_of(record):
        error = over(each.energy_error_j, each.energy_j)
        rows.append(
            (
                *(each.kernel, each.distribution),
                Cell(f"{each.cases:,} of {each.of:,}", each.cases),
                Cell(energy_text(each.energy_j), each.energy_j),
                Cell(error_text(each), error),
                Cell(milliseconds(each.device_us), each.device_us),
                Cell(figure(each.power_w), each.power_w),
                Cell(each.validity, None, _TONES[each.validity]),
                each.op,
            )
        )
    return Table(TOTALS, columns, rows, TOTALS_LEGEND)


def _not_measured(record: Record) -> Table:
    columns = (
        *(Column("kernel, inputs, case"), Column("status"), Column("reason")),
        Column("reproduce", "command"),
    )
    rows = [
        (
            f"{row.op} {named(row)}",
            Cell(row.status, None, _TONES[row.status]),
            (row.reason or "no reason given") + ("" if row.gates else " (not gating)"),
            row.reproduce,
        )
        for row in reasons_of(record)
    ]
    return Table("Not measured", columns, rows)


def _beside(record: Record) -> Table:
    columns = (
        *(Column("kernel"), Column("case"), Column("inputs")),
        *(Column("us", "number"), Column("time", "number"), Column("W", "number")),
        *(Column("power", "number"), Column("SM MHz", "number"), Column("energy", "number")),
        Column("energy over", "number", "that of the first inputs"),
    )
    rows = []
    for group in beside(record):
        first = group[0]
        for row in group:
            clock = mean_of(row, "sm_clock_mhz")
            longer = over(row.device_us, first.device_us)
            drawn, spent = over(row.power_w, first.power_w), over(row.energy_j, first.energy_j)
            rows.append(
                (
                    *(row.kernel, short_case(row), row.distribution),
                    Cell(microseconds(row.device_us), row.device_us),
                    Cell(times(longer), longer),
                    Cell(figure(row.power_w), row.power_w),
                    Cell(times(drawn), drawn),
                    Cell(figure(clock, 4), clock),
                    Cell(energy_text(row.energy_j), row.energy_j),
                    Cell(times(spent), spent),
                )
            )
    note = "The same kernel and case with other values: what the values alone change."
    return Table("Inputs side by side", columns, rows, note)


def _held(record: Record) -> Table:
    columns = (
        *(Column("kernel, inputs, case"), Column("reason"), Column("time", "number")),
        Column("of the windows", "share", "by the driver's counter"),
        Column("polled beside", "number", "share of the samples that had it"),
    )
    rows = [
        (
            named(row),
            each.reason,
            Cell("-" if each.seconds is None else duration(each.seconds), each.seconds),
            Cell(part(each.share), each.share),
            Cell(part(each.polled), each.polled),
        )
        for row in record.profiles
        for each in held_by(row)
    ]
    return Table("What held clocks down, over all trials", columns, rows)


def _validity(record: Record) -> Table:
    columns = (Column("kernel, inputs, case"), Column("state"), Column("code"), Column("meaning"))
    rows = [
        (named(row), Cell(row.validity, None, _TONES[row.validity]), code, meaning(code))
        for row in record.profiles
        if row.status == "measured"
        for code in codes_of(row)
    ]
    return Table("Not valid, or less than whole", columns, rows)


def _missing(record: Record) -> Table:
    columns = (Column("figures"), Column("reason"), Column("rows", "number"), Column("as"))
    rows = [
        (", ".join(each.fields), each.reason, Cell(f"{each.rows:,}", each.rows), each.example)
        for each in missing_of(record)
    ]
    return Table("Figures that are missing, and why", columns, rows)


def _windows(record: Record) -> Table:
    columns = (
        *(Column("kernel, inputs, case"), Column("trial", "number"), Column("state")),
        *(Column("seconds", "number"), Column("calls", "number"), Column("W", "number")),
        Column("W, 95th", "number", "95th percentile"),
        *(Column("W, highest", "number"), Column("SM MHz", "number")),
        *(Column("°C", "number", "mean"), Column("°C a minute", "number", "slope")),
        Column("counter", "number", "energy of the window by the counter"),
        Column("integral", "number", "energy of the window by sampled power"),
        *(Column("samples", "number"), Column("period, ms", "number")),
        Column("largest gap, ms", "number"),
    )
    rows: list[Sequence[Cell | str]] = []
    every = [each for row in record.profiles for each in _numbered(row)]
    note = ""
    if len(every) > MOST_WINDOWS:
        every.sort(key=lambda each: each[2].validity == "valid")
        note = (
            f"Of {len(every):,} windows {MOST_WINDOWS:,} are here, those that aren't valid first; "
            "the record has the others."
        )
    for name, number, each in every[:MOST_WINDOWS]:
        power, clock, warmth = each.power_w, each.sm_clock_mhz, each.temperature_c
        figures: tuple[float | None, ...] = (
            each.duration_s,
            each.calls,
            *((None,) * 3 if power is None else (power.mean, power.p95, power.highest)),
            None if clock is None else clock.mean,
            None if warmth is None else warmth.mean,
            each.slopes.get("temperature_c"),
        )
        energies = (each.energy_counter_j, each.energy_integral_j)
        rows.append(
            (
                name,
                Cell(f"{number}", number),
                Cell(each.validity, None, _TONES[each.validity]),
                *(Cell(figure(value, 4), value) for value in figures),
                *(Cell(energy_text(joules), joules) for joules in energies),
                Cell(f"{each.samples:,}", each.samples),
                Cell(figure(each.period_ms), each.period_ms),
                Cell(figure(each.largest_gap_ms), each.largest_gap_ms),
            )
        )
    return Table("Windows", columns, rows, note, folded=True)


def _numbered(row: ProfileRow) -> list[tuple[str, int, Window]]:
    """The row's windows, each with the row's name and the number of its trial."""
    name = named(row)
    return [(name, number, each) for number, each in enumerate(row.windows, 1)]
