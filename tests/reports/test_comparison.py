"""Results of comparisons: of records of one model, of several, and of rows that don't compare."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kernel_workbench.reports.comparison.pairs import pair_speeds
from kernel_workbench.reports.comparison.report import Comparison
from kernel_workbench.reports.comparison.rule import SpeedVerdict
from kernel_workbench.reports.comparison.speed import compare_speeds
from kernel_workbench.reports.record import (
    BENCH_PROTOCOL,
    BenchRow,
    KernelInfo,
    RecordError,
    Row,
    RunHeader,
)
from tests.builders.compared_records import (
    H200,
    accuracy_row,
    bench_row,
    case,
    compared,
    header,
    profile_row,
    samples,
    sides_of,
    text_of,
)


def two(
    folder: Path, ours: BenchRow, theirs: BenchRow, protocol: int = BENCH_PROTOCOL
) -> Comparison:
    """One row on either side, of one model."""
    return compared(folder, (header(), [ours]), (header(protocol=protocol), [theirs]))


def test_places_in_memory_are_what_a_record_rests_on(tmp_path: Path) -> None:
    """The median of a kernel of two times is one of them by chance; the mean over places isn't."""

    def row(slow_places: int) -> BenchRow:
        places = [100.0] * (20 - slow_places) + [105.0] * slow_places
        times = tuple(each + 0.01 * number for each in places for number in range(4))
        process = samples(100.0, rounds=80)
        told = {"times_us": times, "placements": (4,) * 20}
        return bench_row(processes=(process.model_copy(update=told),))

    (held,) = two(tmp_path, row(9), row(11)).rows
    assert held.judgement.verdict is SpeedVerdict.SAME
    assert abs(held.judgement.change) < 0.007


def refusals(folder: Path, ours: BenchRow, theirs: BenchRow) -> list[str]:
    """Why the one row of either record isn't compared."""
    found = pair_speeds(*sides_of(folder, (header(), [ours]), (header(), [theirs])))
    assert not found.pairs
    return [each.reason for each in found.refused]


@pytest.mark.parametrize(
    ("centre", "noise", "verdict"),
    [
        (100.0, 0.002, SpeedVerdict.SAME),
        (102.0, 0.002, SpeedVerdict.SLOWER),
        (98.0, 0.002, SpeedVerdict.FASTER),
        (102.0, 0.03, SpeedVerdict.AMBIGUOUS),
    ],
)
def test_records_of_one_model_get_each_verdict(
    tmp_path: Path, centre: float, noise: float, verdict: SpeedVerdict
) -> None:
    """A planted change of 2 % is found at 0.2 % of noise, and left open at 3 %."""
    found = two(tmp_path, bench_row(100.0, seed=1), bench_row(centre, seed=2, noise=noise))
    assert [each.judgement.verdict for each in found.rows] == [verdict]
    assert found.parts[0].verdict == verdict
    assert f"{verdict}, B beside A: 1 row" in text_of(found)


def test_two_runs_of_one_machine_are_the_same(tmp_path: Path) -> None:
    """96 rows with noise of 0.2 % in their samples: SAME in 95 % and more, and no false alarm."""
    cases = [case(m=1000 + number) for number in range(96)]
    runs = [
        [bench_row(100.0, seed=200 * run + place, case=each) for place, each in enumerate(cases)]
        for run in range(2)
    ]
    found = compared(tmp_path, *((header(), list(rows)) for rows in runs))
    verdicts = [each.judgement.verdict for each in found.rows]
    assert verdicts.count(SpeedVerdict.SAME) >= 0.95 * len(cases)
    assert not {SpeedVerdict.FASTER, SpeedVerdict.SLOWER} & set(verdicts)


def test_rows_of_several_processes_are_known_by_the_processes_medians(tmp_path: Path) -> None:
    """Samples that spread by 3 % hide no change that four processes agree on."""
    sides = [
        bench_row(processes=tuple(samples(centre, 0.03, seed=10 * of + each, rounds=400)
                  for each in range(4)))
        for of, centre in ((1, 100.0), (2, 102.0))
    ]  # fmt: skip
    found = two(tmp_path, sides[0], sides[1])
    (held,) = found.rows
    assert held.judgement.verdict is SpeedVerdict.SLOWER
    assert not held.judgement.is_unconfirmed
    assert "timed: A by 4 processes, B by 4 processes" in text_of(found)


def test_slowdown_of_the_clock_alone_is_ambiguous(tmp_path: Path) -> None:
    """More time in as many cycles: the row says that the clock differs."""
    found = two(
        tmp_path, bench_row(100.0, seed=1), bench_row(103.0, seed=2, mhz=1800 / 1.03)
    )  # fmt: skip
    assert found.rows[0].judgement.verdict is SpeedVerdict.AMBIGUOUS
    assert "not so in cycles" in text_of(found)


@pytest.mark.parametrize(
    ("codes", "held", "verdict"),
    [
        (("shared GPU",), True, SpeedVerdict.AMBIGUOUS),
        (("busy host",), True, SpeedVerdict.SLOWER),  # no host time is in samples of a held device
        (("busy host",), False, SpeedVerdict.AMBIGUOUS),
        (("busy host",), None, SpeedVerdict.AMBIGUOUS),  # a CPU's
        (("what a later version has",), True, SpeedVerdict.AMBIGUOUS),
    ],
)
def test_row_timed_beside_other_work_is_ambiguous(
    tmp_path: Path, codes: tuple[str, ...], verdict: SpeedVerdict, *, held: bool | None
) -> None:
    """On either side, where the other work may be in its times; the change is shown."""
    slower = bench_row(110.0, seed=2)
    processes = tuple(each.model_copy(update={"held": held}) for each in slower.processes)
    marked = slower.model_copy(update={"codes": codes, "processes": processes})
    for number, pair in enumerate(((bench_row(100.0), marked), (marked, bench_row(121.0)))):
        found = two(tmp_path / str(number), *pair)
        assert found.rows[0].judgement.verdict is verdict
        assert found.rows[0].judgement.change == pytest.approx(0.1, abs=0.01)
        told = f"other work ran while it was timed: {codes[0]}" in text_of(found)
        assert told is (verdict is SpeedVerdict.AMBIGUOUS)


def test_record_without_clocks_is_unconfirmed(tmp_path: Path) -> None:
    """The verdict stands, and the report says that no cycles confirm it."""
    found = two(tmp_path, bench_row(100.0, seed=1), bench_row(103.0, seed=2, mhz=0))
    assert found.rows[0].judgement.verdict is SpeedVerdict.SLOWER
    assert "1 row unconfirmed in cycles" in text_of(found)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"distribution": "zeros"}, "the distribution of inputs is normal in A and zeros in B"),
        ({"cache": "warm"}, "the cache is cold in A and warm in B"),
        (
            {"case": case(sizes={"m": 8192, "n": 8193})},
            "other inputs: sizes m=8192 n=8192 in A and m=8192 n=8193 in B",
        ),
        ({"case": case(seed=3)}, "other inputs: seed 0 in A and 3 in B"),
        (
            {"status": "wrong", "accuracy": "failed", "processes": (), "median_us": None},
            "its accuracy failed in B",
        ),
        ({"accuracy": None}, "its accuracy was never checked in B"),
        ({"accuracy": "no power"}, "its accuracy is recorded as: no power in B"),
        (
            {"status": "absent", "reason": "not installed", "processes": (), "median_us": None},
            "not timed in B (absent): not installed",
        ),
        (
            {"processes": (), "median_us": float("nan")},
            "not timed in B (timed): it has no time that a call could take",
        ),
        ({"flops": 5}, "not the same work: 603,979,776 flops are counted in A and 5 in B"),
    ],
)
def test_rows_that_do_not_compare_are_refused_with_the_reason(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    """Other inputs, a failed accuracy, no time: never a verdict, always a sentence."""
    assert refusals(tmp_path, bench_row(seed=1), bench_row(seed=2, **changes)) == [reason]


def test_records_of_two_protocols_are_refused(tmp_path: Path) -> None:
    """The rules behind the figures differ, so none of them compare."""
    with pytest.raises(RecordError, match=r"its protocol is 1 and that of .* is 3"):
        two(tmp_path, bench_row(), bench_row(), protocol=1)


def test_records_of_different_suites_are_refused(tmp_path: Path) -> None:
    """A record of bench and one of profile hold nothing that compares."""
    with pytest.raises(RecordError, match="needs two records of one suite"):
        compared(tmp_path, (header(), [bench_row()]), (header("profile"), [profile_row()]))


def test_rows_of_one_side_are_listed(tmp_path: Path) -> None:
    """A row that only one record has is listed, either way."""
    found = compared(
        tmp_path,
        (header(), [bench_row(), bench_row(case=case(m=1))]),
        (header(), [bench_row(), bench_row(case=case(m=2))]),
    )
    shown = text_of(found)
    assert re.search(r"not in B\s+m1-n8192-bfloat16-contiguous", shown)
    assert re.search(r"not in A\s+m2-n8192-bfloat16-contiguous", shown)


def test_one_kernel_of_either_side_is_held_against_the_other(tmp_path: Path) -> None:
    """Two files of one kernel each compare, whatever the kernels are called, and it is said."""
    found = two(
        tmp_path, bench_row(seed=1, kernel="mine"), bench_row(102.0, seed=2, kernel="mine_too")
    )
    assert found.rows[0].judgement.verdict is SpeedVerdict.SLOWER
    assert "mine_too of B is compared with mine of A" in text_of(found)


def test_case_that_dispatch_gives_to_another_kernel_is_compared(tmp_path: Path) -> None:
    """Ours of before and of now are held against one another, a baseline against itself alone."""

    def of(kernel: str, times: float) -> tuple[RunHeader, list[Row]]:
        known: dict[str, Any] = {"op": case().op, "priority": 0, "path": "", "numerics": {}}
        infos = (
            KernelInfo(name=kernel, origin="ours", **known),
            KernelInfo(name="torch", origin="baseline", **known),
            KernelInfo(name=f"of_{kernel}", origin="baseline", **known),
        )
        rows: list[Row] = [
            bench_row(times, kernel=kernel, noise=0),
            bench_row(100.0, kernel="torch", noise=0),
            bench_row(100.0, kernel=f"old_{kernel}", noise=0),
        ]
        return header(kernels=infos), rows

    found = compared(tmp_path, of("narrow", 100.0), of("wide", 90.0))
    told = {each.pair.key.kernel: each.judgement.verdict for each in found.rows}
    assert told == {"narrow, then wide": SpeedVerdict.FASTER, "torch": SpeedVerdict.SAME}
    shown = text_of(found)
    assert shown.count("not in B") == shown.count("not in A") == 1


@pytest.mark.parametrize(("time_us", "verdict"), [(76.0, "FASTER"), (131.0, "SLOWER")])
def test_kernel_that_replaced_another_is_compared_with_it(
    tmp_path: Path, time_us: float, verdict: str
) -> None:
    """Also where the new record times the old kernel too, which then alone shuts a gate."""

    def of(times_us: dict[str, float]) -> tuple[RunHeader, list[Row]]:
        infos = tuple(
            KernelInfo(
                name=name, origin="ours", op=case().op, priority=priority, path="", numerics={}
            )
            for name, priority in (("old", 20), ("new", 25), ("slow", 10))
        )
        rows: list[Row] = [bench_row(us, kernel=name, noise=0) for name, us in times_us.items()]
        return header(kernels=infos), rows

    found = compared(tmp_path, of({"old": 100.0}), of({"old": 100.0, "new": time_us, "slow": 300}))
    verdicts = {held.pair.key.kernel: str(held.judgement.verdict) for held in found.rows}
    assert verdicts == {"old": "SAME", "old, then new": verdict}
    assert found.broken is None
    assert "dispatch took the old one in A" in text_of(found)
    back = compared(tmp_path / "back", of({"old": 100.0, "new": 90.0}), of({"old": 100.0}))
    assert [held.pair.key.kernel for held in back.rows] == ["old"]


def test_accuracy_comes_before_speed(tmp_path: Path) -> None:
    """A kernel that got faster and less accurate is told as less accurate, first."""
    found = two(tmp_path, bench_row(seed=1), bench_row(90.0, seed=2, worst_ratio=0.8))
    assert [part.verdict for part in found.parts] == ["LESS ACCURATE", "LESS ACCURATE", "FASTER"]
    assert found.broken == "the gate is shut: 0 rows slower, 1 row less accurate"


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ({}, {}, "AS ACCURATE"),
        ({}, {"ratio": 0.52}, "AS ACCURATE"),
        ({}, {"ratio": 0.9}, "LESS ACCURATE"),
        ({"ratio": 0.9}, {}, "MORE ACCURATE"),
        ({}, {"rmse": 5e-4}, "LESS ACCURATE"),
        ({}, {"ratio": float("nan")}, "LESS ACCURATE"),
        ({"ratio": float("nan")}, {"ratio": float("inf")}, "AS ACCURATE"),
        ({"ratio": 0.0}, {"ratio": 0.1}, "LESS ACCURATE"),
        ({}, {"status": "failed", "rule": "deterministic bound"}, "LESS ACCURATE"),
        ({"status": "failed"}, {}, "MORE ACCURATE"),
    ],
)
def test_records_of_accuracy_compare(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], verdict: str
) -> None:
    """A status that changes, or errors that grow by more than a tenth, NaN the largest."""
    found = compared(
        tmp_path,
        (header("accuracy"), [accuracy_row(**before)]),
        (header("accuracy"), [accuracy_row(**after)]),
    )
    assert found.parts[0].verdict == verdict
    assert (found.broken is not None) == (verdict == "LESS ACCURATE")


def test_kernel_that_refuses_now_is_of_another_status(tmp_path: Path) -> None:
    """Served and not served says nothing of accuracy, and isn't passed over."""
    found = compared(
        tmp_path,
        (header("accuracy"), [accuracy_row()]),
        (header("accuracy"), [accuracy_row(status="refused", outputs=())]),
    )
    assert "1 of another status" in text_of(found)
    assert found.broken is None


def test_baseline_that_got_slower_does_not_shut_the_gate(tmp_path: Path) -> None:
    """It is told, and what doesn't gate in a suite doesn't here."""
    found = two(tmp_path, bench_row(seed=1), bench_row(105.0, seed=2, gates=False))
    assert found.rows[0].judgement.verdict is SpeedVerdict.SLOWER
    assert found.broken is None


def test_weighted_total_follows_the_weights(tmp_path: Path) -> None:
    """Three calls of 100 us and one of 200 make 500; a row without a weight isn't in it."""
    rows: list[list[Row]] = [
        [
            bench_row(f * 100.0, noise=0, weight=3.0),
            bench_row(f * 200.0, noise=0, weight=1.0, case=case(m=1)),
            bench_row(f * 900.0, noise=0, case=case(m=2)),
        ]
        for f in (1.0, 2.0)
    ]
    shown = text_of(compared(tmp_path, *((header(), each) for each in rows)))
    assert "Weighted total: 1 row" in shown
    (line,) = [each for each in shown.splitlines() if " 500.0 " in each]
    assert "1,000" in line
    assert "+100.0 %" in line


def test_side_names_software_that_differs(tmp_path: Path) -> None:
    """A change of compiler is seen before a kernel is blamed."""
    newer = H200 | {"packages": {"torch": "2.13.0", "triton": "3.8.0"}}
    found = compared(
        tmp_path, (header(), [bench_row()]), (header(machine=newer), [bench_row(seed=1)])
    )
    assert "triton differs: 3.7.1 in A, 3.8.0 in B" in text_of(found)


def test_row_that_a_record_has_twice_is_told(tmp_path: Path) -> None:
    """The first is taken, and the report says so."""
    found = compared(
        tmp_path, (header(), [bench_row(), bench_row(200.0)]), (header(), [bench_row()])
    )
    assert "A has 1 row more than once" in text_of(found)


def test_hold_orders_rows_by_change(tmp_path: Path) -> None:
    """The largest change comes first."""
    runs = [
        [bench_row(time, noise=0.0001, case=case(m=m)) for m, time in enumerate(times)]
        for times in ((100.0, 100.0, 100.0), (102.0, 110.0, 105.0))
    ]
    found = compare_speeds(*sides_of(tmp_path, *((header(), list(rows)) for rows in runs)))
    changes = [each.judgement.change for each in found.of(SpeedVerdict.SLOWER)]
    assert changes == sorted(changes, reverse=True)
    assert len(changes) == 3


def _part(*left_out: str) -> KernelInfo:
    return KernelInfo(
        op="layer_norm_backward",
        name="row_persistent",
        origin="ours",
        priority=0,
        path="mine.py",
        numerics={},
        returns=("dx",) if left_out else (),
        left_out=left_out,
    )


def test_kernel_that_leaves_an_output_out_is_less_accurate(tmp_path: Path) -> None:
    """A failure isn't mended by computing less: the gate is shut."""
    whole, part = (
        header("accuracy", kernels=(each,)) for each in (_part(), _part("dweight", "dbias"))
    )
    failed = accuracy_row(status="failed", rule="deterministic bound")
    found = compared(tmp_path, (whole, [failed]), (part, [accuracy_row()]))
    assert [each.kind for each in found.changes] == ["LESS ACCURATE"]
    assert "without dweight, dbias" in found.changes[0].after
    assert found.broken is not None
    same = compared(tmp_path / "same", (part, [accuracy_row()]), (part, [accuracy_row()]))
    assert same.changes == []


def test_times_of_a_whole_and_of_a_part_arent_compared(tmp_path: Path) -> None:
    """Less work in less time is no speed."""
    kernels = _part(), _part("dweight", "dbias")
    records = ((header(kernels=(each,)), [bench_row()]) for each in kernels)
    found = pair_speeds(*sides_of(tmp_path, *records))
    assert found.pairs == ()
    assert [each.reason for each in found.refused] == [
        "not the same work: nothing is left out in A and dweight, dbias in B"
    ]
