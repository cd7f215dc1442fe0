"""Plug the suite into pytest."""

from __future__ import annotations

import pytest

from kernel_workbench.suites.profile.suite import Profile
from kernel_workbench.suites.run.session import start


def pytest_configure(config: pytest.Config) -> None:
    """Start a session: it writes the record, shows the progress and prints the report."""
    start(config, Profile)
