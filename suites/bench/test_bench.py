"""The suite: every kernel on every case that is timed."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kernel_workbench.reports.record import BenchRow
from kernel_workbench.suites.bench.pytest_benchmark import CLOCK
from kernel_workbench.suites.run.session import Session

pytestmark = pytest.mark.benchmark(timer=CLOCK, warmup=False)


def test_kernel_is_timed(
    kernel: str,
    case: str,
    workbench: Session[BenchRow],
    benchmark: BenchmarkFixture,
    request: pytest.FixtureRequest,
) -> None:
    """A right kernel gets a figure that no roof and no clock of the suite contradicts."""
    (row,) = workbench.measure(kernel, case, request)
    if row.status == "timed":
        (process,) = row.processes
        CLOCK.load(process.times_us)
        benchmark.group = case
        benchmark.extra_info.update(_figures(row))
        rounds = len(process.times_us)
        benchmark.pedantic(CLOCK.step, rounds=rounds, iterations=1)  # type: ignore[no-untyped-call]


def _figures(row: BenchRow) -> dict[str, object]:
    """Return a row's fields without its samples, which pytest-benchmark summarises."""
    return row.model_dump(
        exclude={"processes", "kind", "reason", "reproduce", "source", "weight"}, exclude_none=True
    )
