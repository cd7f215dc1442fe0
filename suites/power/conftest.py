"""Plugs the power session into pytest."""

from __future__ import annotations

import pytest

from suites.power.cases import DISTRIBUTIONS
from suites.power.session import SESSION, PowerSession


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare what only this suite asks for."""
    group = parser.getgroup("workbench", "kernel-workbench")
    group.addoption(
        "--window",
        type=float,
        default=5.0,
        metavar="S",
        help="seconds of a trial, of which the first is dropped (default 5)",
    )
    group.addoption(
        "--trials",
        type=int,
        default=4,
        metavar="N",
        help="of each row (default 4); one less of what stands beside it on other inputs",
    )
    group.addoption(
        "--distribution",
        action="append",
        choices=DISTRIBUTIONS,
        default=[],
        help="what operands hold; may be repeated; by default normal, and zeros beside it where "
        "arithmetic is most of the work",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Start a session: it writes the record and shows the progress."""
    if config.getoption("help"):
        return  # which is for those without a GPU too
    session = PowerSession(config)
    config.stash[SESSION] = session
    config.pluginmanager.register(session, "power-session")


@pytest.fixture
def power(request: pytest.FixtureRequest) -> PowerSession:
    """The session that a test belongs to."""
    return request.config.stash[SESSION]
