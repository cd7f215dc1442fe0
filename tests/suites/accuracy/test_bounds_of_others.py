"""A baseline that is timed needs no bounds of its own where it keeps another kernel's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.layer_norm.cases import layer_norm_case
from kernel_workbench.oracles.op import Bound, Numerics
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.accuracy.truth import CaseValues
from kernel_workbench.suites.sandbox.judge_side.workers import Workers

CASE = layer_norm_case(48, 96, (torch.float32, torch.float32))
_OTHER = Numerics(key_tile=16)  # no kernel declares it


@pytest.fixture(scope="module")
def workers(device: torch.device) -> Iterator[Workers]:
    """Start workers that call baselines."""
    started = Workers(device, 90, strict=False)
    yield started
    started.close()


def _baseline() -> Kernel:
    named = (kernel for kernel in all_kernels() if kernel.name == "torch_eager")
    return next(kernel for kernel in named if kernel.op is LAYER_NORM_BACKWARD)


def _run_with_bounds(workers: Workers, device: torch.device, *, factor: float) -> Run:
    """Return a run whose case has a kernel's bounds already, times a factor."""
    kernel, run = _baseline(), Run(device, 90, workers=workers, two_calls_alone=True)
    run._of_no_baseline.add(_OTHER)
    run.parcel(kernel, CASE)
    values = run._values
    assert isinstance(values, CaseValues)
    own = values.bounds_of(kernel)
    values.bounds = {
        _OTHER: {
            name: Bound(factor * bound.deterministic, None, or_nan=bound.or_nan)
            for name, bound in own.items()
        }
    }
    return run


def test_baseline_that_keeps_them_gets_none_of_its_own(
    workers: Workers, device: torch.device
) -> None:
    """Its errors are compared with the bounds that are there."""
    run = _run_with_bounds(workers, device, factor=1.0)
    row = run.try_pair(_baseline(), CASE)
    assert (row.status, row.reason) == ("passed", None)
    assert run._values is not None
    assert list(run._values.bounds) == [_OTHER]


def test_baseline_that_breaks_them_is_judged_by_its_own(
    workers: Workers, device: torch.device
) -> None:
    """Bounds of 0 are those of no sound kernel."""
    run = _run_with_bounds(workers, device, factor=0.0)
    row = run.try_pair(_baseline(), CASE)
    assert (row.status, row.reason) == ("passed", None)
    assert run._values is not None
    assert _baseline().numerics.of_bounds in run._values.bounds


@pytest.mark.parametrize("factor", [0.0, 1.0])
def test_outputs_that_break_both_are_wrong(
    factor: float, workers: Workers, device: torch.device
) -> None:
    """In a later call, whose outputs lie on the run's device; a small case's truth is elsewhere."""
    run = _run_with_bounds(workers, device, factor=factor)
    kernel = _baseline()
    assert run.try_pair(kernel, CASE).status == "passed"
    assert run._values is not None and run._values.judged is not None
    right = {name: x.to(device) for name, x in run._values.judged[1].outputs.items()}
    assert run.confirm(kernel, CASE, right) is None
    problem = run.confirm(kernel, CASE, right | {"dx": 2 * right["dx"]})
    assert problem is not None
    assert problem.startswith("deterministic bound")


def test_kernel_that_is_no_baseline_has_its_own(workers: Workers, device: torch.device) -> None:
    """A kernel that is measured for itself is judged as in the accuracy suite."""
    run = _run_with_bounds(workers, device, factor=1.0)
    kernel = replace(_baseline(), origin="ours")
    assert run._values is not None
    run.judged_by(kernel, run._values)
    assert kernel.numerics.of_bounds in run._values.bounds


def test_baseline_is_never_judged_by_another_baselines(
    workers: Workers, device: torch.device
) -> None:
    """Another baseline may have wide ones."""
    run = _run_with_bounds(workers, device, factor=1e6)
    run._of_no_baseline.clear()
    assert run.try_pair(_baseline(), CASE).status == "passed"
    assert run._values is not None
    assert _baseline().numerics.of_bounds in run._values.bounds
