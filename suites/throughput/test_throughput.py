"""The suite: every kernel on every case that is timed."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from reports.schema import BenchRow
from suites.accuracy.run import DeviceLostError
from suites.throughput.clock import CLOCK
from suites.throughput.session import SESSION, ThroughputSession

pytestmark = pytest.mark.benchmark(timer=CLOCK, warmup=False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each pair, case by case, so that a case's truth is computed once."""
    planned = metafunc.config.stash[SESSION].pairs.planned
    pairs = [
        pytest.param(kernel.name, case.id(), id=case.id(kernel.name)) for kernel, case in planned
    ]
    metafunc.parametrize(("kernel", "case"), pairs)


def test_kernel_is_timed(
    kernel: str,
    case: str,
    throughput: ThroughputSession,
    benchmark: BenchmarkFixture,
    request: pytest.FixtureRequest,
) -> None:
    """A kernel that is right has a figure, which no roof and no clock of the suite's denies."""
    assert throughput.bench is not None
    pair = throughput.pairs.named(kernel, case)
    try:
        row = throughput.bench.row(*pair)
    except DeviceLostError as error:
        row = error.args[0]
        assert isinstance(row, BenchRow)
        throughput.add(row)
        throughput.interrupted = True
        pytest.exit(f"{kernel} on {case}: {row.reason}; the GPU is lost to this process")
    throughput.add(row)
    if row.status == "timed":
        (process,) = row.processes
        CLOCK.load(process.times_us)
        benchmark.group = case
        benchmark.extra_info.update(_figures(row))
        rounds = len(process.times_us)
        benchmark.pedantic(CLOCK.step, rounds=rounds, iterations=1)  # type: ignore[no-untyped-call]
        return
    request.node.user_properties.append(("judged", True))
    if row.gates and row.status != "refused":
        pytest.fail(f"{row.status}: {row.reason}", pytrace=False)
    pytest.xfail(f"no figure, which doesn't gate: {row.status}")


def _figures(row: BenchRow) -> dict[str, object]:
    """What a row has beside its samples, which the statistics are of."""
    return row.model_dump(
        exclude={"processes", "kind", "reason", "reproduce", "source", "weight"}, exclude_none=True
    )
