"""The rule behind FASTER, SLOWER, SAME and AMBIGUOUS."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from reports.comparison.rule import (
    Evidence,
    Interval,
    Verdict,
    interval_of_processes,
    interval_of_samples,
    judge,
    timer_step_us,
)


def evidence(centre: float, spread: float = 0.001, *, mhz: float | None = 1800.0) -> Evidence:
    """A side whose interval reaches `spread` to either side."""
    low, high = centre * (1 - spread), centre * (1 + spread)
    cycles = None if mhz is None else Interval(low * mhz, centre * mhz, high * mhz)
    return Evidence(time_us=Interval(low, centre, high), cycles=cycles)


def verdicts(
    processes: int, change: float, *, between: float = 0.002, within: float = 0.002
) -> Counter[Verdict]:
    """Verdicts on 1,500 pairs of sides of this many processes, with normal noise of both kinds."""
    draw = random.Random(1)

    def side(centre: float) -> Evidence:
        sets = []
        for _ in range(processes):
            of_process = centre * (1 + draw.gauss(0, between))
            sets.append([of_process * (1 + draw.gauss(0, within)) for _ in range(25)])
        if processes == 1:
            return Evidence(time_us=interval_of_samples(sets[0]))
        medians = [interval_of_samples(each).centre for each in sets]
        return Evidence(time_us=interval_of_processes(medians), processes=processes)

    return Counter(judge(side(100), side(100 * (1 + change))).verdict for _ in range(1500))


@pytest.mark.parametrize(("processes", "false_alarms"), [(1, 0.02), (2, 0.004), (4, 0.002)])
def test_rule_keeps_its_false_alarms_and_finds_two_per_cent(
    processes: int, false_alarms: float
) -> None:
    """At 0.2 % of noise from process to process, as the rule's docstring tells it."""
    alike, planted = verdicts(processes, 0.0), verdicts(processes, 0.02)
    wrong = alike[Verdict.FASTER] + alike[Verdict.SLOWER]
    assert wrong / alike.total() <= false_alarms
    assert planted[Verdict.SLOWER] / planted.total() >= 0.99
    assert planted[Verdict.FASTER] == 0


@pytest.mark.parametrize("processes", [2, 4])
def test_rule_says_same_of_the_same_kernel(processes: int) -> None:
    """With two processes a side and more, in 95 % of rows and more."""
    alike = verdicts(processes, 0.0)
    assert alike[Verdict.SAME] / alike.total() >= 0.95


def test_processes_count_where_samples_of_one_mislead() -> None:
    """Two processes that lie 2 % apart say nothing of a change of 1 %, however tight either is."""
    apart = Evidence(time_us=interval_of_processes([99.0, 101.0]), processes=2)
    slower = Evidence(time_us=interval_of_processes([100.0, 102.0]), processes=2)
    assert judge(apart, slower).verdict is Verdict.AMBIGUOUS


def test_interval_of_processes_leaves_out_a_quarter_at_either_end() -> None:
    """Of three none, of four one: the one process that was disturbed decides nothing."""
    assert interval_of_processes([3.0, 1.0, 2.0]) == Interval(1.0, 2.0, 3.0)
    assert interval_of_processes([1.0, 2.0, 3.0, 90.0]) == Interval(2.0, 2.5, 3.0)


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        (evidence(100.4), Verdict.SAME),
        (evidence(100.45, 0.0001), Verdict.SAME),
        (evidence(100.6), Verdict.AMBIGUOUS),
        (evidence(103.0, 0.03), Verdict.AMBIGUOUS),
        (evidence(101.0), Verdict.SLOWER),
        (evidence(99.0), Verdict.FASTER),
    ],
)
def test_verdict_follows_gap_and_centres(other: Evidence, verdict: Verdict) -> None:
    """Under 0.5 % between centres SAME; over 0.5 % between intervals a verdict; else AMBIGUOUS."""
    assert judge(evidence(100.0), other).verdict is verdict


def test_slower_needs_cycles_that_say_so() -> None:
    """2 % more time at a clock that is 2 % lower is the clock's doing, and the row says it."""
    found = judge(evidence(100.0), evidence(102.0, mhz=1800 / 1.02))
    assert found.verdict is Verdict.AMBIGUOUS
    assert found.reason is not None
    assert "the clock differs by -2.0 %" in found.reason
    assert judge(evidence(100.0), evidence(102.0)).confirmed is True


def test_slower_without_clocks_is_unconfirmed() -> None:
    """A verdict stands where a side has no clock, and isn't called confirmed."""
    found = judge(evidence(100.0, mhz=None), evidence(102.0))
    assert (found.verdict, found.confirmed) == (Verdict.SLOWER, None)


def test_step_of_the_timer_is_no_difference() -> None:
    """5.024 and 5.056 us are neighbours where events count 32 ns, though 0.6 % apart."""
    samples = [5.024, 5.024000001, 5.056, 5.12]
    assert timer_step_us(samples * 2) == pytest.approx(0.032)
    assert timer_step_us([5.024, 5.0241, 5.0253, 5.0271]) == 0
    short = [Evidence(time_us=Interval(each, each, each), step_us=0.032) for each in (5.024, 5.056)]
    assert judge(*short).verdict is Verdict.SAME
    assert judge(short[0], Evidence(time_us=Interval(5.2, 5.2, 5.2))).verdict is Verdict.SLOWER


def test_figure_without_a_spread_gets_no_verdict() -> None:
    """One number a side can't tell a change from noise."""
    bare = Evidence(time_us=Interval(120.0, 120.0, 120.0), spread=False, processes=0)
    assert judge(evidence(100.0), bare).verdict is Verdict.AMBIGUOUS
