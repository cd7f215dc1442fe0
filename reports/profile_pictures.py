"""Pictures of profiles: power, SM clock and temperature over time, and energy side by side."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from reports.page import Figure
from reports.profile_figures import cases_of, timeline_of
from reports.vector import COLOURS, drawable, drawn, label, legend, placed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure as Drawing

    from reports.record import Record
    from reports.schema import ProfileRow

MOST_CASES = 6
MOST_LINES = 12
_PANELS = (
    ("power_w", "power, W"),
    ("sm_clock_mhz", "SM clock, MHz"),
    ("temperature_c", "temperature, °C"),
)


def timelines(record: Record) -> tuple[Figure, ...]:
    """A figure for each of the first cases: what its rows did over time."""
    found = []
    groups = _groups(record)
    for op, title, rows in groups[:MOST_CASES]:
        note = "The first trial with a timeline, from the window's begin."
        if len(rows) > MOST_LINES:
            note += f" The first {MOST_LINES} of {len(rows):,} rows."
        if len(groups) > MOST_CASES:
            note += f" Of {len(groups):,} cases the first {MOST_CASES} are drawn."
        draw = partial(draw_timelines, rows[:MOST_LINES])
        found.append(Figure(f"{op}, {title}: over time", draw, note))
    return tuple(found)


def timelines_drawn(record: Record) -> int:
    """Of how many rows a page draws what they did over time."""
    return sum(len(rows[:MOST_LINES]) for _, _, rows in _groups(record)[:MOST_CASES])


def _groups(record: Record) -> list[tuple[str, str, list[ProfileRow]]]:
    """The rows with a timeline, by op and case."""
    return [
        (op, title, with_time)
        for (op, title), rows in cases_of(record).items()
        if (with_time := [row for row in rows if timeline_of(row) is not None])
    ]


def draw_timelines(rows: Sequence[ProfileRow], prefix: str) -> str:
    """Power, SM clock and temperature of the rows over time, as SVG."""

    def draw(figure: Drawing) -> None:
        panels = placed(figure, len(_PANELS))
        for axes, (name, title) in zip(panels, _PANELS, strict=True):
            for number, row in enumerate(rows):
                found = timeline_of(row)
                series = None if found is None else found[1].series
                values = () if series is None else getattr(series, name)
                if series is None or len(values) != len(series.seconds):
                    continue
                axes.plot(
                    series.seconds,
                    [value if drawable(value) else math.nan for value in values],
                    color=COLOURS[number % len(COLOURS)],
                    linestyle=("-", "--", ":")[number // len(COLOURS)],
                    linewidth=1.3,
                    label=label(f"{row.kernel}, {row.distribution}", 36),
                )
            limits = [limit for row in rows if drawable(limit := row.power_limit_w)]
            if name == "power_w" and limits:
                axes.axhline(max(limits), color="#b3141d", linewidth=1.0, linestyle="--")
            axes.set_ylabel(title, fontsize=8.5)
            axes.grid(visible=True)
        panels[-1].set_xlabel("seconds")
        legend(panels[0])

    about = f"Power, SM clock and temperature of {len(rows)} rows over time"
    return drawn(draw, prefix, about, inches=(10.4, 5.4))
