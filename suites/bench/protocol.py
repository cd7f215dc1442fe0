"""Rules without a device: when to take another sample, discard a sample, and stop.

- A sample whose SMs ran below three quarters of the default clock is discarded, and the next one
  waits, from 0.05 s up to 0.5 s. After five discarded samples in a row the card isn't recovering;
  this is its speed under this call (an H200 at its power limit runs at 1365 to 1515 of 1980 MHz).
  From then on samples are kept, each with its clock.
- After a call of 0.3 ms or more the device rests for twice as long. Without the rest a product runs
  into the power limit, and how far depends on earlier calls: medians of five processes on an H200
  differed by 3.0 % without the rest and by 0.6 % with it.
- Every four samples (two, of calls over 1 ms) the inputs move to another place in memory: the place
  changes a short kernel's time by up to 6 %, for as long as the inputs stay there. So a row has
  times of many places, and reports their spread.
- A row takes at least 10 samples, 8 places in memory and three tenths of its time. Then it stops
  when it is steady (standard deviation under 0.5 % of the mean), when the noise has plateaued
  (after 32 places it is within 5 % of its values after half and three quarters of the samples), or
  when the row's time is spent, for which 10 samples are enough.
- If the host took longer to enqueue a call than the device was held, its time may be in the sample:
  the sample is taken again under a longer hold.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Stop = Literal["steady", "noise plateau", "time limit", "sample limit"]

# Bound before a candidate is imported, which may replace the originals.
_now: Callable[[], float] = time.perf_counter
_wait: Callable[[float], None] = time.sleep

LEAST_SAMPLES = 10
MOST_SAMPLES = 2000
_LOW = 0.75  # of the default clock
_PATIENCE = 5
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 0.5
_STEADY = 0.005
_PLATEAU, _PLATEAU_FROM = 0.05, 40
_LEAST_SHARE = 0.3  # of a row's time
_OVERTIME = 15  # row times, for the first ten samples of a slow call
REDOS = 4
_A_PLACEMENT, _A_LONG_PLACEMENT = 4, 2  # samples
_LONG_US = 1_000.0
_LEAST_PLACEMENTS, _NOISY_PLACEMENTS = 8, 32
_RESTED_FROM_US = 300.0
REST = 2.0  # of a call's time, on a GPU
_LEAST_HOLD_US = 150.0
_ROOM = 2.5  # times the host's usual time
_REMEMBERED = 9


@dataclass(frozen=True, slots=True)
class Sample:
    """One call. held: the device was held until the host had queued the whole call."""

    time_us: float
    clock_mhz: float | None = None
    held: bool = True


@dataclass(slots=True)
class Collected:
    """The samples that count, in order, and the number of samples at each place in memory."""

    samples: list[Sample] = field(default_factory=list)
    placements: list[int] = field(default_factory=list)
    throttled: int = 0
    stopped: Stop = "time limit"


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule for a row.

    row_s              time of the row, in seconds
    default_clock_mhz  default clock of the SMs; None: unknown
    rest               rest after a call, in multiples of its time
    """

    row_s: float
    default_clock_mhz: float | None = None
    rest: float = 0.0


def collect(
    take: Callable[[], Sample],
    rule: Rule,
    *,
    move: Callable[[], None] | None = None,
    now: Callable[[], float] = _now,
    wait: Callable[[float], None] = _wait,
) -> Collected:
    """Take samples until the rule is satisfied.

    Args:
        take: takes a sample.
        rule: the rule.
        move: moves the inputs to other memory; None: the inputs stay.
        now: a clock, in seconds.
        wait: waits for so many seconds.
    """
    collected, noise = Collected(), Noise()
    low = None if rule.default_clock_mhz is None else _LOW * rule.default_clock_mhz
    pause, in_a_row, started = _FIRST_WAIT_S, 0, now()
    while True:
        if move is not None and _is_due(collected):
            move()
            collected.placements.append(0)
        sample = take()
        if sample.time_us >= _RESTED_FROM_US and rule.rest:
            wait(rule.rest * sample.time_us * 1e-6)
        slow = low is not None and sample.clock_mhz is not None and sample.clock_mhz < low
        if slow and in_a_row < _PATIENCE:
            collected.throttled += 1
            in_a_row += 1
            wait(pause)
            pause = min(2 * pause, _LONGEST_WAIT_S)
            continue
        if not slow:
            pause, in_a_row = _FIRST_WAIT_S, 0
        collected.samples.append(sample)
        if collected.placements:
            collected.placements[-1] += 1
        noise.add(sample.time_us)
        places = None if move is None else len(collected.placements)
        stop = _enough(noise, places, now() - started, rule.row_s)
        if stop is not None:
            collected.stopped = stop
            return collected


def _is_due(collected: Collected) -> bool:
    """Return True if the present place in memory has enough samples."""
    if not collected.placements:
        return True
    long = bool(collected.samples) and collected.samples[-1].time_us > _LONG_US
    return collected.placements[-1] >= (_A_LONG_PLACEMENT if long else _A_PLACEMENT)


class Noise:
    """Standard deviation over mean of all values so far, and its history."""

    def __init__(self) -> None:
        self._mean = self._squares = 0.0
        self.history: list[float] = []

    def add(self, value: float) -> None:
        """Add a value by Welford's update, which subtracts no large sums."""
        count = len(self.history) + 1
        apart = value - self._mean
        self._mean += apart / count
        self._squares += apart * (value - self._mean)
        deviation = math.sqrt(self._squares / (count - 1)) if count > 1 else math.inf
        self.history.append(deviation / self._mean if self._mean > 0 else math.inf)

    @property
    def plateaued(self) -> bool:
        """True if further samples no longer change the noise."""
        count = len(self.history)
        if count < _PLATEAU_FROM:
            return False
        last = self.history[-1]
        earlier = self.history[count // 2 - 1], self.history[3 * count // 4 - 1]
        return all(abs(noise - last) <= _PLATEAU * last for noise in earlier)


def _enough(noise: Noise, places: int | None, elapsed_s: float, row_s: float) -> Stop | None:
    """Return the reason to stop, or None.

    places: number of places in memory so far; None: the inputs stay.
    """
    count = len(noise.history)
    if count < LEAST_SAMPLES:
        return "time limit" if elapsed_s >= _OVERTIME * row_s and count >= 3 else None
    if count >= MOST_SAMPLES:
        return "sample limit"
    if elapsed_s >= _LEAST_SHARE * row_s:
        if noise.history[-1] < _STEADY and (places is None or places >= _LEAST_PLACEMENTS):
            return "steady"
        if noise.plateaued and (places is None or places >= _NOISY_PLACEMENTS):
            return "noise plateau"
    return "time limit" if elapsed_s >= row_s else None


@dataclass(slots=True)
class Hold:
    """The time for which the device is held while the host enqueues.

    us          the present hold, in microseconds
    most_us     the longest hold
    host_bound  no hold was long enough

    Between samples the hold follows the host's usual time, so that a slow first call doesn't keep
    the device idle before later ones.
    """

    us: float = _LEAST_HOLD_US
    most_us: float = 50_000.0
    host_bound: bool = False
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def take(self, sample: Callable[[float], tuple[Sample, float]]) -> Sample:
        """Return a sample under a sufficient hold, or, after some tries, one that wasn't held.

        Args:
            sample: takes a sample under a hold of so many microseconds, and returns it with the
            microseconds that the host took.
        """
        for _ in range(REDOS):
            latest, enqueued_us = sample(self.us)
            self._recent.append(enqueued_us)
            if enqueued_us < self.us:
                usual_us = _ROOM * statistics.median(self._recent)
                self.us = min(max(_LEAST_HOLD_US, usual_us), self.most_us)
                return latest
            if self.host_bound:
                break
            if self.us >= self.most_us:
                break
            # The host's time varies: allow twice as much.
            self.us = min(2.0 * enqueued_us, self.most_us)
        if not self.host_bound:
            self.host_bound, self.us = True, _LEAST_HOLD_US
        return Sample(latest.time_us, latest.clock_mhz, held=False)
