"""Plugs the accuracy session into pytest."""

from __future__ import annotations

import pytest

from suites.accuracy.session import SESSION, AccuracySession


def pytest_configure(config: pytest.Config) -> None:
    """Start a session: it writes the record, shows the progress and prints the report."""
    session = AccuracySession(config)
    config.stash[SESSION] = session
    config.pluginmanager.register(session, "accuracy-session")


@pytest.fixture
def accuracy(request: pytest.FixtureRequest) -> AccuracySession:
    """The session that a test belongs to."""
    return request.config.stash[SESSION]
