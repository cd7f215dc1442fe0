"""Plugs the power session into pytest."""

from __future__ import annotations

import pytest

from suites.power.session import SESSION, PowerSession


def pytest_configure(config: pytest.Config) -> None:
    """Start a session: it writes the record and shows the progress."""
    session = PowerSession(config)
    config.stash[SESSION] = session
    config.pluginmanager.register(session, "power-session")


@pytest.fixture
def power(request: pytest.FixtureRequest) -> PowerSession:
    """The session that a test belongs to."""
    return request.config.stash[SESSION]
