"""A record of `profile` as a document: energy, power and clocks, and what held them down.

Rows of a case stand together. Rows without a steady state, and figures that couldn't be read, have
their reason. Powers and energies are of the whole board, idle power included unless a name says
net.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from kernel_workbench.reports.document.fields import meanings, number, only, table_of, text
from kernel_workbench.reports.document.model import Cell, Column
from kernel_workbench.reports.phrases import (
    count,
    energy,
    figure,
    four_digits,
    milliseconds,
    share,
    whole,
)
from kernel_workbench.reports.record import ProfileRow, Window
from kernel_workbench.reports.views.performance import (
    STATUSES,
    by_case,
    over,
    part_of,
    problems_of,
    reasons_of,
    reasons_tables,
    statuses_of,
    verdict_of,
)
from kernel_workbench.reports.views.profile_codes import meaning
from kernel_workbench.reports.views.profile_energies import (
    MissingFigures,
    Total,
    codes_of,
    counter_apart,
    held_by,
    highest_of,
    mean_of,
    missing_of,
    short_case,
    totals_of,
)
from kernel_workbench.reports.views.profile_pictures import (
    timelines,
)
from kernel_workbench.reports.views.row_columns import fields_in_order
from kernel_workbench.reports.views.run import name_of, own_of, parts_of, total_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernel_workbench.reports.document.fields import Field
    from kernel_workbench.reports.document.model import Figure, ReportPart, Table, Tone
    from kernel_workbench.reports.record import Record, Spread


MOST_WINDOWS = 2000  # of 500 rows with four trials: more is slow to make and to open
_SAMPLER_MOST = 0.005  # of a call's time; above it the sampler disturbs what it measures
_DENSE = 50  # flops a byte from which work is told in flops: between layer norm's 2 and attention's
_VALIDITIES: dict[str, Tone] = {"valid": "good", "transient": "doubtful", "invalid": "bad"}

# Fields of items that begin with their row.
_NAMES: list[Field[Any]] = [
    text("kernel", lambda item: item[0].kernel, group=True),
    text("inputs", lambda item: item[0].distribution, group=True),
    text("case", lambda item: item[0].case.id, group=True),
]


class _Numbered(NamedTuple):
    """A window, and the number of its trial from 1."""

    row: ProfileRow
    trial: int
    window: Window


def profile_part(record: Record) -> ReportPart:
    """Return the record's part of a document."""
    rows = record.profiles
    kernels = count(len({(row.op, row.kernel) for row in rows}), "kernel")
    validities = Counter(row.validity for row in rows if row.status == "measured")
    measured, *rest = statuses_of(rows, "measured")
    unsteady = [
        f"{validities[item]:,} {item}" for item in ("transient", "invalid") if validities[item]
    ]
    if unsteady:
        measured += f" ({', '.join(unsteady)})"
    return part_of(
        record,
        verdict_of(record, rows, "measured"),
        f"{count(len(rows), 'row')} ({kernels})",
        ", ".join([measured, *rest]),
        f"in {total_duration(record)}",
        _notes(record),
        _items(record),
    )


def _notes(record: Record) -> Iterator[str]:
    """Yield notes that stand under the verdict."""
    rows = record.profiles
    yield from problems_of(record, [row for row in rows if row.status == "measured"])
    slowed = [(slower, row) for row in rows if (slower := row.sampler_slowdown) is not None]
    disturbed = [item for item in slowed if not item[0] <= _SAMPLER_MOST]
    if disturbed:
        slower, row = max(disturbed, key=lambda item: item[0])
        yield (
            f"the sampler slows {count(len(disturbed), 'row')} by more than 0.5 %, "
            f"{row.kernel} by {100 * slower:.2f} %"
        )
    reasons: dict[str, list[float]] = {}
    for row in rows:
        for name, of_windows in held_by(row).items():
            reasons.setdefault(name, []).append(of_windows)
    for name, shares in reasons.items():
        yield (
            f"{name} kept the clock of {count(len(shares), 'row')} down, for {share(max(shares))} "
            "of the windows at most"
        )
    apart = [(far, row) for row in rows if (far := counter_apart(row)) is not None]
    if apart:
        far, row = max(apart, key=lambda item: abs(item[0]))
        yield (
            f"energy by the counter and by sampled power are {100 * abs(far):.1f} % apart at "
            f"most ({row.kernel}, {short_case(row)})"
        )


def _items(record: Record) -> Iterator[Table | Figure]:
    failed, rest = reasons_tables(
        reasons_of(
            record.profiles, "measured", lambda row: f"{row.distribution}, {short_case(row)}"
        )
    )
    totals, rows = _totals(record), _rows(record)
    tables = [make(record) for make in (_validity, _missing)]
    yield from (failed, totals, rows, rest)
    yield from timelines(record)
    yield from tables
    yield meanings((totals, rows, *tables))
    yield _windows(record)


def _named(row: ProfileRow) -> Cell:
    return Cell(f"{row.kernel}, {row.distribution}, {row.case.id}", tone="dim")


def _rows(record: Record) -> Table:
    parts = parts_of(record.header)
    own = own_of(record.header)
    names: list[Field[ProfileRow]] = [
        text("op", lambda row: row.op, group=True),
        text("case", short_case, group=True),
        text(
            "kernel",
            lambda row: Cell(
                name_of(row.kernel, parts.get((row.op, row.kernel))),
                tone="strong" if (row.op, row.kernel) in own else "",
            ),
        ),
        text("inputs", lambda row: row.distribution, rank=1),
        text(
            "state",
            lambda row: _state(row.validity if row.status == "measured" else row.status),
            rank=1,
        ),
    ]
    derived: dict[str, list[Field[ProfileRow]]] = {
        "energy_j": [
            number("±", _error, _percent, "95 %, of the trials and the counter", rank=1),
        ],
        "power_w": [
            number(
                "of limit",
                lambda row: over(row.power_w, row.power_limit_w),
                share,
                "of the power limit in force",
                kind="share",
                rank=2,
            ),
        ],
        "device_us": [
            (Column("a watt buys", "number", rank=5), _bought),
            number("SM MHz", lambda row: mean_of(row, "sm_clock_mhz"), note="mean", rank=4),
            text(
                "held by",
                _low_clocks,
                "what kept the clock down, and its share of the windows",
                rank=4,
            ),
            number("°C", lambda row: highest_of(row, "temperature_c"), note="the highest", rank=6),
        ],
        "joules_per_tflop": [
            number(
                "integral",
                counter_apart,
                lambda apart: f"{100 * apart:+.1f} %",
                "energy by sampled power over that by the counter, less 1",
                rank=9,
            ),
            (Column("idle W", "number", "before and after", rank=10), _idle),
        ],
        "sampler_slowdown": [number("trials", lambda row: len(row.windows), rank=11)],
    }
    figures = fields_in_order(ProfileRow, lambda row: row, derived=derived)
    fields = [*names, *only(lambda row: row.status == "measured", figures)]
    rows = [row for of_case in by_case(record.profiles, short_case).values() for row in of_case]
    return table_of("Energy, power and clocks", fields, rows)


def _state(state: str) -> Cell:
    return Cell(state, tone=_VALIDITIES.get(state) or STATUSES[state])


def _error(of: ProfileRow | Total) -> float | None:
    """Return the energy's 95 % error as a share of it."""
    return over(of.energy_error_j, of.energy_j)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _bought(row: ProfileRow) -> Cell:
    """Return the work for a watt: `0.84 TFLOP/s/W`, `5.32 GB/s/W`."""
    flops, least = row.flops or 0, row.bytes or 0
    if row.tflops_per_w is not None and (row.gb_s_per_w is None or flops > _DENSE * least):
        return Cell(f"{figure(row.tflops_per_w)} TFLOP/s/W", row.tflops_per_w)
    return (
        Cell("-")
        if row.gb_s_per_w is None
        else Cell(f"{figure(row.gb_s_per_w)} GB/s/W", row.gb_s_per_w)
    )


def _low_clocks(row: ProfileRow) -> Cell:
    """Return `SW power cap 45 %`: the reasons that kept the clock down, the longest first."""
    reasons = held_by(row)
    if not reasons:
        present = any(window.reasons_s or window.reasons_polled for window in row.windows)
        return Cell("nothing" if present else "-")
    return Cell(", ".join(f"{name} {share(of)}" for name, of in reasons.items()), tone="doubtful")


def _idle(row: ProfileRow) -> Cell:
    watts = [watt for watt in (row.idle_before_w, row.idle_after_w) if watt is not None]
    return Cell(" to ".join(map(whole, watts)) or "-", watts[0] if watts else None)


def _totals(record: Record) -> Table:
    fields: list[Field[Total]] = [
        text("op", lambda total: total.op, group=True),
        text("inputs", lambda total: total.distribution, group=True),
        text("kernel", lambda total: total.kernel),
        (
            Column(
                "cases", "number", "those with a weight on which each kernel was measured", rank=2
            ),
            lambda total: Cell(f"{total.cases:,} of {total.of:,}", total.cases),
        ),
        number("energy", lambda total: total.energy_j, energy),
        number("±", _error, _percent, rank=1),
        number("time", lambda total: total.device_us, milliseconds),
        number("W", lambda total: total.power_w, figure, rank=2),
        text("state", lambda total: _state(total.validity), "the worst of the rows", rank=1),
    ]
    note = "Each case as often as its weight says."
    return table_of("Weighted totals", fields, totals_of(record), note)


def _validity(record: Record) -> Table:
    fields: list[Field[tuple[ProfileRow, str]]] = [
        *_NAMES,
        text("state", lambda item: _state(item[0].validity)),
        text("code", lambda item: item[1]),
        text("meaning", lambda item: meaning(item[1], item[0])),
    ]
    measured = (row for row in record.profiles if row.status == "measured")
    codes = [(row, code) for row in measured for code in codes_of(row)]
    return table_of("Not valid, or less than whole", fields, codes)


def _missing(record: Record) -> Table:
    fields: list[Field[MissingFigures]] = [
        text("figures", lambda figures: ", ".join(figures.fields)),
        number("rows", lambda figures: figures.rows),
        text("reason", lambda figures: figures.reason),
        text("as", lambda figures: _named(figures.example), below=True),
    ]
    return table_of("Figures that are missing, and why", fields, missing_of(record))


def _windows(record: Record) -> Table:
    sampled: list[Field[_Numbered]] = [
        number("W", lambda trial: _of(trial.window.power_w, "mean"), four_digits),
        number(
            "W, 95th",
            lambda trial: _of(trial.window.power_w, "p95"),
            four_digits,
            "95th percentile",
        ),
        number("W, highest", lambda trial: _of(trial.window.power_w, "highest"), four_digits),
        number("SM MHz", lambda trial: _of(trial.window.sm_clock_mhz, "mean"), four_digits),
        number("°C", lambda trial: _of(trial.window.temperature_c, "mean"), four_digits, "mean"),
        number(
            "°C a minute",
            lambda trial: trial.window.slopes.get("temperature_c"),
            four_digits,
            "slope",
        ),
    ]
    fields: list[Field[_Numbered]] = [
        *_NAMES,
        number("trial", lambda trial: trial.trial),
        text("state", lambda trial: _state(trial.window.validity)),
        *fields_in_order(Window, lambda trial: trial.window, derived={"calls": sampled}),
    ]
    every = [
        _Numbered(row, trial, window)
        for row in record.profiles
        for trial, window in enumerate(row.windows, 1)
    ]
    note = ""
    if len(every) > MOST_WINDOWS:
        every.sort(key=lambda item: item.window.validity == "valid")
        note = (
            f"The table has {MOST_WINDOWS:,} of {len(every):,} windows, invalid ones first; the "
            "record has the others."
        )
    return table_of("Windows", fields, every[:MOST_WINDOWS], note, level="page", folded=True)


def _of(spread: Spread | None, name: str) -> float | None:
    return None if spread is None else getattr(spread, name)
