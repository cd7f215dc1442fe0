"""When to take another sample, when to discard one, and when to stop: rules without a device.

- A sample whose SMs ran below three quarters of the default clock is discarded, and the next one
  waits, from 0.05 s up to 0.5 s. Where five in a row are, the card isn't recovering but is as fast
  as that under this call (an H200 at its power limit runs at 1365 to 1515 of 1980 MHz): from then
  on samples are kept, each with its clock.
- At least 10 samples, and three tenths of a row's time. Then it stops when it is steady (standard
  deviation under 0.5 % of the mean), when the noise has plateaued (it is within 5 % of what it was
  after half and after three quarters of the samples), or when the row's time is spent.
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
    """The samples that count, in the order taken."""

    samples: list[Sample] = field(default_factory=list)
    throttled: int = 0
    stopped: Stop = "time limit"


@dataclass(frozen=True, slots=True)
class Rule:
    """row_s: a row's time; default_clock_mhz: of the SMs, None where it isn't known."""

    row_s: float
    default_clock_mhz: float | None = None


def collect(
    take: Callable[[], Sample],
    rule: Rule,
    *,
    now: Callable[[], float] = _now,
    wait: Callable[[float], None] = _wait,
) -> Collected:
    """Take samples until the rule says enough."""
    made, noise = Collected(), Noise()
    low = None if rule.default_clock_mhz is None else _LOW * rule.default_clock_mhz
    pause, in_a_row, started = _FIRST_WAIT_S, 0, now()
    while True:
        sample = take()
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
        noise.add(sample.time_us)
        stop = _enough(noise, now() - started, rule.row_s)
        if stop is not None:
            made.stopped = stop
            return made


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


def _enough(noise: Noise, elapsed_s: float, row_s: float) -> Stop | None:
    count = len(noise.history)
    if count < LEAST_SAMPLES:
        return "time limit" if elapsed_s >= _OVERTIME * row_s and count >= 3 else None
    if count >= MOST_SAMPLES:
        return "sample limit"
    if elapsed_s >= row_s:
        return "time limit"
    if elapsed_s < _LEAST_SHARE * row_s:
        return None
    if noise.history[-1] < _STEADY:
        return "steady"
    return "noise plateau" if noise.plateaued else None


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
