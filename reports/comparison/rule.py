"""Decide whether one side is FASTER, SLOWER or the SAME, or whether it is AMBIGUOUS.

Samples aren't independent: where a call's memory lies moves those that are taken there together,
and what a process has alone, and how warm the card is, all of a process's. So a side of one process
is known by what its places in memory say (a record without them: by the quartiles of its samples),
and a side of several by their medians, from the lowest to the highest, with some left out at either
end where there are seven and more. Centres that differ by less than a floor are SAME:

- 0.5 % where both sides ran in several processes, in turn, on one board;
- of two records, made one after the other, 1 %, or 0.2 us for each kernel that a call launches
  where that is more: what is between two kernels changes with what else the host does
  (docs/measured.md: by 0.12 to 0.18 us a launch, alike for calls of 2 to 53 launches);
- of two boards of one model 4 %, or 0.4 us a launch: of 91 rows on a pair of H200s each, 95 in a
  hundred were within 2.0 % of one another, and one was 3.8 % apart, memory-bound and matrix-bound
  ones alike; small calls of 2 to 5 launches took 0.1 to 0.4 us a launch more on one than on others.
  A call that does nothing takes a time too, the machine's, which is part of every call's: 1.3 or
  2.9 us (docs/decisions/0022). Where records tell it, what it differs by is taken away before
  anything is judged; of two boards where one doesn't, 2.5 us a call are the same.

A side that was timed beside other work is AMBIGUOUS, however far apart the two are.

FASTER and SLOWER need the gap between the intervals to pass the floor. And where what differs is
5 % or less (9 % between two boards, whose 4 % come on top) they need so many processes that it
isn't the processes: two sides that are alike fall apart so by chance, whatever it is that sets
processes apart, in one pair of 3 with two a side, of 10 with three, and of 35 with four; 1 in 20 is
allowed. Three whole runs of one commit on one H200, 361 rows, one process each: one or two rows in
a hundred had a time in one process, at every one of 32 places in memory, that they hadn't in the
next, by 1 to 4 % (docs/decisions/0021).

Simulated, 1,500 rows, over ten places in memory: with normal noise of 0.2 and of 0.5 % from process
to process no false FASTER or SLOWER with one, two, four, eight or twelve processes a side; of
kernels that have two times by chance, 4 % apart, at most 0.4 %. At 0.2 % a change of 2 % is found
in 99 % and more with four a side, and AMBIGUOUS with fewer; at 0.5 % in 81, 96 and 100 % with four,
eight and twelve in turn, and in 45, 65 and 95 % of two records.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

FLOOR = 0.005  # where both sides ran in several processes, in turn
FLOOR_APART = 0.01  # of two records of one board, made one after the other
FLOOR_BOARDS = 0.04  # of two boards of one model
ALONE = 0.05  # that FASTER and SLOWER take of too few processes to tell less
MOST_CHANCE = 1 / 20  # that a verdict is of processes which are alike, whatever tells them apart
LAUNCH_APART_US = 0.2  # of two records: what is between two kernels of a call, or before the first
LAUNCH_BOARDS_US = 0.4  # the same of two boards, whose hosts may differ too
EMPTY_CALLS_US = 2.5  # that a call may take less on another machine, where a record doesn't tell
EMPTY_CALL_ERROR_US = 0.2  # within which they are one
LEAST_PLACEMENTS = 5
_TRIMMED = 0.1  # of the places in memory, at either end
_STANDARD_ERRORS = 2.5  # 95 % of the time, from six degrees of freedom on
# Two times that differ by one step of the timer may be the same: half a step is each one's error.
_STEPS = 1.5


class SpeedVerdict(StrEnum):
    """A side compared with the base."""

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
    """The time of a row on one side, as its samples show it.

    Attributes:
        time_us: what a call takes.
        cycles: the same in cycles of the SMs; None where their clock wasn't measured.
        spread: False: the centre alone is known.
        processes: that were timed; 0: no samples are there, only figures made of them.
        step_us: of the timer, as far as the samples show it.
        launches: kernels on the device that a call is; 0 where that isn't known.
        began: when the first and the last process started, in ISO 8601, UTC; "" where not known.
        disturbed: what else ran meanwhile that may be in its times; "": nothing that is known.
    """

    time_us: Interval
    cycles: Interval | None = None
    spread: bool = True
    processes: int = 1
    step_us: float = 0.0
    launches: int = 0
    began: tuple[str, str] = ("", "")
    disturbed: str = ""

    def in_turn(self, other: Evidence) -> bool:
        """True if both sides ran in several processes, some of one between those of the other."""
        several = self.processes > 1 and other.processes > 1
        dated = all((*self.began, *other.began))
        return (
            several
            and dated
            and self.began[0] <= other.began[1]
            and other.began[0] <= self.began[1]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict on a row.

    Attributes:
        change: of the time, relative to the base: 0.02 is 2 % slower.
        cycles_change: of the cycles; None where a side has no clock.
        reason: why it is AMBIGUOUS.
    """

    verdict: SpeedVerdict
    change: float
    cycles_change: float | None
    reason: str | None = None

    @property
    def is_unconfirmed(self) -> bool:
        """True if it is FASTER or SLOWER by times alone."""
        decided = self.verdict in (SpeedVerdict.SLOWER, SpeedVerdict.FASTER)
        return decided and self.cycles_change is None


def interval_of_samples(samples: Sequence[float]) -> Interval:
    """Return the median of one process's samples, and their quartiles."""
    if len(samples) == 1:
        return Interval(samples[0], samples[0], samples[0])
    return Interval(*statistics.quantiles(samples, n=4, method="inclusive"))


def interval_of_processes(centres: Sequence[float], each_far: Sequence[float] = ()) -> Interval:
    """Return the median of processes' centres, from the lowest to the highest less some ends.

    Args:
        each_far: how far each process's own interval reaches, where that is known. Two processes
            that agree by chance know no more than that: half widths as theirs, averaged, are the
            least.
    """
    ordered = sorted(centres)
    ends, centre = left_out(len(ordered)), statistics.median(ordered)
    least = math.sqrt(math.fsum(far**2 for far in each_far)) / max(len(each_far), 1)
    low, high = ordered[ends], ordered[-1 - ends]
    return Interval(min(low, centre - least), centre, max(high, centre + least))


def interval_of_placements(medians: Sequence[float]) -> Interval:
    """Return the mean of the medians at places in memory, less a tenth of them at either end.

    Their mean, since many kernels have two times, by where their memory lies (`torch_native` at
    2048 x 768 on an H200: 19.8 and 20.8 us), and a median would be one of them or the other. The
    interval is the mean's: 2.5 standard errors by Tukey and McLaughlin, with the ends drawn in.
    """
    ordered = sorted(medians)
    count = len(ordered)
    ends = int(_TRIMMED * count)
    kept = ordered[ends : count - ends]
    centre = math.fsum(kept) / len(kept)
    drawn_in = [min(max(value, kept[0]), kept[-1]) for value in ordered]
    mean = math.fsum(drawn_in) / count
    variance = math.fsum((value - mean) ** 2 for value in drawn_in) / (count - 1)
    far = _STANDARD_ERRORS * math.sqrt(variance / count) / (1 - 2 * ends / count)
    return Interval(max(centre - far, ordered[0]), centre, min(centre + far, ordered[-1]))


@cache
def chance_to_fall_apart(one: int, other: int) -> float:
    """Return the chance that two sides of so many processes that are alike lie past one another.

    All but those that are left out, that is, in whichever order; each order of all processes is as
    likely as the next. At most: with ties, or a gap between the sides, it is less.
    """
    if not one or not other:
        return 1.0
    ends, other_ends = left_out(one), left_out(other)
    return _chance_below(one, ends, other, other_ends) + _chance_below(other, other_ends, one, ends)


def _chance_below(one: int, ends: int, other: int, others: int) -> float:
    """Return the chance that one side lies wholly below the other.

    That is so where its last process that counts comes before the other's first.

    Args:
        ends, others: how many either leaves out at its ends.
    """
    last = one - ends
    places = last + others  # the lowest of all, of which so many are the one side's
    most = min(one, places)
    ways = (
        math.comb(one, lowest) * math.comb(other, places - lowest)
        for lowest in range(last, most + 1)
    )
    return sum(ways) / math.comb(one + other, places)


@cache
def left_out(processes: int) -> int:
    """Return how many a side leaves out at either end: as many as keep a verdict's chance small."""
    ends = 0
    while processes > 2 * ends + 2:
        if 2 * _chance_below(processes, ends + 1, processes, ends + 1) > MOST_CHANCE:
            break
        ends += 1
    return ends


def timer_step_us(samples: Sequence[float]) -> float:
    """Return the least difference between two samples that aren't alike; 0 where steps don't show.

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


def judge(
    base: Evidence,
    other: Evidence,
    *,
    one_board: bool = True,
    empty_calls_us: float | None = 0.0,
) -> Judgement:
    """Return the verdict on `other` beside `base`.

    Args:
        empty_calls_us: by how much an empty call takes longer on `other`'s machine, which is taken
            away from its times. None: unknown.
        one_board: False where the two are cards of one model, which differ by up to 4 %.

    Example:
        >>> judge(Evidence(time_us=Interval(99, 100, 101)), Evidence(time_us=Interval(79, 80, 81)))
        Judgement(verdict=<SpeedVerdict.FASTER: 'FASTER'>, change=-0.2, ...)
    """
    other = _less(other, empty_calls_us or 0.0)
    change = other.time_us.centre / base.time_us.centre - 1
    least = _least(base, other, one_board=one_board, machines_known=empty_calls_us is not None)
    step = _STEPS * max(base.step_us, other.step_us) / base.time_us.centre
    floor = max(least, step)
    in_cycles = None
    if base.cycles is not None and other.cycles is not None:
        in_cycles = other.cycles.centre / base.cycles.centre - 1
    same = Judgement(verdict=SpeedVerdict.SAME, change=change, cycles_change=in_cycles)

    def ambiguous(reason: str) -> Judgement:
        return replace(same, verdict=SpeedVerdict.AMBIGUOUS, reason=reason)

    if not (base.spread and other.spread):
        return ambiguous("a side has one figure and no spread")
    if disturbed := " and ".join(dict.fromkeys(filter(None, (base.disturbed, other.disturbed)))):
        return ambiguous(f"other work ran while it was timed: {disturbed}")
    apart = _gap(base.time_us, other.time_us) / base.time_us.centre
    if apart <= floor:
        if abs(change) <= floor:
            return same
        return ambiguous(f"{100 * abs(change):.1f} % apart, and the spreads reach as far")
    alone = ALONE if one_board else ALONE + FLOOR_BOARDS
    if abs(change) <= alone and chance_to_fall_apart(base.processes, other.processes) > MOST_CHANCE:
        return ambiguous(f"{100 * abs(change):.1f} % apart, as one process may be from the next")
    slower = change > 0
    if in_cycles is not None and (in_cycles if slower else -in_cycles) <= least:
        clock = (1 + in_cycles) / (1 + change) - 1
        return ambiguous(
            f"not so in cycles ({100 * in_cycles:+.1f} %): the clock differs by "
            f"{100 * clock:+.1f} %",
        )
    return replace(same, verdict=SpeedVerdict.SLOWER if slower else SpeedVerdict.FASTER)


def empty_calls_apart_us(base_us: float | None, other_us: float | None) -> float | None:
    """By how much an empty call takes longer on the other's machine; None: not known."""
    if base_us is None or other_us is None:
        return None
    apart_us = other_us - base_us
    return apart_us if abs(apart_us) > EMPTY_CALL_ERROR_US else 0.0


def _less(side: Evidence, of_machine_us: float) -> Evidence:
    """Return the side without so much of each call, in time and at its clock in cycles."""
    time = side.time_us
    if not of_machine_us or time.low <= of_machine_us:
        return side  # in a damaged record alone
    cycles = side.cycles
    if cycles is not None:
        cycles = _earlier(cycles, of_machine_us * cycles.centre / time.centre)
    return replace(side, time_us=_earlier(time, of_machine_us), cycles=cycles)


def _earlier(interval: Interval, by: float) -> Interval:
    return Interval(interval.low - by, interval.centre - by, interval.high - by)


def _least(base: Evidence, other: Evidence, *, one_board: bool, machines_known: bool) -> float:
    """Return the least difference that counts, as a share of the base's time."""
    if one_board and base.in_turn(other):
        return FLOOR
    floor, launch_us = (
        (FLOOR_APART, LAUNCH_APART_US) if one_board else (FLOOR_BOARDS, LAUNCH_BOARDS_US)
    )
    gaps_us = launch_us * max(base.launches, other.launches)
    if not (one_board or machines_known):
        gaps_us += EMPTY_CALLS_US
    return max(floor, gaps_us / base.time_us.centre)


def _gap(one: Interval, other: Interval) -> float:
    """From the end of the lower interval to the start of the higher; negative: they overlap."""
    return max(other.low - one.high, one.low - other.high)
