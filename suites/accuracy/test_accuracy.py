"""The suite: every kernel on every case that its domain holds."""

from __future__ import annotations

import pytest

from kernel_workbench.reports.record import AccuracyRow
from kernel_workbench.suites.run.session import Session


def test_kernel_is_within_its_bound_of_the_truth(
    kernel: str, case: str, workbench: Session[AccuracyRow], request: pytest.FixtureRequest
) -> None:
    """Outputs are written, finite where they must be, within both bounds, and repeat bitwise."""
    workbench.measure(kernel, case, request)
