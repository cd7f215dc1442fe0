"""Windows of a record from a loop and its trace, and a row's figures from windows.

The energy of a call is the counter's energy divided by the calls of its window. The 95 % error adds
two errors in quadrature: the scatter of trials (Student's t) and the counter's bound in each
window. Neither contains the board's own gain error.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from pydantic import BaseModel, ConfigDict

from kernel_workbench.profiles.traces import Missing, Trace
from kernel_workbench.reports.record import Validity, Window
from kernel_workbench.suites.profile.windows import NS, measure

CONFIDENCE = 0.95
MOST_SLOWDOWN = 0.005  # a larger slowdown means that the sampler disturbs the measurement
MOST_DISAGREEMENT = 0.02  # between the energy counter and the integral of sampled power
# The most that a loop's own events may differ from the host's clock.
_MOST_CLOCK_ERROR = 0.02
_HEAT = ("SW thermal slowdown", "HW thermal slowdown", "HW slowdown", "HW power brake")
_SHARE_IN_HEAT = 0.01


class Reply(BaseModel):
    """A worker's report of a loop: see `loop.Looped`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    began_ns: int
    captured: bool
    why: str | None
    batches: tuple[tuple[int, int, float], ...]

    def begun(self) -> list[tuple[int, int, int, float]]:
        """Return for each batch: begin and end in ns, calls, device time in us."""
        ends = [self.began_ns, *(end for end, _, _ in self.batches)]
        return [
            (before, end, calls, device_us)
            for before, (end, calls, device_us) in zip(ends, self.batches, strict=False)
        ]

    def calls_by(self, at_s: float) -> float:
        """Return the calls finished at a time of CLOCK_MONOTONIC, interpolated within a batch."""
        batches = self.begun()
        ends = [end * NS for _, end, _, _ in batches]
        place = bisect_right(ends, at_s)
        done = float(sum(calls for _, _, calls, _ in batches[:place]))
        if place < len(batches):
            begin, end, calls, _ = batches[place]
            done += calls * max(0.0, at_s - begin * NS) / ((end - begin) * NS)
        return done

    def device_us(self, begin_s: float, end_s: float) -> float | None:
        """Return the device time of a call, in us, over the whole batches between two times."""
        inside = [
            (calls, device_us)
            for begin, end, calls, device_us in self.begun()
            if begin_s <= begin * NS and end * NS <= end_s
        ]
        count = sum(calls for calls, _ in inside)
        return sum(device_us for _, device_us in inside) / count if count else None


def window_of(trace: Trace, reply: Reply, dropped_s: float) -> Window:
    """Return a trial's window, from `dropped_s` after the loop's begin to its last batch's end."""
    loop_end_s = reply.batches[-1][0] * NS
    window, begin_s, end_s = measure(trace, reply.began_ns * NS + dropped_s, loop_end_s)
    codes, validity = list(window.codes), window.validity
    host_us = 1e6 * (loop_end_s - reply.began_ns * NS)
    if abs(sum(us for _, _, us in reply.batches) / host_us - 1) > _MOST_CLOCK_ERROR:
        codes.append("clocks disagree")
        validity = "invalid"
    one, other = window.energy_counter_j, window.energy_integral_j
    if one is not None and other is not None and abs(one / other - 1) > MOST_DISAGREEMENT:
        codes.append("counter off")
    in_heat = sum(window.reasons_s.get(name, 0.0) for name in _HEAT)
    if in_heat > _SHARE_IN_HEAT * window.duration_s:
        codes.append("slowed by heat")
    return replace(
        window,
        calls=round(reply.calls_by(end_s) - reply.calls_by(begin_s)),
        dropped_s=begin_s - reply.began_ns * NS,
        device_us=reply.device_us(begin_s, end_s),
        codes=tuple(codes),
        validity=validity,
    )


def mean_power_w(window: Window) -> float | None:
    """Return the mean power in watts, by the energy counter if there is one, else by samples."""
    if window.energy_counter_j is not None and window.duration_s > 0:
        return window.energy_counter_j / window.duration_s
    return None if window.power_w is None else window.power_w.mean


def slowdown(trace: Trace, reply: Reply) -> float | Missing:
    """Return by which share a call is slower while the sampler samples than while it rests.

    Each stretch of samples is compared with the rests before and after it, so that a drift with
    the GPU's temperature cancels.
    """
    if not trace.samples:
        return trace.without()
    stretches = _stretches(trace)
    sampled = [reply.device_us(begin, end) for begin, end in stretches]
    rests = [reply.device_us(before[1], after[0]) for before, after in pairwise(stretches)]
    ratios = [
        one / ((before + after) / 2) - 1
        for before, one, after in zip(rests, sampled[1:], rests[1:], strict=False)
        if before is not None and one is not None and after is not None
    ]
    if len(ratios) < 2:
        return Missing("too short", "too few calls lie whole within the sampler's stretches")
    return statistics.fmean(ratios)


def _stretches(trace: Trace) -> list[tuple[float, float]]:
    """Return the begin and end of each run of samples without a rest."""
    rest_s = 5 * trace.period_ms * 1e-3
    stretches: list[tuple[float, float]] = []
    for sample in trace.samples:
        at_s, done_s = sample.at_ns * NS, sample.done_ns * NS
        if stretches and at_s - stretches[-1][1] < rest_s:
            stretches[-1] = stretches[-1][0], done_s
        else:
            stretches.append((at_s, done_s))
    return stretches


def counted_windows(trials: Sequence[Window]) -> tuple[list[Window], Validity, list[str]]:
    """Return the windows for a row's figures: the steady ones if they are at least half of all."""
    valid = [trial for trial in trials if trial.validity != "invalid" and trial.calls]
    steady = [trial for trial in valid if trial.validity == "valid"]
    codes = list(dict.fromkeys(code for trial in trials for code in trial.codes))
    if steady and 2 * len(steady) >= len(trials):
        left = len(trials) - len(steady)
        return steady, "valid", [*codes, f"{left} of {len(trials)} left out"] if left else codes
    return valid, "transient" if valid else "invalid", codes


def energy_per_call(counted: Sequence[Window]) -> tuple[float, float | None] | None:
    """Return the energy of a call and its error, in joules; one trial gives no error (None).

    The energy is the counter's; without a counter it is the integral's, whose error is scatter.
    """
    of_windows = [
        (window.energy_counter_j, window.energy_counter_error_j or 0.0, window.calls)
        for window in counted
        if window.energy_counter_j is not None and window.calls
    ] or [
        (window.energy_integral_j, 0.0, window.calls)
        for window in counted
        if window.energy_integral_j is not None and window.calls
    ]
    each_j = [energy_j / calls for energy_j, _, calls in of_windows]
    counter_j = [error_j / calls for _, error_j, calls in of_windows]
    if not each_j:
        return None
    if len(each_j) < 2:
        return each_j[0], None
    of_counter = math.hypot(*counter_j) / len(each_j)
    return statistics.fmean(each_j), math.hypot(half_interval(each_j), of_counter)


def half_interval(values: Sequence[float]) -> float:
    """Return half of Student's 95 % interval of the mean of two values or more."""
    from scipy import stats  # noqa: PLC0415  (the import takes a second)

    t = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
    return float(t) * statistics.stdev(values) / math.sqrt(len(values))
