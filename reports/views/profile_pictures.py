"""Pictures of profiles: power, SM clock and temperature of the rows of a case over time."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kernel_workbench.reports.document.model import Figure
from kernel_workbench.reports.document.svg import COLOURS, drawable, drawn, label, legend, placed
from kernel_workbench.reports.record import ProfileRow, Series
from kernel_workbench.reports.views.performance import by_case
from kernel_workbench.reports.views.profile_energies import short_case
from kernel_workbench.reports.views.run import own_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from matplotlib.figure import Figure as Drawing

    from kernel_workbench.reports.record import Record, Row

MOST_CASES = 6
MOST_LINES = 12
_QUANTITIES = (
    ("power", "power_w", "W"),
    ("SM clock", "sm_clock_mhz", "MHz"),
    ("temperature", "temperature_c", "°C"),
)

_COUNTED = Series(seconds=(0.0, 1.0))  # of two points, as a timeline has at the least


def timelines(record: Record) -> tuple[Figure, ...]:
    """Return a figure for each of the first cases: what its rows did over time."""
    result = []
    groups = _groups(record)
    own = own_of(record.header)
    for op, title, rows in groups[:MOST_CASES]:
        note = "The first trial with a timeline, from the window's begin."
        if len(rows) > MOST_LINES:
            note += f" The first {MOST_LINES} of {len(rows):,} rows."
        if len(groups) > MOST_CASES:
            note += f" Of {len(groups):,} cases the first {MOST_CASES} are drawn."
        draw = partial(_draw, rows[:MOST_LINES], own)
        result.append(Figure(f"{op}, {title}: over time", draw, note))
    return tuple(result)


def timeline_of(row: ProfileRow) -> tuple[int, Series] | None:
    """Return the first trial with a timeline: its number from 1, and the timeline."""
    for number, window in enumerate(row.windows, 1):
        if window.series is not None and len(window.series.seconds) > 1:
            return number, window.series
    return None


class Thinning:
    """Takes the rows of a record in their order, and drops the timelines that aren't drawn.

    5,000 profiles have 8 million readings, which would take 600 MB.
    """

    def __init__(self) -> None:
        self._cases: dict[str, Counter[str]] = {}  # by op: the timelines of its first cases

    def thinned(self, row: Row) -> Row:
        """Return the row, its timelines left out where no figure shows them."""
        if not isinstance(row, ProfileRow) or (result := timeline_of(row)) is None:
            return row
        trial, series = result
        cases = self._cases.setdefault(row.op, Counter())
        if row.case.id in cases or len(cases) < MOST_CASES:
            cases[row.case.id] += 1
        kept = series if 0 < cases[row.case.id] <= MOST_LINES else _COUNTED
        windows = (
            replace(window, series=kept if number == trial else None)
            for number, window in enumerate(row.windows, 1)
        )
        return row.model_copy(update={"windows": tuple(windows)})


def _groups(record: Record) -> list[tuple[str, str, list[ProfileRow]]]:
    """Return the rows with a timeline, by op and case."""
    return [
        (op, title, with_time)
        for (op, title), rows in by_case(record.profiles, short_case).items()
        if (with_time := [row for row in rows if timeline_of(row) is not None])
    ]


def _draw(rows: Sequence[ProfileRow], own: Collection[tuple[str, str]], prefix: str) -> str:
    """Draw power, SM clock and temperature over time as SVG; `own` kernels have wider lines."""

    def draw(figure: Drawing) -> None:
        panels = placed(figure, len(_QUANTITIES))
        for axes, (title, name, unit) in zip(panels, _QUANTITIES, strict=True):
            for number, row in enumerate(rows):
                result = timeline_of(row)
                assert result is not None
                _, series = result
                values = getattr(series, name)
                if len(values) != len(series.seconds):
                    continue
                axes.plot(
                    series.seconds,
                    [value if drawable(value) else math.nan for value in values],
                    color=COLOURS[number % len(COLOURS)],
                    linestyle=("-", "--", ":")[number // len(COLOURS)],
                    linewidth=2.0 if (row.op, row.kernel) in own else 1.0,
                    label=label(f"{row.kernel}, {row.distribution}", 36),
                )
            limits = [limit for row in rows if drawable(limit := row.power_limit_w)]
            if name == "power_w" and limits:
                axes.axhline(max(limits), color="#b3141d", linewidth=1.0, linestyle="--")
            axes.set_ylabel(f"{title}, {unit}", fontsize=8.5)
            axes.grid(visible=True)
        panels[-1].set_xlabel("seconds")
        legend(panels[0])

    about = f"Power, SM clock and temperature of {len(rows)} rows over time"
    return drawn(draw, prefix, about, inches=(10.4, 5.4))
