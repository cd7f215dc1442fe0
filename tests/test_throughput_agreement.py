"""What of a difference between two ways of timing is explained, and what isn't."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import triton.testing

from reports.example_bench import norm_case
from reports.schema import BenchRow
from suites.throughput import agreement
from suites.throughput.agreement import Otherwise


def _row(median_us: float, launches: int = 1) -> BenchRow:
    return BenchRow(
        op="layer_norm_backward",
        kernel="k",
        case=norm_case(16384, 1024),
        status="timed",
        median_us=median_us,
        launches=launches,
    )


def test_gap_between_kernels_explains_as_much_as_there_are_of_them() -> None:
    """1.9 us of 33.4 are two kernels outside a graph; with one kernel they are a difference."""
    graph = Otherwise(31.5, "graph replay")
    raw, left = graph.left(_row(33.4, launches=2))
    assert raw == pytest.approx(0.0603, abs=1e-4)
    assert left == 0.0
    assert graph.left(_row(33.4, launches=1))[1] == pytest.approx(0.0603, abs=1e-4)
    assert graph.left(_row(35.4, launches=2))[1] == pytest.approx(1.9 / 31.5)
    # Nothing explains a median below the graph's.
    assert graph.left(_row(30.0, launches=5))[1] == pytest.approx(30.0 / 31.5 - 1)


def test_nothing_explains_a_difference_from_do_bench() -> None:
    """Neither the gaps of several kernels, which are in its times too, nor a clock."""
    other = Otherwise(1060.0, "do_bench", without_pauses_us=1000.0)
    assert other.left(_row(1000.0, launches=20)) == pytest.approx((-0.0566, -0.0566), abs=1e-4)
    assert other.left(_row(1120.0, launches=20)) == pytest.approx((0.0566, 0.0566), abs=1e-4)


def test_do_bench_is_given_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figure is of bursts; the one beside it of do_bench as it is."""
    asked = []

    def do_bench(call: Callable[[], object], **options: object) -> float:
        call()
        asked.append(options)
        return 3.4 if len(asked) == 1 else 3.2

    monkeypatch.setattr(triton.testing, "do_bench", do_bench)
    monkeypatch.setattr(agreement, "_PAUSE_S", 0.0)
    kernel: Any = SimpleNamespace(op=SimpleNamespace(inputs=lambda *_: {}), function=lambda: None)
    case: Any = SimpleNamespace()
    found = agreement._timed_here(kernel, case, 3_300.0)
    assert found.by == "do_bench"
    assert found.time_us == pytest.approx(3200.0)
    assert found.without_pauses_us == pytest.approx(3400.0)
    assert asked[0] == {"return_mode": "median"}
    assert asked[1:] == [{"return_mode": "median", "warmup": 0, "rep": 0}] * 15
