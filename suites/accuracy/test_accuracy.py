"""The suite: every kernel on every case that its domain holds."""

from __future__ import annotations

import traceback

import pytest
import torch

from kernels.registry import Kernel
from oracles.op import Case
from reports.schema import AccuracyRow
from suites.accuracy.run import DeviceLostError
from suites.accuracy.session import SESSION, AccuracySession
from suites.selection import alike_together


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each pair, case by case, so that a case's truth is computed once."""
    session = metafunc.config.stash[SESSION]
    kernels = alike_together(session.kernels)
    pairs = [
        pytest.param(kernel, case, id=case.id(kernel.name))
        for case in session.cases
        if session.share is None or case.id() in session.share
        for kernel in kernels
        if kernel.op.name == case.op
    ]
    metafunc.parametrize(("kernel", "case"), pairs)


def test_kernel_is_within_its_bound_of_the_truth(
    kernel: Kernel, case: Case, accuracy: AccuracySession, request: pytest.FixtureRequest
) -> None:
    """Outputs are written, finite where they must be, within both bounds, and repeat bitwise."""
    try:
        row = accuracy.run.try_pair(kernel, case)
    except DeviceLostError as error:
        row = error.args[0]
        assert isinstance(row, AccuracyRow)
        accuracy.add(row)
        accuracy.interrupted = True
        pytest.exit(f"{kernel.name} on {case.id()}: {row.reason}; the GPU is lost to this process")
    except torch.OutOfMemoryError as error:
        # The judge's own. Whoever keeps the error keeps its frames, and with them what they hold.
        traceback.clear_frames(error.__traceback__)
        text = " ".join(str(error).split())[:300]
        pytest.fail(f"truth and bounds don't fit into the GPU's memory: {text}", pytrace=False)
    accuracy.add(row)
    if row.status == "failed":
        request.node.user_properties.append(("judged", True))
        if row.gates:
            pytest.fail(f"{row.rule}: {row.reason}", pytrace=False)
        pytest.xfail(f"a baseline, which doesn't gate: {row.rule}")
