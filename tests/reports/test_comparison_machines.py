"""Records of different machines stand side by side: ratios, shares, energy, and no verdict."""

from __future__ import annotations

import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from kernel_workbench.reports.comparison.generations import geometric_mean
from kernel_workbench.reports.comparison.rule import SpeedVerdict
from kernel_workbench.reports.record import KernelInfo, Row
from tests.builders.compared_records import (
    A100,
    H100,
    H200,
    bench_row,
    case,
    compared,
    header,
    profile_row,
    text_of,
)


def test_three_generations_stand_side_by_side(tmp_path: Path) -> None:
    """Measured, measured, published: ratios and shares, a mean with its interval, no verdict."""
    cases = [case(m=each) for each in (1024, 2048, 4096)]

    def rows(factor: float, changes: dict[str, Any]) -> list[Row]:
        scaled = [factor * 100.0 * (1 + 0.05 * place) for place in range(3)]
        return [
            bench_row(time, noise=0, case=each, **changes)
            for place, (time, each) in enumerate(zip(scaled, cases, strict=True))
        ]

    published: dict[str, Any] = {
        "processes": (),
        "accuracy": None,
        "share_of_ceiling": None,
        "source": "a paper, table 2",
    }
    found = compared(
        tmp_path,
        (header(), rows(1.0, {})),
        (header(machine=H100), rows(1.25, {})[:2]),
        (header(machine=A100, figures="published"), rows(2.0, published)),
    )
    assert found.rows == []
    assert found.broken is None
    shown = text_of(found)
    assert "B: H100 80GB HBM3" in shown
    assert "C: A100-SXM4-80GB, published" in shown
    assert "0.800 x" in shown
    assert "0.500 x" in shown
    assert "C is from  a paper, table 2" in shown
    assert "not in B" in shown
    assert "70/-/75 %" in shown
    for word in ("regress", "SLOWER", "FASTER", "gate"):
        assert word not in shown


def test_fastest_are_of_kernels_that_both_records_have(tmp_path: Path) -> None:
    """Another kernel that one record alone has says nothing of the machines; both are named."""

    def rows(**times: float) -> list[Row]:
        return [bench_row(time, kernel=kernel, noise=0) for kernel, time in times.items()]

    found = compared(
        tmp_path,
        (header(), rows(flash=200.0, cudnn=100.0, tutorial=180.0)),
        (header(machine=H100), rows(flash=150.0, tutorial=160.0, other=10.0)),
    )
    shown = text_of(found)
    assert "The fastest of the kernels that A and B have: 1 row" in shown
    assert re.search(r"tutorial [\d,]+ GB/s 1.00 x +flash [\d,]+ GB/s 1.20 x", shown)
    (mean,) = [line for line in shown.splitlines() if "fastest that both have" in line]
    assert "1.20 x" in mean
    assert "tutorial of A, flash of B" in mean


def test_records_that_share_no_kernel_have_no_fastest(tmp_path: Path) -> None:
    """There is no ratio of machines in it."""
    found = compared(
        tmp_path,
        (header(), [bench_row(each * 100.0, kernel=f"a{each}", noise=0) for each in (1, 2)]),
        (header(machine=H100), [bench_row(200.0, kernel="b2", noise=0)]),
    )
    assert "fastest" not in text_of(found)


def test_kernels_of_two_names_are_both_named_in_their_mean(tmp_path: Path) -> None:
    """Where either record has one kernel of an op, the ratio is of these two."""
    found = compared(
        tmp_path,
        (header(), [bench_row(100.0, kernel="mine", noise=0)]),
        (header(machine=H100), [bench_row(200.0, kernel="theirs", noise=0)]),
    )
    assert "layer_norm_backward mine beside theirs  0.500 x" in text_of(found)


def test_rows_timed_beside_other_work_are_counted(tmp_path: Path) -> None:
    """Beside the ratios, which have no verdict that could be ambiguous."""
    marked = bench_row(codes=("shared GPU",))
    shown = text_of(compared(tmp_path, (header(), [bench_row()]), (header(machine=H100), [marked])))
    assert "B: H100 80GB HBM3: 1 row timed beside other work" in shown
    assert shown.count("beside other work") == 1


def test_geometric_mean_has_a_t_interval_over_cases() -> None:
    """2, 2 and 16 by hand: 4 in the middle, t of two degrees of freedom 4.303; one has none."""
    mean = geometric_mean([2.0, 2.0, 16.0])
    assert mean.value == pytest.approx(4.0)
    assert mean.interval is not None
    reach = 4.30265 * statistics.stdev(map(math.log, (2, 2, 16))) / math.sqrt(3)
    low, high = mean.interval
    assert math.log(high) - math.log(4) == pytest.approx(reach, rel=1e-5)
    assert low * high == pytest.approx(16.0)
    assert geometric_mean([2.0]).interval is None


def test_kernels_of_one_case_count_as_one_case(tmp_path: Path) -> None:
    """Ten kernels on one case are no ten cases: the mean has no interval."""
    rows = [bench_row(100.0, kernel=f"kernel{number}") for number in range(10)]
    shown = text_of(compared(tmp_path, (header(), rows), (header(machine=H100), rows)))
    (line,) = [each for each in shown.splitlines() if "all rows" in each]
    assert line.split()[-3:] == ["one", "case", "1"]


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        (H100, "NVIDIA H200 and NVIDIA H100 80GB HBM3"),
        (H200 | {"multiprocessors": 16}, "NVIDIA H200 with 132 and 16 SMs"),
        (H200 | {"power_limit_w": 500.0}, "NVIDIA H200 held to 700 W and 500 W"),
    ],
)
def test_model_is_name_sms_and_power_limit(
    tmp_path: Path, machine: dict[str, Any], why: str
) -> None:
    """A card that is cut in parts, or held to less power, is another machine."""
    found = compared(
        tmp_path, (header(), [bench_row()]), (header(machine=machine), [bench_row(200.0)])
    )
    assert found.rows == []
    assert f"another machine: {why}" in text_of(found)


@pytest.mark.parametrize(
    ("machine", "slower"),
    [(H200, True), (H200 | {"gpu_uuid": "GPU-9999"}, False), (H200 | {"gpu_uuid": None}, False)],
)
def test_two_boards_of_a_model_tell_less(
    tmp_path: Path, machine: dict[str, Any], *, slower: bool
) -> None:
    """3 % on one card is the kernel's; between two cards, or where none is told, it isn't."""
    found = compared(
        tmp_path, (header(), [bench_row()]), (header(machine=machine), [bench_row(103.0)])
    )
    (only,) = found.rows
    assert only.judgement.verdict is (SpeedVerdict.SLOWER if slower else SpeedVerdict.SAME)
    assert ("two boards: cards of one model differ" in text_of(found)) is not slower


def test_cards_that_arent_told_arent_one(tmp_path: Path) -> None:
    """Two records without a UUID, of one host: it may have eight such cards."""
    unknown = H200 | {"gpu_uuid": None}
    found = compared(
        tmp_path,
        (header(machine=unknown), [bench_row()]),
        (header(machine=unknown), [bench_row(103.0)]),
    )
    assert [each.judgement.verdict for each in found.rows] == [SpeedVerdict.SAME]


@pytest.mark.parametrize(
    ("told_us", "verdict", "note"),
    [
        ((2.91, 1.28), SpeedVerdict.SAME, "1.28 us on B's: changes are without the difference"),
        ((2.91, None), SpeedVerdict.SAME, "2.5 us of a time: so much less or more is the same"),
        ((2.91, 2.93), SpeedVerdict.FASTER, ""),
        ((2.91, math.nan), SpeedVerdict.SAME, "doesn't tell"),
        ((2.91, 1e9), SpeedVerdict.SAME, "doesn't tell"),
    ],
)
def test_what_an_empty_call_takes_is_the_machines(
    tmp_path: Path, told_us: tuple[float | None, ...], verdict: SpeedVerdict, note: str
) -> None:
    """A call of 12 us takes 1.6 less on another machine, as an empty one does."""
    headers = [
        header(machine=H200 | {"gpu_uuid": f"GPU-{place}"}, empty_call_us=told)
        for place, told in enumerate(told_us)
    ]
    rows: list[Row] = [bench_row(each, noise=0.001) for each in (12.0, 10.37)]
    found = compared(tmp_path, (headers[0], rows[:1]), (headers[1], rows[1:]))
    (held,) = found.rows
    assert held.judgement.verdict is verdict
    shown = " ".join(text_of(found).split())
    assert note in shown
    assert bool(note) is ("empty call" in shown)


def test_empty_call_of_a_cpu_is_noise(tmp_path: Path) -> None:
    """Nothing is taken away there: calls that take the same are the same."""
    cpu = {"device": "cpu", "device_name": "Example CPU"}
    sides = [header(machine=cpu, empty_call_us=each) for each in (3.6, 2.7)]
    rows: list[Row] = [bench_row(10.0, noise=0.001, mhz=0) for _ in sides]
    found = compared(tmp_path, *((each, [row]) for each, row in zip(sides, rows, strict=True)))
    (held,) = found.rows
    assert held.judgement.change == 0.0
    assert "empty call" not in text_of(found)


def test_machines_of_two_generations_tell_what_an_empty_call_takes(tmp_path: Path) -> None:
    """Beside ratios of short calls, which it is part of."""
    sides = (header(empty_call_us=2.9), header(machine=A100, empty_call_us=1.7))
    found = compared(tmp_path, *((each, [bench_row(10.0)]) for each in sides))
    shown = " ".join(text_of(found).split())
    assert "an empty call takes 2.90 us, part of every time" in shown
    assert "an empty call takes 1.70 us, part of every time" in shown


def test_energy_of_two_boards_is_within_seven_per_cent_at_best(tmp_path: Path) -> None:
    """The same energy but for 4 % is MORE on one board, and open on two."""
    other_board = H200 | {"gpu_uuid": "GPU-9999"}
    rows = [profile_row(0.050)], [profile_row(0.052)]
    one = compared(tmp_path, *((header("profile"), list(each)) for each in rows))
    assert "1.04 x +-0.01 MORE" in text_of(one)
    assert "one board" in text_of(one)
    two_boards = compared(
        tmp_path / "two",
        (header("profile"), [*rows[0]]),
        (header("profile", machine=other_board), [*rows[1]]),
    )
    assert "1.04 x +-0.07 OPEN" in text_of(two_boards)
    assert "+-7 % before" in text_of(two_boards)


def test_weighted_total_of_energy_is_of_the_same_inputs(tmp_path: Path) -> None:
    """Three calls of 50 mJ and one of 20 make 170; zeros, and a row without a weight, stay out."""
    rows: list[list[Row]] = [
        [
            profile_row(f * 0.050, weight=3.0),
            profile_row(f * 0.020, weight=1.0, case=case(m=1)),
            profile_row(f * 0.030, weight=3.0, distribution="zeros"),
            profile_row(f * 0.900, case=case(m=2)),
        ]
        for f in (1.0, 1.5)
    ]
    shown = text_of(compared(tmp_path, *((header("profile"), each) for each in rows)))
    normal, zeros = (line for line in shown.splitlines() if "+50.0 %" in line)
    assert {"170.0", "255.0", "2"} <= set(normal.split())
    assert {"90.0", "135.0", "1", "zeros"} <= set(zeros.split())


def test_energy_that_is_missing_is_refused_with_its_reason(tmp_path: Path) -> None:
    """Neither zero nor a blank: the record's own reason."""
    missing = profile_row(1.0, energy_j=None, missing={"energy_j": "not supported: no counter"})
    found = compared(
        tmp_path,
        (header("profile"), [profile_row(), profile_row(case=case(m=1))]),
        (header("profile"), [missing, profile_row(case=case(m=1), validity="invalid")]),
    )
    shown = text_of(found, 300)
    assert "no energy in B (measured): not supported: no counter" in shown
    assert "its windows in B aren't valid" in shown


def test_kernel_of_a_part_is_no_cases_fastest_on_any_machine(tmp_path: Path) -> None:
    """It is told of by name, and held against itself alone."""
    part = KernelInfo(
        op="layer_norm_backward",
        name="quick",
        origin="user",
        priority=0,
        path="mine.py",
        numerics={},
        returns=("dx",),
        left_out=("dweight", "dbias"),
    )
    sides = [
        (
            header(machine=machine, kernels=(part,)),
            [bench_row(100.0 * factor, noise=0), bench_row(10.0, noise=0, kernel="quick")],
        )
        for machine, factor in ((H200, 1.0), (H100, 2.0))
    ]
    shown = " ".join(text_of(compared(tmp_path, *sides)).split())
    assert "in B quick computes dx alone; dweight and dbias aren't judged" in shown
    fastest = shown.partition("The fastest of the kernels")[2].partition("Time of a call")[0]
    assert "row_persistent" in fastest
    assert "quick" not in fastest
    assert "layer_norm_backward quick 1.00 x" in shown
