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
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from kernel_workbench.profiles.traces import (
    ENERGY,
    FIELDS,
    POWER,
    REASONS,
    Missing,
    Trace,
    TraceSample,
)
from kernel_workbench.reports.record import Series, Spread, Validity, Window

NS = 1e-9
LARGEST_GAP_S = 0.25  # sampled power doesn't describe the power drawn within a longer gap
# The most that a steady quantity may drift over a window: shares of the mean, and degrees. A drift
# counts only if it is also three times its own uncertainty.
MOST_POWER_DRIFT = 0.02
MOST_CLOCK_DRIFT = 0.02
MOST_TEMPERATURE_DRIFT_C = 6.0
_DRIFTS = {
    "power_w": ("power drifts", MOST_POWER_DRIFT),
    "sm_clock_mhz": ("clock drifts", MOST_CLOCK_DRIFT),
    "temperature_c": ("temperature drifts", None),
}
_SIGMAS = 3.0
_POINTS = 100  # the most in a series for a chart
_WRAPS = 2**32
_A_MINUTE = 60.0
_SPREADS = ("power_w", "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "memory_temperature_c")


@dataclass(frozen=True, slots=True)
class Tick:
    """A step of the energy counter to `energy_j`, within `half_s` of the time `at_s`."""

    at_s: float
    half_s: float
    energy_j: float


class MeasuredWindow(NamedTuple):
    """A window, and its ends in seconds of CLOCK_MONOTONIC."""

    window: Window
    begin_s: float
    end_s: float


def measure(trace: Trace, begin_s: float, end_s: float) -> MeasuredWindow:
    """Return a window of the trace, cut to the energy counter's ticks if any."""
    lost = _lost(trace, begin_s, end_s)
    codes = [] if lost is None else [lost.code]
    missing: dict[str, Missing] = {}
    figures: dict[str, Any] = {}
    ticks = energy_ticks(trace, begin_s, end_s) if lost is None else lost
    if isinstance(ticks, Missing):
        missing["energy_counter_j"] = ticks
    else:
        first, last = ticks[0], ticks[-1]
        begin_s, end_s = first.at_s, last.at_s
        energy_j = last.energy_j - first.energy_j
        power_w = energy_j / (end_s - begin_s)
        figures["energy_counter_j"] = energy_j
        figures["energy_counter_error_j"] = power_w * (first.half_s + last.half_s)
    inside = [sample for sample in trace.samples if begin_s <= sample.at_ns * NS <= end_s]
    cut = _Cut(trace, begin_s, end_s, inside, codes, missing)
    if len(inside) < 2:
        cut.lack_all()
    else:
        figures |= cut.figures(lost)
    validity: Validity = "valid"
    if any(code in codes for code, _ in _DRIFTS.values()):
        validity = "transient"
    energies = figures.get("energy_counter_j"), figures.get("energy_integral_j")
    if lost is not None or len(inside) < 2 or energies == (None, None):
        validity = "invalid"
    window = Window(
        duration_s=end_s - begin_s,
        samples=len(inside),
        validity=validity,
        codes=tuple(codes),
        missing={name: str(reason) for name, reason in missing.items()},
        **figures,
    )
    return MeasuredWindow(window, begin_s, end_s)


@dataclass(frozen=True, slots=True)
class _Cut:
    """The samples inside a window. Its methods add to `codes`, and to the reasons in `missing`."""

    trace: Trace
    begin_s: float
    end_s: float
    inside: Sequence[TraceSample]
    codes: list[str]
    missing: dict[str, Missing]

    def lack_all(self) -> None:
        """Note why nothing is known of a window with fewer than two samples."""
        if not self.codes:
            self.codes.append(self.trace.without().code)
        fields = {"energy_integral_j": POWER, "power_w": POWER, "reasons_polled": "reasons"}
        for name in ("energy_integral_j", *_SPREADS, "reasons_polled"):
            self.missing[name] = _why(self.trace, fields.get(name, name))

    def figures(self, lost: Missing | None) -> dict[str, Any]:
        """Return the window's figures from samples, by the record's names."""
        stamps = [self.begin_s, *(sample.at_ns * NS for sample in self.inside), self.end_s]
        gaps = [later - earlier for earlier, later in pairwise(stamps)]
        return {
            "period_ms": 1e3 * statistics.median(gaps[1:-1]),
            "largest_gap_ms": 1e3 * max(gaps),
            **self._spreads(),
            "energy_integral_j": self._integral(lost, max(gaps)),
            **self._reasons(),
            "slopes": self._slopes(),
            "series": self._series(),
        }

    def _spreads(self) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name in _SPREADS:
            values = [value for _, value in _values(self.trace, name, self.inside)]
            if values:
                result[name] = spread(values)
            else:
                self.missing[name] = _why(self.trace, _field_of(self.trace, name))
        if _power_field(self.trace) != POWER and "power_w" in result:
            self.codes.append("averaged power")
        clocks = [int(value) for _, value in _values(self.trace, "sm_clock_mhz", self.inside)]
        shares = {clock: clocks.count(clock) / len(clocks) for clock in sorted(set(clocks))}
        return result | {"sm_clocks": shares}

    def _integral(self, lost: Missing | None, largest_gap_s: float) -> float | None:
        """Return the energy by sampled power, in joules."""
        field = _power_field(self.trace)
        points = _points(self.trace, field)
        if lost is not None:
            reason = lost
        elif not points:
            reason = _why(self.trace, field)
        elif largest_gap_s > LARGEST_GAP_S:
            self.codes.append("gap")
            reason = Missing("gap", f"nothing was sampled for {largest_gap_s:.2f} s")
        else:
            return 1e-3 * integral(points, self.begin_s, self.end_s)
        self.missing["energy_integral_j"] = reason
        return None

    def _reasons(self) -> dict[str, Any]:
        place = FIELDS.index("reasons")
        polled = [value for sample in self.inside if (value := sample.values[place]) is not None]
        if not polled:
            self.missing["reasons_polled"] = _why(self.trace, "reasons")
        shares, times_s = {}, {}
        for name, (bit, counter) in REASONS.items():
            if polled:
                share = sum(bool(value & bit) for value in polled) / len(polled)
                if share or counter is not None:
                    shares[name] = share
            if counter is None:
                continue
            seconds = counted_s(self.trace, counter, self.begin_s, self.end_s)
            if isinstance(seconds, Missing):
                self.missing[f"reasons_s.{name}"] = seconds
            else:
                times_s[name] = seconds
        return {"reasons_s": times_s, "reasons_polled": shares}

    def _slopes(self) -> dict[str, float]:
        """Return the changes a minute; a slope that is no noise is a drift."""
        slopes, duration_s = {}, self.end_s - self.begin_s
        for name, (code, share) in _DRIFTS.items():
            points = _values(self.trace, name, self.inside)
            if len(points) < 3:
                continue
            slope, error = fitted_slope(points)
            slopes[name] = _A_MINUTE * slope
            drift, uncertainty = abs(slope) * duration_s, error * duration_s
            mean = statistics.fmean(value for _, value in points)
            most = MOST_TEMPERATURE_DRIFT_C if share is None else share * mean
            if drift > most and drift > _SIGMAS * uncertainty:
                self.codes.append(code)
        return slopes

    def _series(self) -> Series:
        """Return at most a hundred points; a point is the mean of its samples."""
        size = -(-len(self.inside) // _POINTS)
        starts = range(0, len(self.inside), size)
        groups = [self.inside[start : start + size] for start in starts]

        def column(name: str) -> Iterator[float | None]:
            for group in groups:
                values = [value for _, value in _values(self.trace, name, group)]
                yield round(statistics.fmean(values), 3) if values else None

        middle = (statistics.fmean(sample.at_ns for sample in group) * NS for group in groups)
        return Series(
            seconds=tuple(round(time_s - self.begin_s, 4) for time_s in middle),
            power_w=tuple(column("power_w")),
            sm_clock_mhz=tuple(column("sm_clock_mhz")),
            temperature_c=tuple(column("temperature_c")),
        )


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
    unit = 1e-3 if stated == "power_w" else 1.0
    return [
        (sample.at_ns * NS, unit * value)
        for sample in inside
        if (value := sample.values[place]) is not None
    ]


def spread(values: Sequence[float]) -> Spread:
    """Return mean, median, 95th percentile and extremes of one value or more."""
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
    return trace.missing.get(name, Missing("no data", "every read of it failed in the window"))


def _lost(trace: Trace, begin_s: float, end_s: float) -> Missing | None:
    """Return the reason if the GPU was lost before the window's end, else None."""
    if trace.lost_ns is None or trace.lost_ns * NS > end_s:
        return None
    at_s = trace.lost_ns * NS - begin_s
    when = f"{at_s:.2f} s in" if at_s > 0 else "before the window"
    return Missing("gpu lost", f"the driver lost the GPU {when}")


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
