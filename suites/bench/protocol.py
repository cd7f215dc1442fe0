"""When to take another sample, when to discard one, and when to stop: rules without a device.

- A sample whose SMs ran below three quarters of the default clock is discarded, and the next one
  waits, from 0.05 s up to 0.5 s. Where five in a row are, the card isn't recovering but is as fast
  as that under this call (an H200 at its power limit runs at 1365 to 1515 of 1980 MHz): from then
  on samples are kept, each with its clock.
- After a call of 0.3 ms or more the device rests for twice as long. Without it a product runs into
  the power limit, and how far depends on what ran before: medians of five processes on an H200 lay
  within 3.0 % of one another without the rest and within 0.6 % with it.
- Every four samples (two, of calls over 1 ms) the inputs move to another place in memory: where
  they lie there moves a short kernel's time by up to 6 %, and stays as it is for as long as they
  do. So a row has the times of many places, and says how far they differ.
- At least 10 samples, 8 places in memory and three tenths of a row's time. Then it stops when it is
  steady (standard deviation under 0.5 % of the mean), when the noise has plateaued (after 32 places
  it is within 5 % of what it was after half and after three quarters of the samples), or when the
  row's time is spent, which 10 samples are enough for.
- Where the host took longer to enqueue a call than the device was held, its time may be in the
  sample: the sample is taken again under a longer hold.
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

# Kept before a candidate is imported, which may replace them.
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
_ROOM = 2.5  # of what the host takes as a rule
_REMEMBERED = 9


@dataclass(frozen=True, slots=True)
class Sample:
    """One call. held: the device was held until the whole of it was queued."""

    time_us: float
    clock_mhz: float | None = None
    held: bool = True


@dataclass(slots=True)
class Collected:
    """The samples that count, in the order taken; how many are of each place in memory."""

    samples: list[Sample] = field(default_factory=list)
    placements: list[int] = field(default_factory=list)
    throttled: int = 0
    stopped: Stop = "time limit"


@dataclass(frozen=True, slots=True)
class Rule:
    """row_s: a row's time; default_clock_mhz: of the SMs, None where it isn't known.

    rest: after a call, in its times
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
    """Take samples until the rule says enough.

    move: puts the inputs elsewhere in memory; None: they stay where they are
    """
    made, noise = Collected(), Noise()
    low = None if rule.default_clock_mhz is None else _LOW * rule.default_clock_mhz
    pause, in_a_row, started = _FIRST_WAIT_S, 0, now()
    while True:
        if move is not None and _is_due(made):
            move()
            made.placements.append(0)
        sample = take()
        if sample.time_us >= _RESTED_FROM_US and rule.rest:
            wait(rule.rest * sample.time_us * 1e-6)
        slow = low is not None and sample.clock_mhz is not None and sample.clock_mhz < low
        if slow and in_a_row < _PATIENCE:
            made.throttled += 1
            in_a_row += 1
            wait(pause)
            pause = min(2 * pause, _LONGEST_WAIT_S)
            continue
        if not slow:
            pause, in_a_row = _FIRST_WAIT_S, 0
        made.samples.append(sample)
        if made.placements:
            made.placements[-1] += 1
        noise.add(sample.time_us)
        places = None if move is None else len(made.placements)
        stop = _enough(noise, places, now() - started, rule.row_s)
        if stop is not None:
            made.stopped = stop
            return made


def _is_due(made: Collected) -> bool:
    """Whether the place in memory that the last sample was taken at has enough of them."""
    if not made.placements:
        return True
    long = bool(made.samples) and made.samples[-1].time_us > _LONG_US
    return made.placements[-1] >= (_A_LONG_PLACEMENT if long else _A_PLACEMENT)


class Noise:
    """Standard deviation over mean of what has come so far, and what it was before."""

    def __init__(self) -> None:
        self._mean = self._squares = 0.0
        self.history: list[float] = []

    def add(self, value: float) -> None:
        """Welford's update: no two large sums are subtracted."""
        count = len(self.history) + 1
        apart = value - self._mean
        self._mean += apart / count
        self._squares += apart * (value - self._mean)
        deviation = math.sqrt(self._squares / (count - 1)) if count > 1 else math.inf
        self.history.append(deviation / self._mean if self._mean > 0 else math.inf)

    @property
    def plateaued(self) -> bool:
        """Whether more samples have stopped to change it."""
        count = len(self.history)
        if count < _PLATEAU_FROM:
            return False
        last = self.history[-1]
        earlier = self.history[count // 2 - 1], self.history[3 * count // 4 - 1]
        return all(abs(each - last) <= _PLATEAU * last for each in earlier)


def _enough(noise: Noise, places: int | None, elapsed_s: float, row_s: float) -> Stop | None:
    """places: in memory, that there were; None: the inputs stay where they are."""
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
    """How long the device is held while the host enqueues.

    host_bound: no hold was long enough. Between samples it follows what the host takes as a rule,
    so that a slow first call doesn't keep the device idle before every later one.
    """

    us: float = _LEAST_HOLD_US
    most_us: float = 50_000.0
    host_bound: bool = False
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def take(self, sample: Callable[[float], tuple[Sample, float]]) -> Sample:
        """A sample under a hold that was long enough; after some tries as it is, and not held.

        sample: takes one under a hold of so many microseconds, and says how many the host took.
        """
        for _ in range(REDOS):
            made, enqueued_us = sample(self.us)
            self._recent.append(enqueued_us)
            if enqueued_us < self.us:
                usual_us = _ROOM * statistics.median(self._recent)
                self.us = min(max(_LEAST_HOLD_US, usual_us), self.most_us)
                return made
            if self.host_bound:
                break
            if self.us >= self.most_us:
                break
            # The host varies: room for twice what it took.
            self.us = min(2.0 * enqueued_us, self.most_us)
        if not self.host_bound:
            self.host_bound, self.us = True, _LEAST_HOLD_US
        return Sample(made.time_us, made.clock_mhz, held=False)
