"""The rule behind FASTER, SLOWER, SAME and AMBIGUOUS."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from reports.comparison.rule import (
    Evidence,
    Interval,
    Verdict,
    interval_of_placements,
    interval_of_processes,
    judge,
    timer_step_us,
)

BEGAN = ("2026-11-21T04:15:00+00:00", "2026-11-21T04:19:00+00:00")


def evidence(
    centre: float, spread: float = 0.001, *, mhz: float | None = 1800.0, processes: int = 2
) -> Evidence:
    """A side whose interval reaches `spread` to either side."""
    low, high = centre * (1 - spread), centre * (1 + spread)
    cycles = None if mhz is None else Interval(low * mhz, centre * mhz, high * mhz)
    return Evidence(
        time_us=Interval(low, centre, high), cycles=cycles, processes=processes, began=BEGAN
    )


def verdicts(
    processes: int, change: float, *, between: float = 0.002, placed: float = 0.002
) -> Counter[Verdict]:
    """Verdicts on 1,500 pairs of sides of this many processes, of ten places in memory each."""
    draw = random.Random(1)

    def side(centre: float) -> Evidence:
        found = []
        for _ in range(processes):
            of_process = centre * (1 + draw.gauss(0, between))
            places = [of_process * (1 + draw.gauss(0, placed)) for _ in range(10)]
            found.append(interval_of_placements(places))
        if processes == 1:
            return Evidence(time_us=found[0])
        far = [(each.high - each.low) / 2 for each in found]
        centres = [each.centre for each in found]
        whole = interval_of_processes(centres, far)
        return Evidence(time_us=whole, processes=processes, began=BEGAN)

    return Counter(judge(side(100), side(100 * (1 + change))).verdict for _ in range(1500))


@pytest.mark.parametrize(
    ("processes", "false_alarms", "found"), [(1, 0.002, 0.96), (2, 0.004, 0.99), (4, 0.002, 0.99)]
)
def test_rule_keeps_its_false_alarms_and_finds_two_per_cent(
    processes: int, false_alarms: float, found: float
) -> None:
    """At 0.2 % of noise from process to process, as the rule's docstring tells it."""
    alike, planted = verdicts(processes, 0.0), verdicts(processes, 0.02)
    wrong = alike[Verdict.FASTER] + alike[Verdict.SLOWER]
    assert wrong / alike.total() <= false_alarms
    assert planted[Verdict.SLOWER] / planted.total() >= found
    assert planted[Verdict.FASTER] == 0


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_places_that_differ_make_no_false_alarm(processes: int) -> None:
    """2 % from place to place: ten of them can't tell much, and don't say that they can."""
    alike = verdicts(processes, 0.0, placed=0.02)
    assert (alike[Verdict.FASTER] + alike[Verdict.SLOWER]) / alike.total() <= 0.002


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_rule_says_same_of_the_same_kernel(processes: int) -> None:
    """In 95 % of rows and more."""
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


@pytest.mark.parametrize(
    ("centre", "verdict"),
    [
        (100.9, Verdict.SAME),
        (101.1, Verdict.AMBIGUOUS),
        (101.5, Verdict.SLOWER),
        (98.5, Verdict.FASTER),
    ],
)
def test_two_records_tell_one_per_cent(centre: float, verdict: Verdict) -> None:
    """Where a side is of one process, nothing was run in turn: the card may have changed."""
    alone, several = evidence(100.0, processes=1), evidence(centre)
    assert judge(alone, several).verdict is verdict
    assert judge(evidence(100.0), evidence(centre, processes=1)).verdict is verdict


@pytest.mark.parametrize(
    ("began", "verdict"),
    [
        (("2026-11-21T04:16:00+00:00", "2026-11-21T04:18:00+00:00"), Verdict.SLOWER),
        (("2026-11-21T04:20:00+00:00", "2026-11-21T04:24:00+00:00"), Verdict.SAME),
        (("", ""), Verdict.SAME),
    ],
)
def test_processes_that_didnt_run_in_turn_tell_one_per_cent(
    began: tuple[str, str], verdict: Verdict
) -> None:
    """Two of a side, and two of the other hours later: the card may have changed in between."""
    other = replace(evidence(100.9), began=began)
    assert judge(evidence(100.0), other).verdict is verdict


@pytest.mark.parametrize(("centre", "verdict"), [(103.8, Verdict.SAME), (104.5, Verdict.SLOWER)])
def test_two_boards_tell_four_per_cent(centre: float, verdict: Verdict) -> None:
    """Cards of one model aren't one card, however many processes ran on each."""
    assert judge(evidence(100.0), evidence(centre), one_board=False).verdict is verdict


@pytest.mark.parametrize(
    ("launches", "processes", "verdict"),
    [(53, 1, Verdict.SAME), (5, 1, Verdict.SLOWER), (53, 2, Verdict.SLOWER)],
)
def test_gaps_between_kernels_arent_the_kernels(
    launches: int, processes: int, verdict: Verdict
) -> None:
    """9 us of 53 launches are nothing between two records; of five, or in turn, they are."""
    sides = [
        replace(evidence(each, 0.0005, processes=processes), launches=launches)
        for each in (727.0, 736.2)
    ]
    assert judge(*sides).verdict is verdict


def test_interval_of_placements_is_of_their_mean() -> None:
    """A kernel of two times has the mean of them, and one place that was disturbed is left out."""
    halves = interval_of_placements([19.8, 20.8] * 20)
    assert halves.centre == pytest.approx(20.3)
    assert 0.1 < halves.high - halves.centre < 0.3
    assert interval_of_placements([10.0] * 9 + [90.0]).centre == 10.0
    assert interval_of_placements([10.0] * 5) == Interval(10.0, 10.0, 10.0)


def test_interval_of_placements_holds_the_mean_as_often_as_it_says() -> None:
    """Of 2,000 draws of eight places and more, in 95 % and more."""
    draw = random.Random(2)
    for places in (8, 16, 40):
        held = 0
        for _ in range(2000):
            found = interval_of_placements([draw.gauss(100, 1) for _ in range(places)])
            held += found.low <= 100 <= found.high
        assert held / 2000 >= 0.95, places


def test_processes_that_agree_by_chance_know_no_more_than_each_of_them() -> None:
    """Two intervals of +-1 give one of +-0.7 at least."""
    found = interval_of_processes([100.0, 100.0], [1.0, 1.0])
    assert (found.low, found.high) == pytest.approx((100 - 0.5**0.5, 100 + 0.5**0.5))


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
