"""What of a difference between two ways of timing is explained, and what isn't."""

from __future__ import annotations

import pytest

from reports.example_bench import norm_case
from reports.schema import BenchRow
from suites.throughput.agreement import Otherwise


def _row(median_us: float, launches: int = 1, clock_mhz: float | None = 1980.0) -> BenchRow:
    return BenchRow(
        op="layer_norm_backward",
        kernel="k",
        case=norm_case(16384, 1024),
        status="timed",
        median_us=median_us,
        clock_mhz=clock_mhz,
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


def test_clock_explains_a_slower_loop_and_nothing_else_does() -> None:
    """The same cycles at a lower clock are no difference; more cycles are one."""
    slower = Otherwise(1000.0 * 1980 / 1860, "do_bench", 1000.0 * 1980)
    raw, left = slower.left(_row(1000.0))
    assert raw == pytest.approx(-0.0606, abs=1e-4)
    assert left == pytest.approx(0.0, abs=1e-12)
    for cycles in (1060.0 * 1980, None):
        same = Otherwise(1060.0, "do_bench", cycles)
        assert same.left(_row(1000.0))[1] == pytest.approx(-0.0566, abs=1e-4)
