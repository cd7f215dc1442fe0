"""The explained and the unexplained part of a difference between two ways of timing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import torch
import triton.testing

from kernel_workbench.kernels.registry import all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.record import BenchRow
from kernel_workbench.suites.bench.figures import Roofs
from studies import timing_agreement
from studies.timing_agreement import Beside, Otherwise
from tests.builders.bench_records import norm_case


def _row(median_us: float | None) -> BenchRow:
    return BenchRow(
        op="layer_norm_backward",
        kernel="k",
        case=norm_case(16384, 1024),
        status="failed" if median_us is None else "timed",
        median_us=median_us,
    )


def _beside(rows: list[BenchRow], others: list[Otherwise]) -> Beside:
    nobody: Any = SimpleNamespace(name="k", id=lambda name: f"op-{name}")
    return Beside(0, nobody, nobody, rows, others)


def _graphs(*times_us: float, saves_us: float = 0.0) -> list[Otherwise]:
    return [Otherwise(each, "graph replay", saves_us) for each in times_us]


def test_what_a_graph_saves_is_taken_away_as_measured() -> None:
    """1.3 us of 31.7 are two kernels in a graph: what the suite makes of it is the same."""
    raw, left = _beside([_row(31.7)], _graphs(30.46, saves_us=1.3)).left()
    assert raw == pytest.approx(0.0407, abs=1e-4)
    assert left == pytest.approx(-0.0020, abs=1e-4)
    # It explains as much as it is and no more, also of a call that is slower in its graph.
    assert _beside([_row(33.0)], _graphs(30.46, saves_us=1.3)).left()[1] > 0.04
    assert _beside([_row(15.5)], _graphs(16.0, saves_us=-0.5)).left()[1] == pytest.approx(0.0)
    assert _beside([_row(15.5)], _graphs(15.5, saves_us=-0.5)).left()[1] > 0.03


def test_nothing_explains_a_difference_from_do_bench() -> None:
    """Neither the gaps between kernels, which are in its times too, nor a clock."""
    others = [Otherwise(1060.0, "do_bench", without_pauses_us=1000.0)]
    for median_us, expected in ((1000.0, -0.0566), (1120.0, 0.0566)):
        left = _beside([_row(median_us)], others).left()
        assert left == pytest.approx((expected, expected), abs=1e-4)


def test_processes_that_meet_are_no_difference() -> None:
    """H200, torch_flash at s 197: 12.22 us in one process and 12.74 in another, of a graph."""
    rows = [_row(12.83), _row(12.67), _row(12.91)]
    met = _beside(rows, _graphs(12.22, 12.74, 12.20))
    assert met.left() == pytest.approx((12.83 / 12.22 - 1.0, 0.0))
    assert met.spread() == pytest.approx(12.74 / 12.20 - 1.0)
    assert met.other_us == 12.22
    # Where no process of one comes near one of the other, the nearest two are what is left.
    assert _beside(rows, _graphs(12.22, 12.30, 12.20)).left()[1] == pytest.approx(12.67 / 12.3 - 1)
    assert _beside(rows, _graphs(13.40, 13.30, 13.50)).left()[1] == pytest.approx(12.91 / 13.3 - 1)


def test_long_calls_and_calls_without_a_figure_have_one_process() -> None:
    """And the table says what a call without a figure was refused for."""
    assert _beside([], []).goes_on
    assert _beside([_row(900.0)], _graphs(900.0)).goes_on
    assert not _beside([_row(1_100.0)], [Otherwise(1_100.0, "do_bench")]).goes_on
    assert not _beside([_row(None)], []).goes_on
    alike = _beside([_row(900.0), _row(902.0)], _graphs(900.0, 901.0))
    # Timed by one process of two: no figure, whatever the other said.
    half = _beside([_row(900.0), _row(None)], _graphs(900.0))
    table, agreed, apart = timing_agreement._table([alike, half, _beside([_row(None)], [])])
    assert (table.row_count, agreed, apart) == (3, 1, 2)


def test_calls_are_timed_by_the_suite_and_then_in_a_process_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that the suite has no time of isn't asked of the other."""
    pool = MagicMock()
    submit = pool.return_value.__enter__.return_value.submit
    submit.return_value.result.return_value = _graphs(5.0)
    monkeypatch.setattr(timing_agreement, "ProcessPoolExecutor", pool)
    monkeypatch.setattr(timing_agreement, "_ROW_S", 0.1)
    op, sizes = OPS["layer_norm_backward"], (("m", 48), ("n", 96))
    case = Case(op=op.name, sizes=sizes, dtype=torch.float32, weight_dtype=torch.float32)
    named = {each.name: each for each in all_kernels() if each.op.name == op.name}
    calls = [Beside(3, named["row_persistent"], case), Beside(5, named["torch_eager"], case)]
    ground = Mock(roofs=Roofs("cpu", 2**25, None, ()), default_clock_mhz=None, flush_us=None)
    assert list(timing_agreement._time(calls, torch.device("cpu"), 90, ground)) == calls
    refused, timed = calls
    assert (refused.suite_us, refused.alternatives, refused.goes_on) == (None, [], False)
    assert timed.suite_us is not None
    assert timed.alternatives == _graphs(5.0)
    submit.assert_called_once_with(timing_agreement._timed_otherwise, [(5, timed.suite_us)], 90)


def test_do_bench_is_given_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figure is of bursts; the one beside it of do_bench as it is."""
    asked = []

    def do_bench(call: Callable[[], object], **options: object) -> float:
        call()
        asked.append(options)
        return 3.4 if len(asked) == 1 else 3.2

    monkeypatch.setattr(triton.testing, "do_bench", do_bench)
    monkeypatch.setattr(timing_agreement, "_PAUSE_S", 0.0)
    kernel: Any = SimpleNamespace(op=SimpleNamespace(inputs=lambda *_: {}), function=lambda: None)
    case: Any = SimpleNamespace()
    found = timing_agreement._other(kernel, case, 3_300.0)
    assert found.by == "do_bench"
    assert found.time_us == pytest.approx(3200.0)
    assert found.without_pauses_us == pytest.approx(3400.0)
    assert asked[0] == {"return_mode": "median"}
    assert asked[1:] == [{"return_mode": "median", "warmup": 0, "rep": 0}] * 15
