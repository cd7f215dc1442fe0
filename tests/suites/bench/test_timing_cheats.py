"""Kernels that look fast: each loses its figure, or has the one that it deserves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from kernel_workbench.kernels.registry import all_kernels
from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.layer_norm.cases import layer_norm_case
from kernel_workbench.profiles.peaks import PEAKS
from kernel_workbench.reports.record import BenchRow, Roof
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.bench.figures import Roofs, past_belief
from kernel_workbench.suites.bench.judged_pass import TASK
from kernel_workbench.suites.bench.rows import Bench
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from tests import ROOT

pytestmark = pytest.mark.long_run

CHEATS = ROOT / "tests" / "candidates" / "timing_cheats"
CASE = layer_norm_case(48, 96, (torch.float32, torch.float32))
_CPU = torch.device("cpu")
_NO_ROOFS = Roofs("cpu", 2**25, None, ())


@contextmanager
def _bench(*files: str, roofs: Roofs = _NO_ROOFS) -> Iterator[Bench]:
    paths = tuple(CHEATS / f"{each}.py" for each in files)
    workers = Workers(_CPU, 90, strict=False, files=paths, tasks=(TASK,))
    run = Run(_CPU, 90, workers=workers, two_calls_alone=True)
    try:
        # On a warm cache: no test needs a flush of 128 MiB before each sample.
        yield Bench(run, workers, roofs, "warm", 0.1, None, 60.0, None)
    finally:
        workers.close()


def _row(name: str, roofs: Roofs = _NO_ROOFS) -> BenchRow:
    with _bench(name, roofs=roofs) as bench:
        (kernel,) = bench.workers.kernels()
        return bench.row(kernel, replace(CASE, op=kernel.op.name))


@pytest.mark.parametrize(
    "name",
    ["honest_for_the_sample", "half_of_the_sets", "softmax_by_address"],
)
def test_kernel_that_computes_only_for_what_is_judged_loses_the_figure(name: str) -> None:
    """Judged passes draw what is judged after the calls, on values that no call has met."""
    row = _row(name)
    assert row.status in ("wrong", "failed"), row.reason
    assert (row.accuracy, row.median_us) == ("passed", None)


def test_outputs_kept_by_address_lose_the_figure() -> None:
    """Samples use memory again, with other values in it."""
    row = _row("by_address")
    assert (row.status, row.accuracy, row.median_us) == ("wrong", "passed", None)
    assert row.reason is not None
    assert row.reason.startswith("its outputs were right before it was timed, and wrong while")


def test_outputs_kept_by_content_are_never_found_again() -> None:
    """Its figure is that of the work, three milliseconds."""
    row = _row("by_content")
    assert row.status == "timed", row.reason
    assert row.median_us is not None
    assert row.median_us > 3_000


def test_kernel_that_stops_computing_loses_the_figure() -> None:
    """It is right for as long as accuracy is judged."""
    row = _row("honest_at_first")
    assert (row.status, row.accuracy, row.processes) == ("wrong", "passed", ())


def test_library_that_is_called_when_it_counts_has_no_figure() -> None:
    """It is refused to every thread for as long as a kernel is timed, not in the check alone."""
    row = _row("library_when_timed")
    assert (row.status, row.accuracy, row.median_us) == ("failed", "passed", None)
    assert row.reason is not None
    assert row.reason.startswith("while it was timed, it raised")


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("computes_in_clone", "torch.Tensor.clone"),
        ("replaces_the_clock", "time.perf_counter"),
        ("replaces_the_suites_clock", "kernel_workbench.suites.bench.devices._now"),
    ],
)
def test_kernel_that_replaces_a_function_of_the_suites_has_no_figure(
    name: str, function: str
) -> None:
    """Its code is compared with that of before at the first call, where accuracy is judged."""
    row = _row(name)
    assert (row.status, row.median_us) == ("wrong", None)
    assert row.reason is not None
    assert f"replaced {function}" in row.reason


def test_kernel_that_ends_its_process_costs_its_own_row() -> None:
    """The next one is timed."""
    with _bench("dies_when_timed", "by_content") as bench:
        kernels = {each.name: each for each in bench.workers.kernels()}
        row = bench.row(kernels["dies_when_timed"], CASE)
        assert row.status == "failed"
        assert row.reason == "while it was timed, it ended its process, with status 0"
        assert bench.row(kernels["by_content"], CASE).status == "timed"


def test_figure_past_a_roof_is_not_given() -> None:
    """A datasheet of a GPU whose memory would be slower than the call was."""
    peak = min(PEAKS, key=lambda each: each.memory_gb_s)
    slow = Roofs("cuda", 0, peak, ())
    with _bench("by_content") as bench:
        (kernel,) = bench.workers.kernels()
    least_us = LAYER_NORM_BACKWARD.bytes(CASE) / peak.memory_gb_s * 1e-3
    assert past_belief(kernel, CASE, 1.01 * least_us, "cold", slow) is None
    told = past_belief(kernel, CASE, 0.99 * least_us, "cold", slow)
    assert told is not None
    assert f"past the datasheet's {peak.memory_gb_s:,.0f} GB/s" in told
    nearly_nothing = Roof(name="copy", value=1e-6, unit="GB/s", measured=True, source="a test")
    row = _row("by_content", Roofs("cpu", 0, None, (nearly_nothing,)))
    assert (row.status, row.median_us) == ("failed", None)
    assert row.reason is not None
    assert "3 x the highest seen here" in row.reason


@pytest.mark.parametrize("name", ["torch_eager", "torch_native_cpu"])
def test_honest_baseline_has_a_figure(name: str) -> None:
    """With samples, quartiles in their order, and the rule that stopped it."""
    with _bench() as bench:
        kernel = next(
            each for each in all_kernels() if each.name == name and each.op is LAYER_NORM_BACKWARD
        )
        row = bench.row(kernel, CASE)
    assert row.status == "timed", row.reason
    (process,) = row.processes
    assert len(process.times_us) >= 10
    assert process.stopped is not None
    assert row.low_us is not None and row.median_us is not None and row.high_us is not None
    assert row.first_quartile_us is not None and row.third_quartile_us is not None
    assert row.first_quartile_us <= row.median_us <= row.third_quartile_us
    assert row.low_us <= row.median_us <= row.high_us
    assert row.clock_mhz is None and row.clock_reason is not None
