"""A window of a trace in figures: energy, power, clocks, and what held the clocks down.

The energy counter moves in ticks (every 100 ms on an H200). A window is cut to whole ticks, so that
the counter's difference belongs to a time that is known to within half the distance between two
reads at either end, where a window cut anywhere is wrong by up to a tick: Yang et al., Part-time
Power Measurements, SC24 (arXiv 2312.02741). Counters of nanoseconds are read between samples by
straight lines. What a window lacks is None, with the reason; it never becomes zero.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter

from kernel_workbench.profiles.traces import ENERGY, FIELDS, POWER, REASONS, Missing, Sample, Trace

NS = 1e-9
LARGEST_GAP_S = 0.25  # past it sampled power says nothing of what was drawn meanwhile
# How far a steady quantity may go over a window: shares of the mean, and degrees. Noise apart: a
# drift also has to be three times its own uncertainty.
MOST_POWER_DRIFT = 0.02
MOST_CLOCK_DRIFT = 0.02
MOST_TEMPERATURE_DRIFT_C = 6.0
_SIGMAS = 3.0
_POINTS = 100  # of a series that is drawn
_WRAPS = 2**32
_A_MINUTE = 60.0

_STATED = {"power_w": 1e-3, "sm_clock_mhz": 1.0, "memory_clock_mhz": 1.0, "temperature_c": 1.0}


@dataclass(frozen=True, slots=True)
class Spread:
    """A quantity over a window."""

    mean: float
    p50: float
    p95: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class Series:
    """Samples thinned for a picture, in columns; None where no read worked."""

    seconds: tuple[float, ...]
    power_w: tuple[float | None, ...]
    sm_clock_mhz: tuple[float | None, ...]
    temperature_c: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """A step of the energy counter: it came within `half_s` of `at_s`, and left `energy_j`."""

    at_s: float
    half_s: float
    energy_j: float


@dataclass(slots=True)
class Figures:
    """What a window comes to. begin_s, end_s: as it was cut, of CLOCK_MONOTONIC.

    slopes  a minute, of power_w, sm_clock_mhz and temperature_c
    codes   why it isn't steady or whole; `transient` and `broken` say which those are
    """

    begin_s: float
    end_s: float
    energy_counter_j: float | None = None
    energy_counter_error_j: float | None = None
    energy_integral_j: float | None = None
    power_w: Spread | None = None
    sm_clock_mhz: Spread | None = None
    memory_clock_mhz: Spread | None = None
    temperature_c: Spread | None = None
    memory_temperature_c: Spread | None = None
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
    series: Series | None = None

    @property
    def duration_s(self) -> float:
        """How long it is."""
        return self.end_s - self.begin_s


def measure(trace: Trace, begin_s: float, end_s: float) -> Figures:
    """The figures of a window of the trace, cut to the energy counter's ticks where it has them."""
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
    inside = [each for each in trace.samples if figures.begin_s <= each.at_ns * NS <= figures.end_s]
    figures.samples = len(inside)
    if len(inside) < 2:
        return _without(figures, trace)
    stamps = [figures.begin_s, *(each.at_ns * NS for each in inside), figures.end_s]
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
    """The counter's ticks within the window, at least two; or why there are none."""
    place = FIELDS.index(ENERGY)
    ticks: list[Tick] = []
    before: tuple[Sample, int] | None = None
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
    """Whether a counter of 32 bits went round, where one that is smaller was set back."""
    return before < _WRAPS and before - after > _WRAPS // 2


def _points(trace: Trace, name: str) -> list[tuple[float, float]]:
    """The reads of a field that worked, with their times in seconds."""
    place = FIELDS.index(name)
    return [
        (each.at_ns * NS, float(value))
        for each in trace.samples
        if (value := each.values[place]) is not None
    ]


def _power_field(trace: Trace) -> str:
    """Instant power; the second's average where the driver has no other."""
    return POWER if any(each is not None for each in trace.column(POWER)) else "power_average_mw"


def _field_of(trace: Trace, stated: str) -> str:
    return _power_field(trace) if stated == "power_w" else stated


def _values(trace: Trace, stated: str, inside: Sequence[Sample]) -> list[tuple[float, float]]:
    """Times and values of what a report states, in its unit."""
    place = FIELDS.index(_field_of(trace, stated))
    unit = _STATED.get(stated, 1.0)
    return [
        (each.at_ns * NS, unit * value)
        for each in inside
        if (value := each.values[place]) is not None
    ]


def _spreads(figures: Figures, trace: Trace, inside: Sequence[Sample]) -> None:
    for stated in (*_STATED, "memory_temperature_c"):
        values = [value for _, value in _values(trace, stated, inside)]
        if values:
            setattr(figures, stated, spread(values))
        else:
            figures.missing[stated] = _why(trace, _field_of(trace, stated))
    if _power_field(trace) != POWER and figures.power_w is not None:
        figures.codes.append("averaged power")
    clocks = [int(value) for _, value in _values(trace, "sm_clock_mhz", inside)]
    figures.sm_clocks = {each: clocks.count(each) / len(clocks) for each in sorted(set(clocks))}


def spread(values: Sequence[float]) -> Spread:
    """Mean, median, 95th percentile and extremes of one value or more."""
    ordered = sorted(values)
    highest = len(ordered) - 1
    return Spread(
        mean=statistics.fmean(ordered),
        p50=statistics.median(ordered),
        p95=ordered[min(highest, math.ceil(0.95 * len(ordered)) - 1)],
        lowest=ordered[0],
        highest=ordered[-1],
    )


def _why(trace: Trace, name: str) -> Missing:
    return trace.missing.get(name, Missing("no data", "no read of it worked in the window"))


def _lost(trace: Trace, begin_s: float, end_s: float) -> Missing | None:
    """That the GPU was lost before the window's end, and when."""
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
    """Of straight lines between the points, from begin to end; beyond its ends it is level."""
    inside = [(at, value) for at, value in points if begin_s < at < end_s]
    line = [
        (begin_s, at_time(points, begin_s)),
        *inside,
        (end_s, at_time(points, end_s)),
    ]
    return sum(
        (later - earlier) * (one + other) / 2 for (earlier, one), (later, other) in pairwise(line)
    )


def at_time(points: Sequence[tuple[float, float]], at_s: float) -> float:
    """The value at a time on the straight line between its neighbours; beyond the ends, theirs."""
    place = bisect_right(points, at_s, key=itemgetter(0))
    if place == 0:
        return points[0][1]
    if place == len(points):
        return points[-1][1]
    (earlier, one), (later, other) = points[place - 1], points[place]
    return one + (at_s - earlier) / (later - earlier) * (other - one)


def _reasons(figures: Figures, trace: Trace, inside: Sequence[Sample]) -> None:
    place = FIELDS.index("reasons")
    polled = [value for each in inside if (value := each.values[place]) is not None]
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
    """Seconds that a counter of nanoseconds went on by from begin to end."""
    points = _points(trace, counter)
    near = [each for each in points if begin_s - LARGEST_GAP_S <= each[0] <= end_s + LARGEST_GAP_S]
    if len(near) < 2 or near[0][0] > begin_s + LARGEST_GAP_S or near[-1][0] < end_s - LARGEST_GAP_S:
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


def _test_steadiness(figures: Figures, trace: Trace, inside: Sequence[Sample]) -> None:
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
    """Least squares' slope and its standard error; a value that is read again counts once.

    Between two updates of a sensor reads repeat: they say nothing new of its noise.
    """
    times = [at for at, _ in points]
    values = [value for _, value in points]
    slope, intercept = statistics.linear_regression(times, values)
    updates = 1 + sum(one != other for one, other in pairwise(values))
    residual = sum((value - intercept - slope * at) ** 2 for at, value in points) / len(points)
    spread_s = statistics.pvariance(times)
    return slope, math.sqrt(residual / (max(updates - 2, 1) * spread_s))


def _series(figures: Figures, trace: Trace, inside: Sequence[Sample]) -> Series:
    """At most a hundred points, each the mean of its samples."""
    size = -(-len(inside) // _POINTS)
    groups = [inside[start : start + size] for start in range(0, len(inside), size)]

    def column(stated: str) -> Iterator[float | None]:
        for group in groups:
            values = [value for _, value in _values(trace, stated, group)]
            yield round(statistics.fmean(values), 3) if values else None

    middle = (statistics.fmean(each.at_ns for each in group) * NS for group in groups)
    return Series(
        tuple(round(each - figures.begin_s, 4) for each in middle),
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
