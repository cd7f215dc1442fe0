"""The timing protocol's rules, with a device and a clock that are simulated."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import pytest

from kernel_workbench.suites.bench.protocol import (
    LEAST_SAMPLES,
    MOST_SAMPLES,
    REDOS,
    Collected,
    Hold,
    Rule,
    Sample,
    collect,
)


class _Simulated:
    """A clock, and a device whose samples take a millisecond of it."""

    def __init__(self, samples: Iterator[Sample], each_s: float = 1e-3) -> None:
        self.now_s, self.waits = 0.0, list[float]()
        self._samples, self._each_s = samples, each_s

    def take(self) -> Sample:
        self.now_s += self._each_s
        return next(self._samples)

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now_s += seconds

    def collect(self, rule: Rule, move: Callable[[], None] | None = None) -> Collected:
        return collect(self.take, rule, move=move, now=lambda: self.now_s, wait=self.wait)


def _noisy(spread: float, clock_mhz: float | None = None) -> Iterator[Sample]:
    draw = random.Random(1)
    while True:
        yield Sample(100.0 * (1 + draw.uniform(-spread, spread)), clock_mhz)


def _drifting() -> Iterator[Sample]:
    """Noise that keeps growing."""
    for number in itertools.count():
        yield Sample(100.0 * (1 + 0.01 * number * (-1) ** number))


@pytest.mark.parametrize(
    ("samples", "each_s", "rule"),
    [
        (_noisy(0.001), 1e-3, "steady"),
        (_noisy(0.1), 1e-3, "noise plateau"),
        (_drifting(), 1e-3, "time limit"),
        (_drifting(), 1e-5, "sample limit"),
    ],
)
def test_sampling_stops_by_the_rule_that_it_names(
    samples: Iterator[Sample], each_s: float, rule: str
) -> None:
    """Steady at once, steady noise, neither within its time, neither within two thousand."""
    made = _Simulated(samples, each_s).collect(Rule(1.0))
    assert made.stopped == rule
    assert LEAST_SAMPLES <= len(made.samples) <= MOST_SAMPLES


def test_slow_call_has_ten_samples_whatever_they_take() -> None:
    """A row's time is for calls that are short against it."""
    made = _Simulated(_noisy(0.1), each_s=0.5).collect(Rule(1.0))
    assert len(made.samples) == LEAST_SAMPLES


def test_call_of_seconds_ends_with_fewer() -> None:
    """Fifteen row times are the end."""
    made = _Simulated(_noisy(0.1), each_s=5.0).collect(Rule(1.0))
    assert (len(made.samples), made.stopped) == (3, "time limit")


def test_samples_under_a_low_clock_are_discarded_and_counted() -> None:
    """Three in a row: each wait is twice the one before, and none of them is a sample."""
    low = [Sample(200.0, 1400.0)] * 3
    simulated = _Simulated(itertools.chain(low, _noisy(0.001, 1900.0)))
    made = simulated.collect(Rule(1.0, default_clock_mhz=1980.0))
    assert made.throttled == 3
    assert simulated.waits == [0.05, 0.1, 0.2]
    assert all(each.clock_mhz == 1900.0 for each in made.samples)


def test_clock_that_stays_low_is_the_speed_of_the_card() -> None:
    """At its power limit an H200 never comes back: its samples count, with their clock."""
    simulated = _Simulated(_noisy(0.001, 1400.0))
    made = simulated.collect(Rule(1.0, default_clock_mhz=1980.0))
    assert made.throttled == 5
    assert simulated.waits == [0.05, 0.1, 0.2, 0.4, 0.5]
    assert len(made.samples) >= LEAST_SAMPLES


def test_nothing_is_discarded_without_a_clock() -> None:
    """Neither where stamps can't be had, nor where the default clock isn't known."""
    assert _Simulated(_noisy(0.001)).collect(Rule(1.0, default_clock_mhz=1980.0)).throttled == 0
    assert _Simulated(_noisy(0.001, 300.0)).collect(Rule(1.0)).throttled == 0


@pytest.mark.parametrize(("time_us", "each_place"), [(20.0, 4), (999.0, 4), (1001.0, 2)])
def test_inputs_move_every_few_samples(time_us: float, each_place: int) -> None:
    """Before the first sample too, and each place's samples are counted."""
    moves: list[int] = []
    samples = iter(lambda: Sample(time_us), None)
    made = _Simulated(samples).collect(Rule(1.0), lambda: moves.append(1))
    assert len(moves) == len(made.placements) >= 8
    assert set(made.placements[:-1]) == {each_place}
    assert sum(made.placements) == len(made.samples)


def test_steady_samples_of_few_places_arent_enough() -> None:
    """The same noise stops at 0.3 s without moves; with them only after eight places."""
    still = _Simulated(_noisy(0.001), each_s=0.02).collect(Rule(1.0))
    moved = _Simulated(_noisy(0.001), each_s=0.02).collect(Rule(1.0), lambda: None)
    assert (len(still.samples), still.stopped) == (15, "steady")
    assert (len(moved.samples), len(moved.placements)) == (29, 8)


def test_discarded_sample_belongs_to_no_place() -> None:
    """Samples that a low clock took away don't count towards a place's four."""
    low = [Sample(200.0, 1400.0)] * 2
    simulated = _Simulated(itertools.chain(low, _noisy(0.001, 1900.0)))
    made = simulated.collect(Rule(1.0, default_clock_mhz=1980.0), lambda: None)
    assert made.throttled == 2
    assert made.placements[0] == 4
    assert sum(made.placements) == len(made.samples)


@pytest.mark.parametrize(("time_us", "rest_s"), [(299.0, 0.0), (5000.0, 0.01)])
def test_device_rests_after_a_long_call(time_us: float, rest_s: float) -> None:
    """For twice its time; a call of microseconds heats nothing."""
    simulated = _Simulated(iter(lambda: Sample(time_us), None))
    made = simulated.collect(Rule(1.0, rest=2.0))
    assert simulated.waits == ([rest_s] * len(made.samples) if rest_s else [])


def _host(*enqueue_us: float) -> tuple[Callable[[float], tuple[Sample, float]], list[float]]:
    """A host that takes so long to enqueue, call after call, and the holds it was given."""
    asked: list[float] = []
    takes = iter(enqueue_us)

    def sample(hold_us: float) -> tuple[Sample, float]:
        asked.append(hold_us)
        return Sample(50.0), next(takes)

    return sample, asked


def test_hold_that_was_too_short_is_made_longer_and_the_sample_taken_again() -> None:
    """The sample that counts is one whose enqueueing ended while the device was held."""
    sample, asked = _host(400.0, 500.0)
    hold = Hold(us=150.0)
    assert hold.take(sample).held
    assert asked == [150.0, 800.0]
    assert not hold.host_bound


def test_hold_follows_what_the_host_takes_and_forgets_a_slow_call() -> None:
    """One call of 20 ms, a compilation say, doesn't hold the device for 40 ms ever after."""
    sample, asked = _host(100.0, 20_000.0, *[100.0] * 20)
    hold = Hold()
    for _ in range(20):
        assert hold.take(sample).held
    assert asked[:3] == [150.0, 250.0, 40_000.0]
    assert asked[4:] == [250.0] * len(asked[4:])
    slower, asked = _host(*[400.0] * 12)
    hold = Hold()
    for _ in range(11):
        assert hold.take(slower).held
    assert asked == [150.0, 800.0, *[1000.0] * 10]


def test_call_that_waits_for_its_device_is_not_held_and_says_so() -> None:
    """It takes as long as any hold; from then on it is held no longer than at first."""
    asked: list[float] = []

    def sample(hold_us: float) -> tuple[Sample, float]:
        asked.append(hold_us)
        return Sample(50.0), hold_us + 10.0

    hold = Hold(us=150.0)
    assert not hold.take(sample).held
    assert len(asked) == REDOS
    asked.clear()
    assert not hold.take(sample).held
    assert asked == [150.0]
