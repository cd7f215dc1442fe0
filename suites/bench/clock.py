"""pytest-benchmark's timer: a clock that goes on by device time alone.

pytest-benchmark times a function on the host. Here the function is a step of this clock by one
sample that a worker took on the device, so its statistics, JSON and comparisons are of those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class DeviceClock:
    """Seconds of device time since the test began."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._samples: Iterator[float] = iter(())

    def __call__(self) -> float:
        """What pytest-benchmark reads before and after each round."""
        return self._seconds

    def load(self, times_us: Sequence[float]) -> None:
        """The samples of the next steps."""
        self._seconds = 0.0  # of another test: sums of hours would round microseconds
        self._samples = iter(times_us)

    def step(self) -> None:
        """One call, as it was timed."""
        self._seconds += 1e-6 * next(self._samples)


CLOCK = DeviceClock()
