"""The suite: each kernel's accuracy first; right kernels are then looped, all rows in turn."""

from __future__ import annotations

import pytest

from kernel_workbench.reports.record import ProfileRow
from kernel_workbench.suites.run.session import Session


def test_kernel_is_right_before_its_energy_is_measured(
    kernel: str, case: str, workbench: Session[ProfileRow], request: pytest.FixtureRequest
) -> None:
    """A kernel whose accuracy fails on the case, or can't be judged, gets no figure."""
    workbench.measure(kernel, case, request)
