"""Whether one side is faster than the other, or neither, or whether that can't be told.

Samples of one process aren't independent: where its memory lies, how warm the card was, move them
together. So a side of several processes is known by their medians, from the lowest to the highest
once a quarter of them (rounded down) is left out at either end; a side of one process by the
quartiles of its samples, which tell how noisy the kernel is and not where another process would
have been. FASTER and SLOWER need the gap between the intervals to pass 0.5 %: room for what one
process can't know. Simulated, with normal noise of 0.2 % from process to process and in its
samples: a false FASTER or SLOWER in 0.8 % of rows with one process a side, 0.1 % with two, under
0.1 % with four, and 2 % more is always found. With 0.5 % from process to process these are 28, 6
and 6 %, with eight 0.1 %: such a kernel takes more processes, `--rounds`.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

FLOOR = 0.005
# Two times that differ by one step of the timer may be the same: half a step is each one's error.
_STEPS = 1.5


class Verdict(StrEnum):
    """What a side is, held against the base."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    AMBIGUOUS = "AMBIGUOUS"


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a quantity lies: its centre, and from where to where, if that is known."""

    low: float
    centre: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a side's samples say of a row.

    time_us    what a call takes
    cycles     the same in cycles of the SMs; None where their clock wasn't measured
    spread     False: the centre alone is known
    processes  that were timed; 0: no samples are there, only figures made of them
    step_us    of the timer, as far as the samples show it
    """

    time_us: Interval
    cycles: Interval | None = None
    spread: bool = True
    processes: int = 1
    step_us: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict on a row.

    change         of the time, relative to the base: 0.02 is 2 % slower
    cycles_change  of the cycles; None where a side has no clock
    confirmed      of FASTER and SLOWER: in cycles too; None where a side has no clock
    reason         why it is AMBIGUOUS
    """

    verdict: Verdict
    change: float
    cycles_change: float | None
    confirmed: bool | None = None
    reason: str | None = None


def interval_of_samples(samples: Sequence[float]) -> Interval:
    """The median of one process's samples, and their quartiles."""
    ordered = sorted(samples)
    return Interval(_at(ordered, 0.25), _at(ordered, 0.5), _at(ordered, 0.75))


def interval_of_processes(medians: Sequence[float]) -> Interval:
    """The median of processes' medians, and those next to a quarter left out at either end."""
    ordered = sorted(medians)
    left_out = len(ordered) // 4
    return Interval(ordered[left_out], _at(ordered, 0.5), ordered[-1 - left_out])


def _at(ordered: Sequence[float], part: float) -> float:
    """The quantile by linear interpolation."""
    place = part * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def timer_step_us(samples: Sequence[float]) -> float:
    """The least difference between two samples that aren't alike; 0 where steps don't show.

    Events of CUDA count in steps, of which a short kernel has few; a float's last digits are none.
    """
    distinct = set(samples)
    if 2 * len(distinct) > len(samples):
        return 0.0
    ordered = sorted(distinct)
    steps = [
        later - earlier
        for earlier, later in itertools.pairwise(ordered)
        if later - earlier > 1e-6 * later
    ]
    return min(steps, default=0.0)


def judge(base: Evidence, other: Evidence) -> Judgement:
    """Hold `other` against `base`."""
    change = other.time_us.centre / base.time_us.centre - 1
    step = _STEPS * max(base.step_us, other.step_us) / base.time_us.centre
    floor = max(FLOOR, step)
    in_cycles = None
    if base.cycles is not None and other.cycles is not None:
        in_cycles = other.cycles.centre / base.cycles.centre - 1
    found = Judgement(verdict=Verdict.SAME, change=change, cycles_change=in_cycles)
    if not (base.spread and other.spread):
        return _ambiguous(found, "a side has one figure and no spread")
    apart = _gap(base.time_us, other.time_us) / base.time_us.centre
    if apart <= floor:
        if abs(change) <= floor:
            return found
        return _ambiguous(found, f"{100 * abs(change):.1f} % apart, and the spreads reach as far")
    slower = change > 0
    if in_cycles is not None and (in_cycles if slower else -in_cycles) <= FLOOR:
        clock = (1 + in_cycles) / (1 + change) - 1
        return _ambiguous(
            found,
            f"not so in cycles ({100 * in_cycles:+.1f} %): the clock differs by "
            f"{100 * clock:+.1f} %",
        )
    return Judgement(
        verdict=Verdict.SLOWER if slower else Verdict.FASTER,
        change=change,
        cycles_change=in_cycles,
        confirmed=None if in_cycles is None else True,
    )


def _gap(one: Interval, other: Interval) -> float:
    """From the end of the lower interval to the start of the higher; negative: they overlap."""
    return max(other.low - one.high, one.low - other.high)


def _ambiguous(found: Judgement, reason: str) -> Judgement:
    return Judgement(
        verdict=Verdict.AMBIGUOUS,
        change=found.change,
        cycles_change=found.cycles_change,
        reason=reason,
    )
