"""The rule behind FASTER, SLOWER, SAME and AMBIGUOUS."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from kernel_workbench.reports.comparison.rule import (
    Evidence,
    Interval,
    SpeedVerdict,
    chance_to_fall_apart,
    empty_calls_apart_us,
    interval_of_placements,
    interval_of_processes,
    judge,
    left_out,
    timer_step_us,
)

BEGAN = ("2026-11-21T04:15:00+00:00", "2026-11-21T04:19:00+00:00")


def evidence(
    centre: float, spread: float = 0.001, *, mhz: float | None = 1800.0, processes: int = 4
) -> Evidence:
    """A side whose interval reaches `spread` to either side."""
    low, high = centre * (1 - spread), centre * (1 + spread)
    cycles = None if mhz is None else Interval(low * mhz, centre * mhz, high * mhz)
    return Evidence(
        time_us=Interval(low, centre, high), cycles=cycles, processes=processes, began=BEGAN
    )


@cache  # tests ask twice for the same draws: of processes that took turns, and of others
def _sides(
    processes: int, change: float, between: float, placed: float, two_times: float
) -> list[tuple[Evidence, Evidence]]:
    draw = random.Random(1)

    def side(centre: float) -> Evidence:
        found = []
        for _ in range(processes):
            of_process = centre * (1 + draw.gauss(0, between))
            of_process *= 1 + two_times * (draw.random() < 0.3)
            places = [of_process * (1 + draw.gauss(0, placed)) for _ in range(10)]
            found.append(interval_of_placements(places))
        if processes == 1:
            return Evidence(time_us=found[0])
        far = [(each.high - each.low) / 2 for each in found]
        centres = [each.centre for each in found]
        whole = interval_of_processes(centres, far)
        return Evidence(time_us=whole, processes=processes)

    return [(side(100), side(100 * (1 + change))) for _ in range(1500)]


def verdicts(
    processes: int,
    change: float,
    *,
    between: float = 0.002,
    placed: float = 0.002,
    two_times: float = 0.0,
    in_turn: bool = True,
) -> Counter[SpeedVerdict]:
    """Verdicts on 1,500 pairs of sides of this many processes, of ten places in memory each.

    two_times: how much longer three processes in ten take than the others
    """
    began = BEGAN if in_turn and processes > 1 else ("", "")
    return Counter(
        judge(*(replace(each, began=began) for each in pair)).verdict
        for pair in _sides(processes, change, between, placed, two_times)
    )


@pytest.mark.parametrize("in_turn", [True, False])
@pytest.mark.parametrize(
    ("processes", "between", "found"),
    [(4, 0.002, 0.99), (8, 0.002, 0.99), (12, 0.005, 0.95)],
)
def test_rule_finds_two_per_cent(
    processes: int, between: float, found: float, *, in_turn: bool
) -> None:
    """As the rule's docstring tells it, and never with the wrong sign."""
    planted = verdicts(processes, 0.02, between=between, in_turn=in_turn)
    assert planted[SpeedVerdict.SLOWER] / planted.total() >= found
    assert planted[SpeedVerdict.FASTER] == 0


@pytest.mark.parametrize("in_turn", [True, False])
@pytest.mark.parametrize("processes", [1, 2, 4, 8, 12])
@pytest.mark.parametrize(
    ("noise", "false_alarms"),
    [
        ({"between": 0.002}, 0.0),
        ({"between": 0.005}, 0.0),
        ({"between": 0.001, "two_times": 0.04}, 0.004),
    ],
)
def test_rule_keeps_its_false_alarms(
    processes: int, noise: dict[str, float], false_alarms: float, *, in_turn: bool
) -> None:
    """Also where processes differ by more than floors: it takes four that agree to say so."""
    alike = verdicts(processes, 0.0, in_turn=in_turn, **noise)
    wrong = alike[SpeedVerdict.FASTER] + alike[SpeedVerdict.SLOWER]
    assert wrong / alike.total() <= false_alarms


@pytest.mark.parametrize(("one", "other"), [(2, 2), (4, 4), (3, 5), (8, 8), (10, 7), (12, 2)])
def test_chance_to_fall_apart_is_that_of_processes_which_are_alike(one: int, other: int) -> None:
    """Drawn 20,000 times from one distribution."""
    draw = random.Random(3)
    fell = 0
    for _ in range(20_000):
        mine, its = (
            interval_of_processes([draw.random() for _ in range(each)]) for each in (one, other)
        )
        fell += mine.high < its.low or its.high < mine.low
    assert fell / 20_000 == pytest.approx(chance_to_fall_apart(one, other), abs=0.01)


def test_processes_are_left_out_as_their_number_allows() -> None:
    """One disturbed process of seven decides nothing; of four it makes the row AMBIGUOUS."""
    assert [left_out(each) for each in (1, 2, 4, 6, 7, 9, 10, 12, 16)] == [
        0,
        0,
        0,
        0,
        1,
        1,
        2,
        3,
        4,
    ]
    for each in range(4, 40):
        assert chance_to_fall_apart(each, each) <= 0.05
    assert chance_to_fall_apart(0, 4) == 1


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_places_that_differ_make_no_false_alarm(processes: int) -> None:
    """2 % from place to place: ten of them can't tell much, and don't say that they can."""
    alike = verdicts(processes, 0.0, placed=0.02)
    assert (alike[SpeedVerdict.FASTER] + alike[SpeedVerdict.SLOWER]) / alike.total() <= 0.002


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_rule_says_same_of_the_same_kernel(processes: int) -> None:
    """In 95 % of rows and more."""
    alike = verdicts(processes, 0.0)
    assert alike[SpeedVerdict.SAME] / alike.total() >= 0.95


def test_processes_count_where_samples_of_one_mislead() -> None:
    """Two processes that lie 2 % apart say nothing of a change of 1 %, however tight either is."""
    apart = Evidence(time_us=interval_of_processes([99.0, 101.0]), processes=2)
    slower = Evidence(time_us=interval_of_processes([100.0, 102.0]), processes=2)
    assert judge(apart, slower).verdict is SpeedVerdict.AMBIGUOUS


def test_interval_of_processes_leaves_out_the_ends() -> None:
    """Each end loses none of three and one of seven: the one disturbed process decides nothing."""
    assert interval_of_processes([3.0, 1.0, 2.0]) == Interval(1.0, 2.0, 3.0)
    assert interval_of_processes([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 90.0]) == Interval(2.0, 4.0, 6.0)


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        (evidence(100.4), SpeedVerdict.SAME),
        (evidence(100.45, 0.0001), SpeedVerdict.SAME),
        (evidence(100.6), SpeedVerdict.AMBIGUOUS),
        (evidence(103.0, 0.03), SpeedVerdict.AMBIGUOUS),
        (evidence(101.0), SpeedVerdict.SLOWER),
        (evidence(99.0), SpeedVerdict.FASTER),
    ],
)
def test_verdict_follows_gap_and_centres(other: Evidence, verdict: SpeedVerdict) -> None:
    """Under 0.5 % between centres SAME; over 0.5 % between intervals a verdict; else AMBIGUOUS."""
    assert judge(evidence(100.0), other).verdict is verdict


@pytest.mark.parametrize(
    ("centre", "verdict"),
    [
        (100.9, SpeedVerdict.SAME),
        (101.1, SpeedVerdict.AMBIGUOUS),
        (101.5, SpeedVerdict.SLOWER),
        (98.5, SpeedVerdict.FASTER),
    ],
)
def test_two_records_of_four_processes_tell_one_per_cent(
    centre: float, verdict: SpeedVerdict
) -> None:
    """Nothing was run in turn: the card may have changed."""
    earlier = replace(evidence(100.0), began=("", ""))
    assert judge(earlier, evidence(centre)).verdict is verdict
    assert judge(evidence(100.0), replace(evidence(centre), began=("", ""))).verdict is verdict


@pytest.mark.parametrize(
    ("centre", "verdict"),
    [
        (100.9, SpeedVerdict.SAME),
        (101.5, SpeedVerdict.AMBIGUOUS),
        (104.9, SpeedVerdict.AMBIGUOUS),
        (105.5, SpeedVerdict.SLOWER),
        (94.5, SpeedVerdict.FASTER),
    ],
)
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_a_process_alone_tells_five_per_cent(
    processes: int, centre: float, verdict: SpeedVerdict
) -> None:
    """It has a time of its own, however tight its samples are; two and three agree by chance."""
    few, enough = evidence(100.0, processes=processes), evidence(100.0)
    found = judge(few, evidence(centre, processes=1))
    assert found.verdict is verdict
    assert judge(enough, evidence(centre, processes=1)).verdict is verdict
    if found.verdict is SpeedVerdict.AMBIGUOUS:
        assert found.reason is not None
        assert "apart, as one process may be from the next" in found.reason


@pytest.mark.parametrize(
    ("began", "verdict"),
    [
        (("2026-11-21T04:16:00+00:00", "2026-11-21T04:18:00+00:00"), SpeedVerdict.SLOWER),
        (("2026-11-21T04:20:00+00:00", "2026-11-21T04:24:00+00:00"), SpeedVerdict.SAME),
        (("", ""), SpeedVerdict.SAME),
    ],
)
def test_processes_that_didnt_run_in_turn_tell_one_per_cent(
    began: tuple[str, str], verdict: SpeedVerdict
) -> None:
    """Two of a side, and two of the other hours later: the card may have changed in between."""
    other = replace(evidence(100.9), began=began)
    assert judge(evidence(100.0), other).verdict is verdict


@pytest.mark.parametrize(
    ("centre", "verdict"), [(103.8, SpeedVerdict.SAME), (104.5, SpeedVerdict.SLOWER)]
)
def test_two_boards_tell_four_per_cent(centre: float, verdict: SpeedVerdict) -> None:
    """Cards of one model aren't one card, however many processes ran on each."""
    assert judge(evidence(100.0), evidence(centre), one_board=False).verdict is verdict


@pytest.mark.parametrize(
    ("centre", "verdict"),
    [(103.8, SpeedVerdict.SAME), (108.5, SpeedVerdict.AMBIGUOUS), (110.0, SpeedVerdict.SLOWER)],
)
def test_process_of_its_own_comes_on_top_of_the_board(centre: float, verdict: SpeedVerdict) -> None:
    """One process on each of two boards: 4 % may be the board's, and 5 % more the process's."""
    sides = [evidence(each, processes=1) for each in (100.0, centre)]
    assert judge(*sides, one_board=False).verdict is verdict


def test_hosts_of_two_boards_leave_other_gaps_between_kernels() -> None:
    """7 us of 19 launches are nothing on another host; on the same board they are SLOWER."""
    sides = [replace(evidence(each), launches=19, began=("", "")) for each in (55.6, 62.6)]
    assert judge(*sides, one_board=False).verdict is SpeedVerdict.SAME
    assert judge(*sides).verdict is SpeedVerdict.SLOWER


@pytest.mark.parametrize(
    ("known_us", "centre", "verdict"),
    [
        (-1.63, 10.36, SpeedVerdict.SAME),
        (-1.63, 12.0, SpeedVerdict.SLOWER),
        (0.0, 10.36, SpeedVerdict.FASTER),
        (None, 10.36, SpeedVerdict.SAME),
        (None, 8.9, SpeedVerdict.FASTER),
    ],
)
def test_empty_call_is_the_machines(
    known_us: float | None, centre: float, verdict: SpeedVerdict
) -> None:
    """A kernel of 12 us that takes 1.63 less where empty calls are as much shorter hasn't changed.

    And a kernel that takes as long there as here is slower.
    """
    base, other = evidence(12.0), evidence(centre)
    found = judge(base, other, one_board=False, empty_calls_us=known_us)
    assert found.verdict is verdict
    if verdict is SpeedVerdict.SLOWER:
        assert found.change == pytest.approx(1.63 / 12)
        assert found.cycles_change == pytest.approx(1.63 / 12)


def test_empty_call_of_a_damaged_record_takes_no_time_away() -> None:
    """No call is shorter than nothing."""
    found = judge(evidence(100.0), evidence(100.0), empty_calls_us=500.0)
    assert found.change == 0.0


def test_empty_calls_are_known_to_a_fifth_of_a_microsecond() -> None:
    """Below, they are one; without either it isn't known."""
    assert empty_calls_apart_us(2.91, 2.94) == 0.0
    assert empty_calls_apart_us(2.91, 1.28) == pytest.approx(-1.63)
    assert empty_calls_apart_us(2.91, None) is None
    assert empty_calls_apart_us(None, 1.28) is None


@pytest.mark.parametrize(
    ("launches", "in_turn", "verdict"),
    [
        (53, False, SpeedVerdict.SAME),
        (5, False, SpeedVerdict.SLOWER),
        (53, True, SpeedVerdict.SLOWER),
    ],
)
def test_gaps_between_kernels_arent_the_kernels(
    launches: int, verdict: SpeedVerdict, *, in_turn: bool
) -> None:
    """9 us of 53 launches are nothing between two records; of five, or in turn, they are."""
    sides = [replace(evidence(each, 0.0005), launches=launches) for each in (727.0, 736.2)]
    if not in_turn:
        sides = [replace(each, began=("", "")) for each in sides]
    assert judge(*sides).verdict is verdict


def test_interval_of_placements_is_of_their_mean() -> None:
    """A kernel of two times has the mean of them, and one place that was disturbed is left out."""
    halves = interval_of_placements([19.8, 20.8] * 20)
    assert halves.centre == pytest.approx(20.3)
    assert 0.1 < halves.high - halves.centre < 0.3
    assert interval_of_placements([10.0] * 9 + [90.0]).centre == 10.0
    assert interval_of_placements([10.0] * 5) == Interval(10.0, 10.0, 10.0)


def test_interval_of_placements_holds_the_mean_as_often_as_it_says() -> None:
    """The interval holds the mean in 95 % and more of 2,000 draws of eight places and more."""
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
    assert found.verdict is SpeedVerdict.AMBIGUOUS
    assert found.reason is not None
    assert "the clock differs by -2.0 %" in found.reason
    assert not judge(evidence(100.0), evidence(102.0)).is_unconfirmed


def test_slower_without_clocks_is_unconfirmed() -> None:
    """A verdict stands where a side has no clock, and isn't called confirmed."""
    found = judge(evidence(100.0, mhz=None), evidence(102.0))
    assert (found.verdict, found.is_unconfirmed) == (SpeedVerdict.SLOWER, True)


def test_step_of_the_timer_is_no_difference() -> None:
    """5.024 and 5.056 us are neighbours where events count 32 ns, though 0.6 % apart."""
    samples = [5.024, 5.024000001, 5.056, 5.12]
    assert timer_step_us(samples * 2) == pytest.approx(0.032)
    assert timer_step_us([5.024, 5.0241, 5.0253, 5.0271]) == 0
    short = [Evidence(time_us=Interval(each, each, each), step_us=0.032) for each in (5.024, 5.056)]
    assert judge(*short).verdict is SpeedVerdict.SAME
    assert judge(short[0], Evidence(time_us=Interval(5.3, 5.3, 5.3))).verdict is SpeedVerdict.SLOWER


def test_figure_without_a_spread_gets_no_verdict() -> None:
    """One number a side can't tell a change from noise."""
    bare = Evidence(time_us=Interval(120.0, 120.0, 120.0), spread=False, processes=0)
    assert judge(evidence(100.0), bare).verdict is SpeedVerdict.AMBIGUOUS
