"""A window of a trace in figures: energy, power, clocks, and the reasons for low clocks.

The energy counter moves in ticks (every 100 ms on an H200). A window is cut to whole ticks: the
time at either end is then uncertain by half the distance between two reads. A window that is cut
anywhere else is wrong by up to a tick: Yang et al., Part-time Power Measurements, SC24 (arXiv
2312.02741). Counters of nanoseconds are interpolated linearly between samples. A figure that a
window lacks is None and has a reason; it never becomes zero.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter

from kernel_workbench.profiles.traces import (
    ENERGY,
    FIELDS,
    POWER,
    REASONS,
    Missing,
    Trace,
    TraceSample,
)

NS = 1e-9
LARGEST_GAP_S = 0.25  # sampled power doesn't describe the power drawn within a longer gap
# The most that a steady quantity may drift over a window: shares of the mean, and degrees. A drift
# counts only if it is also three times its own uncertainty.
MOST_POWER_DRIFT = 0.02
MOST_CLOCK_DRIFT = 0.02
MOST_TEMPERATURE_DRIFT_C = 6.0
_SIGMAS = 3.0
_POINTS = 100  # the most in a series for a chart
_WRAPS = 2**32
_A_MINUTE = 60.0

_STATED = {"power_w": 1e-3, "sm_clock_mhz": 1.0, "memory_clock_mhz": 1.0, "temperature_c": 1.0}


@dataclass(frozen=True, slots=True)
class WindowSpread:
    """The distribution of a quantity over a window."""

    mean: float
    p50: float
    p95: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class WindowSeries:
    """Samples thinned for a chart, in columns; None where every read failed."""

    seconds: tuple[float, ...]
    power_w: tuple[float | None, ...]
    sm_clock_mhz: tuple[float | None, ...]
    temperature_c: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """A step of the energy counter to `energy_j`, within `half_s` of the time `at_s`."""

    at_s: float
    half_s: float
    energy_j: float


@dataclass(slots=True)
class Figures:
    """The figures of a window, cut from `begin_s` to `end_s` of CLOCK_MONOTONIC.

    slopes  change per minute of power_w, sm_clock_mhz and temperature_c
    codes   why the window isn't steady (`transient`) or not whole (`broken`)
    """

    begin_s: float
    end_s: float
    energy_counter_j: float | None = None
    energy_counter_error_j: float | None = None
    energy_integral_j: float | None = None
    power_w: WindowSpread | None = None
    sm_clock_mhz: WindowSpread | None = None
    memory_clock_mhz: WindowSpread | None = None
    temperature_c: WindowSpread | None = None
    memory_temperature_c: WindowSpread | None = None
    sm_clocks: dict[int, float] = field(default_factory=dict)
    reasons_s: dict[str, float] = field(default_factory=dict)
    reasons_polled: dict[str, float] = field(default_factory=dict)
    slopes: dict[str, float] = field(default_factory=dict)
    samples: int = 0
    period_ms: float | None = None
    largest_gap_ms: float | None = None
    codes: list[str] = field(default_factory=list)
    transient: bool = False
    broken: bool = False
    missing: dict[str, Missing] = field(default_factory=dict)
    series: WindowSeries | None = None

    @property
    def duration_s(self) -> float:
        """The window's length in seconds."""
        return self.end_s - self.begin_s


def measure(trace: Trace, begin_s: float, end_s: float) -> Figures:
    """Return the figures of a window of the trace, cut to the energy counter's ticks if any."""
    figures = Figures(begin_s, end_s)
    lost = _lost(trace, begin_s, end_s)
    if lost is not None:
        figures.broken = True
        figures.codes.append(lost.code)
    ticks = energy_ticks(trace, begin_s, end_s) if lost is None else lost
    if isinstance(ticks, Missing):
        figures.missing["energy_counter_j"] = ticks
    else:
        first, last = ticks[0], ticks[-1]
        figures.begin_s, figures.end_s = first.at_s, last.at_s
        figures.energy_counter_j = last.energy_j - first.energy_j
        power_w = figures.energy_counter_j / figures.duration_s
        figures.energy_counter_error_j = power_w * (first.half_s + last.half_s)
    begin, end = figures.begin_s, figures.end_s
    inside = [sample for sample in trace.samples if begin <= sample.at_ns * NS <= end]
    figures.samples = len(inside)
    if len(inside) < 2:
        return _without(figures, trace)
    stamps = [figures.begin_s, *(sample.at_ns * NS for sample in inside), figures.end_s]
    gaps = [later - earlier for earlier, later in pairwise(stamps)]
    figures.period_ms = 1e3 * statistics.median(gaps[1:-1])
    figures.largest_gap_ms = 1e3 * max(gaps)
    _spreads(figures, trace, inside)
    _integrate(figures, trace, lost, max(gaps))
    _reasons(figures, trace, inside)
    _test_steadiness(figures, trace, inside)
    figures.series = _series(figures, trace, inside)
    return figures


def energy_ticks(trace: Trace, begin_s: float, end_s: float) -> list[Tick] | Missing:
    """Return the energy counter's ticks within the window, at least two, or a reason."""
    place = FIELDS.index(ENERGY)
    ticks: list[Tick] = []
    before: tuple[TraceSample, int] | None = None
    wraps = 0
    for sample in trace.samples:
        value = sample.values[place]
        if value is None:
            continue
        if before is not None and value != before[1]:
            earliest, latest = before[0].energy_at_ns * NS, sample.done_ns * NS
            if value < before[1]:
                if not _wrapped(before[1], value):
                    if latest > begin_s and earliest < end_s:
                        at_s = sample.at_ns * NS - begin_s
                        return Missing("went back", f"the counter went back {at_s:.2f} s in")
                else:
                    wraps += 1
            if earliest >= begin_s and latest <= end_s:
                energy_j = 1e-3 * (value + wraps * _WRAPS)
                ticks.append(Tick((earliest + latest) / 2, (latest - earliest) / 2, energy_j))
        before = sample, value
    if before is None:
        return trace.missing.get(ENERGY, trace.without())
    if len(ticks) < 2:
        return Missing("no ticks", f"the counter moved {len(ticks)} times in the window")
    return ticks


def _wrapped(before: int, after: int) -> bool:
    """Return True if a 32-bit counter wrapped, False if it was reset."""
    return before < _WRAPS and before - after > _WRAPS // 2


def _points(trace: Trace, name: str) -> list[tuple[float, float]]:
    """Return the time in seconds and the value of each successful read of a field."""
    place = FIELDS.index(name)
    return [
        (sample.at_ns * NS, float(value))
        for sample in trace.samples
        if (value := sample.values[place]) is not None
    ]


def _power_field(trace: Trace) -> str:
    """Return the field of instant power, or of the average where the driver has only that."""
    return POWER if any(value is not None for value in trace.column(POWER)) else "power_average_mw"


def _field_of(trace: Trace, stated: str) -> str:
    return _power_field(trace) if stated == "power_w" else stated


def _values(trace: Trace, stated: str, inside: Sequence[TraceSample]) -> list[tuple[float, float]]:
    """Return times and values of a reported quantity, in the report's unit."""
    place = FIELDS.index(_field_of(trace, stated))
    unit = _STATED.get(stated, 1.0)
    return [
        (sample.at_ns * NS, unit * value)
        for sample in inside
        if (value := sample.values[place]) is not None
    ]


def _spreads(figures: Figures, trace: Trace, inside: Sequence[TraceSample]) -> None:
    for stated in (*_STATED, "memory_temperature_c"):
        values = [value for _, value in _values(trace, stated, inside)]
        if values:
            setattr(figures, stated, spread(values))
        else:
            figures.missing[stated] = _why(trace, _field_of(trace, stated))
    if _power_field(trace) != POWER and figures.power_w is not None:
        figures.codes.append("averaged power")
    clocks = [int(value) for _, value in _values(trace, "sm_clock_mhz", inside)]
    figures.sm_clocks = {clock: clocks.count(clock) / len(clocks) for clock in sorted(set(clocks))}


def spread(values: Sequence[float]) -> WindowSpread:
    """Return mean, median, 95th percentile and extremes of one value or more."""
    ordered = sorted(values)
    highest = len(ordered) - 1
    return WindowSpread(
        mean=statistics.fmean(ordered),
        p50=statistics.median(ordered),
        p95=ordered[min(highest, math.ceil(0.95 * len(ordered)) - 1)],
        lowest=ordered[0],
        highest=ordered[-1],
    )


def _why(trace: Trace, name: str) -> Missing:
    return trace.missing.get(name, Missing("no data", "every read of it failed in the window"))


def _lost(trace: Trace, begin_s: float, end_s: float) -> Missing | None:
    """Return the reason if the GPU was lost before the window's end, else None."""
    if trace.lost_ns is None or trace.lost_ns * NS > end_s:
        return None
    at_s = trace.lost_ns * NS - begin_s
    when = f"{at_s:.2f} s in" if at_s > 0 else "before the window"
    return Missing("gpu lost", f"the driver lost the GPU {when}")


def _integrate(figures: Figures, trace: Trace, lost: Missing | None, largest_gap_s: float) -> None:
    points = _points(trace, _power_field(trace))
    if lost is not None:
        figures.missing["energy_integral_j"] = lost
    elif not points:
        figures.missing["energy_integral_j"] = _why(trace, _power_field(trace))
    elif largest_gap_s > LARGEST_GAP_S:
        figures.codes.append("gap")
        figures.missing["energy_integral_j"] = Missing(
            "gap", f"nothing was sampled for {largest_gap_s:.2f} s"
        )
    else:
        figures.energy_integral_j = 1e-3 * integral(points, figures.begin_s, figures.end_s)


def integral(points: Sequence[tuple[float, float]], begin_s: float, end_s: float) -> float:
    """Integrate the line through the points from begin to end; it is level beyond its ends."""
    inside = [(at, value) for at, value in points if begin_s < at < end_s]
    line = [(begin_s, at_time(points, begin_s)), *inside, (end_s, at_time(points, end_s))]
    return sum(
        (later - earlier) * (one + other) / 2 for (earlier, one), (later, other) in pairwise(line)
    )


def at_time(points: Sequence[tuple[float, float]], at_s: float) -> float:
    """Interpolate linearly at a time; beyond the ends return the first or last value.

    >>> at_time([(0.0, 10.0), (2.0, 30.0)], 0.5)
    15.0
    """
    place = bisect_right(points, at_s, key=itemgetter(0))
    if place == 0:
        return points[0][1]
    if place == len(points):
        return points[-1][1]
    (earlier, one), (later, other) = points[place - 1], points[place]
    return one + (at_s - earlier) / (later - earlier) * (other - one)


def _reasons(figures: Figures, trace: Trace, inside: Sequence[TraceSample]) -> None:
    place = FIELDS.index("reasons")
    polled = [value for sample in inside if (value := sample.values[place]) is not None]
    if not polled:
        figures.missing["reasons_polled"] = _why(trace, "reasons")
    for name, (bit, counter) in REASONS.items():
        if polled:
            share = sum(bool(value & bit) for value in polled) / len(polled)
            if share or counter is not None:
                figures.reasons_polled[name] = share
        if counter is None:
            continue
        seconds = counted_s(trace, counter, figures.begin_s, figures.end_s)
        if isinstance(seconds, Missing):
            figures.missing[f"reasons_s.{name}"] = seconds
        else:
            figures.reasons_s[name] = seconds


def counted_s(trace: Trace, counter: str, begin_s: float, end_s: float) -> float | Missing:
    """Return by how many seconds a counter of nanoseconds advanced from begin to end."""
    points = _points(trace, counter)
    gap_s = LARGEST_GAP_S
    near = [point for point in points if begin_s - gap_s <= point[0] <= end_s + gap_s]
    if len(near) < 2 or near[0][0] > begin_s + gap_s or near[-1][0] < end_s - gap_s:
        return _why(trace, counter)
    raised: list[tuple[float, float]] = []
    carry = 0.0
    for at_s, value in near:
        if raised and value + carry < raised[-1][1]:
            if not _wrapped(int(raised[-1][1] - carry), int(value)):
                return Missing("went back", f"the counter went back {at_s - begin_s:.2f} s in")
            carry += _WRAPS
        raised.append((at_s, value + carry))
    return NS * (at_time(raised, end_s) - at_time(raised, begin_s))


def _test_steadiness(figures: Figures, trace: Trace, inside: Sequence[TraceSample]) -> None:
    limits = {
        "power_w": ("power drifts", MOST_POWER_DRIFT),
        "sm_clock_mhz": ("clock drifts", MOST_CLOCK_DRIFT),
        "temperature_c": ("temperature drifts", None),
    }
    for stated, (code, share) in limits.items():
        points = _values(trace, stated, inside)
        if len(points) < 3:
            continue
        slope, error = fitted_slope(points)
        figures.slopes[stated] = _A_MINUTE * slope
        drift, uncertainty = abs(slope) * figures.duration_s, error * figures.duration_s
        mean = statistics.fmean(value for _, value in points)
        most = MOST_TEMPERATURE_DRIFT_C if share is None else share * mean
        if drift > most and drift > _SIGMAS * uncertainty:
            figures.transient = True
            figures.codes.append(code)


def fitted_slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the least-squares slope and its standard error; a repeated value counts once.

    Reads between two updates of a sensor repeat its value and add nothing about its noise.
    """
    times = [at for at, _ in points]
    values = [value for _, value in points]
    slope, intercept = statistics.linear_regression(times, values)
    updates = 1 + sum(one != other for one, other in pairwise(values))
    residual = sum((value - intercept - slope * at) ** 2 for at, value in points) / len(points)
    spread_s = statistics.pvariance(times)
    return slope, math.sqrt(residual / (max(updates - 2, 1) * spread_s))


def _series(figures: Figures, trace: Trace, inside: Sequence[TraceSample]) -> WindowSeries:
    """Return at most a hundred points; a point is the mean of its samples."""
    size = -(-len(inside) // _POINTS)
    groups = [inside[start : start + size] for start in range(0, len(inside), size)]

    def column(stated: str) -> Iterator[float | None]:
        for group in groups:
            values = [value for _, value in _values(trace, stated, group)]
            yield round(statistics.fmean(values), 3) if values else None

    middle = (statistics.fmean(sample.at_ns for sample in group) * NS for group in groups)
    return WindowSeries(
        tuple(round(time_s - figures.begin_s, 4) for time_s in middle),
        tuple(column("power_w")),
        tuple(column("sm_clock_mhz")),
        tuple(column("temperature_c")),
    )


def _without(figures: Figures, trace: Trace) -> Figures:
    figures.broken = True
    if not figures.codes:
        figures.codes.append(trace.without().code)
    for name in ("energy_integral_j", *_STATED, "memory_temperature_c", "reasons_polled"):
        stated = {"energy_integral_j": POWER, "power_w": POWER, "reasons_polled": "reasons"}
        figures.missing[name] = _why(trace, stated.get(name, name))
    return figures
