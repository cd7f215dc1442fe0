"""From a loop and the trace beside it to a record's windows, and from windows to a row's figures.

Energy of a call is the counter's, over the calls of its window. Its error, 95 %, is what trials
scatter by (Student's t) and the counter's, each bounded window by window, in quadrature; a board's
own gain is in neither.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, ConfigDict

from kernel_workbench.profiles.traces import Missing, Trace
from kernel_workbench.profiles.windows import NS, Figures, measure
from kernel_workbench.reports.record import Validity, Window

CONFIDENCE = 0.95
MOST_SLOWDOWN = 0.005  # past it the sampler is part of what it measures
MOST_DISAGREEMENT = 0.02  # of the energy counter and the integral of sampled power
# A loop's own events against the host's clock: past it the two don't tell of the same loop.
_MOST_CLOCK_ERROR = 0.02
_HEAT = ("SW thermal slowdown", "HW thermal slowdown", "HW slowdown", "HW power brake")
_SHARE_IN_HEAT = 0.01


class Reply(BaseModel):
    """What a worker says of a loop: see `loop.Looped`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    began_ns: int
    captured: bool
    why: str | None
    batches: tuple[tuple[int, int, float], ...]

    def begun(self) -> list[tuple[int, int, int, float]]:
        """Each batch with when it began: begin and end in ns, calls, device time in us."""
        ends = [self.began_ns, *(end for end, _, _ in self.batches)]
        return [
            (before, end, calls, device_us)
            for before, (end, calls, device_us) in zip(ends, self.batches, strict=False)
        ]

    def calls_by(self, at_s: float) -> float:
        """The calls made by a time of CLOCK_MONOTONIC; within a batch they go on evenly."""
        batches = self.begun()
        ends = [end * NS for _, end, _, _ in batches]
        place = bisect_right(ends, at_s)
        done = float(sum(calls for _, _, calls, _ in batches[:place]))
        if place < len(batches):
            begin, end, calls, _ = batches[place]
            done += calls * max(0.0, at_s - begin * NS) / ((end - begin) * NS)
        return done

    def device_us(self, begin_s: float, end_s: float) -> float | None:
        """Device time of a call, of the batches that lie whole between two times."""
        inside = [
            (calls, device_us)
            for begin, end, calls, device_us in self.begun()
            if begin_s <= begin * NS and end * NS <= end_s
        ]
        made = sum(calls for calls, _ in inside)
        return sum(device_us for _, device_us in inside) / made if made else None


def window_of(trace: Trace, reply: Reply, dropped_s: float) -> Window:
    """One trial's window: from `dropped_s` after the loop began to the end of its last batch."""
    begin_s = reply.began_ns * NS + dropped_s
    end_s = reply.batches[-1][0] * NS
    figures = measure(trace, begin_s, end_s)
    calls = reply.calls_by(figures.end_s) - reply.calls_by(figures.begin_s)
    codes = list(figures.codes)
    host_us = 1e6 * (end_s - reply.began_ns * NS)
    if abs(sum(us for _, _, us in reply.batches) / host_us - 1) > _MOST_CLOCK_ERROR:
        codes.append("clocks disagree")
        figures.broken = True
    one, other = figures.energy_counter_j, figures.energy_integral_j
    if one is not None and other is not None and abs(one / other - 1) > MOST_DISAGREEMENT:
        codes.append("counter off")
    in_heat = sum(figures.reasons_s.get(name, 0.0) for name in _HEAT)
    if in_heat > _SHARE_IN_HEAT * figures.duration_s:
        codes.append("slowed by heat")
    return replace(
        window_in_record(figures),
        calls=round(calls),
        dropped_s=figures.begin_s - reply.began_ns * NS,
        device_us=reply.device_us(figures.begin_s, figures.end_s),
        codes=tuple(codes),
        validity=_validity(figures),
    )


def window_in_record(figures: Figures) -> Window:
    """The figures as a record spells them: a field of both has one name."""
    known: dict[str, Any] = asdict(figures) | {
        "duration_s": figures.duration_s,
        "missing": {name: str(each) for name, each in figures.missing.items()},
        "validity": _validity(figures),
    }
    return Window(**{each.name: known[each.name] for each in fields(Window) if each.name in known})


def _validity(figures: Figures) -> Validity:
    if figures.broken or (figures.energy_counter_j is None and figures.energy_integral_j is None):
        return "invalid"
    return "transient" if figures.transient else "valid"


def mean_power_w(window: Window) -> float | None:
    """By the energy counter, else by the samples."""
    if window.energy_counter_j is not None and window.duration_s > 0:
        return window.energy_counter_j / window.duration_s
    return None if window.power_w is None else window.power_w.mean


def slowdown(trace: Trace, reply: Reply) -> float | Missing:
    """How much longer a call takes while the sampler samples: of a loop beside one that rests.

    Each stretch of samples is held against the two rests about it, so that what drifts with the
    GPU's temperature cancels.
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
    """Begin and end of each run of samples that has no rest in it."""
    rest_s = 5 * trace.period_ms * 1e-3
    found: list[tuple[float, float]] = []
    for sample in trace.samples:
        at_s, done_s = sample.at_ns * NS, sample.done_ns * NS
        if found and at_s - found[-1][1] < rest_s:
            found[-1] = found[-1][0], done_s
        else:
            found.append((at_s, done_s))
    return found


def counted_windows(trials: Sequence[Window]) -> tuple[list[Window], Validity, list[str]]:
    """The windows that a row's figures are of: the steady ones, if they are half of all or more."""
    known = [each for each in trials if each.validity != "invalid" and each.calls]
    steady = [each for each in known if each.validity == "valid"]
    codes = list(dict.fromkeys(code for each in trials for code in each.codes))
    if steady and 2 * len(steady) >= len(trials):
        left = len(trials) - len(steady)
        return steady, "valid", [*codes, f"{left} of {len(trials)} left out"] if left else codes
    return known, "transient" if known else "invalid", codes


def energy_per_call(counted: Sequence[Window]) -> tuple[float, float | None] | None:
    """Joules, and its error; the error is None where one trial says nothing of scatter.

    By the counter, or where no window has one by the integral, whose error is the scatter alone.
    """
    by_counter = [each for each in counted if each.energy_counter_j is not None]
    if by_counter:
        each_j = [each.energy_counter_j / each.calls for each in by_counter]  # type: ignore[operator]
        counter_j = [
            (each.energy_counter_error_j or 0.0) / each.calls  # type: ignore[operator]
            for each in by_counter
        ]
    else:
        each_j = [
            each.energy_integral_j / each.calls  # type: ignore[operator]
            for each in counted
            if each.energy_integral_j is not None
        ]
        counter_j = [0.0] * len(each_j)
    if not each_j:
        return None
    if len(each_j) < 2:
        return each_j[0], None
    of_counter = math.hypot(*counter_j) / len(each_j)
    return statistics.fmean(each_j), math.hypot(half_interval(each_j), of_counter)


def half_interval(values: Sequence[float]) -> float:
    """Half of Student's 95 % interval of the mean of two values or more."""
    from scipy import stats  # noqa: PLC0415  (a second that a refusal needn't take)

    t = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
    return float(t) * statistics.stdev(values) / math.sqrt(len(values))
