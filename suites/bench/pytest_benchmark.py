"""Connect pytest-benchmark to the device's times: its clock, its saved runs and its tables.

pytest-benchmark times a function on the host. Here the function advances a clock by one sample that
a worker took on the device, so the statistics, JSON and comparisons are of these samples.

A missing saved run is refused at the start: pytest-benchmark itself only warns, at the start or at
the end, and warnings are errors here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NoReturn

import pytest
from pytest_benchmark.session import PerformanceRegression
from pytest_benchmark.utils import get_machine_id, load_storage

_GROUPS = frozenset(
    ("group", "name", "func", "fullname", "fullfunc", "param", "param:kernel", "param:case")
)


class DeviceClock:
    """Seconds of device time since the test began."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._samples: Iterator[float] = iter(())

    def __call__(self) -> float:
        """Return the time that pytest-benchmark reads before and after each round."""
        return self._seconds

    def load(self, times_us: Sequence[float]) -> None:
        """Set the samples of the next steps."""
        self._seconds = 0.0  # restart for each test: a sum of hours would round microseconds
        self._samples = iter(times_us)

    def step(self) -> None:
        """Advance by one sample."""
        self._seconds += 1e-6 * next(self._samples)


CLOCK = DeviceClock()


class _Refusing:
    """The logger of a storage, which treats an unreadable file as the user's mistake."""

    def warning(self, text: str) -> NoReturn:
        """Raise UsageError."""
        raise pytest.UsageError(f"--benchmark-compare: {text}")


def check_saved_runs(config: pytest.Config) -> None:
    """Refuse options of pytest-benchmark that can't work. Raises UsageError, in one sentence."""
    for group in str(config.getoption("benchmark_group_by")).split(","):
        if group not in _GROUPS:
            raise pytest.UsageError(
                f"--benchmark-group-by {group}: there is no such group; there are "
                f"{', '.join(sorted(_GROUPS))}"
            )
    if config.getoption("benchmark_histogram") and not (
        find_spec("pygal") and find_spec("pygaljs")
    ):
        raise pytest.UsageError("--benchmark-histogram: it needs pip install pygal pygaljs")
    wanted = config.getoption("benchmark_compare")
    where = config.getoption("benchmark_storage")
    if not wanted and where.startswith("file:"):
        return
    try:
        storage = load_storage(  # type: ignore[no-untyped-call]
            where,
            logger=_Refusing(),
            default_machine_id=get_machine_id(),  # type: ignore[no-untyped-call]
            netrc=config.getoption("benchmark_netrc"),
        )
        if wanted and not list(storage.load(*(() if wanted is True else (wanted,)))):
            missing = "no run" if wanted is True else f"no run that {wanted} names"
            raise pytest.UsageError(
                f"--benchmark-compare: {missing} is saved in {storage}; "
                "--benchmark-autosave saves one"
            )
    except argparse.ArgumentTypeError as error:
        raise pytest.UsageError(f"--benchmark-storage {where}: {error}") from error
    except (ValueError, OSError) as error:
        raise pytest.UsageError(f"--benchmark-compare: {error}") from error


def tell_of_another_machine(now: Mapping[str, Any], then: Mapping[str, Any]) -> None:
    """Print a sentence if a saved run isn't of this machine with its present settings."""
    before, here = then.get("device") or {}, now.get("device") or {}
    apart = [name for name in (*here, *before) if here.get(name) != before.get(name)]
    if apart:
        name = apart[0]
        print(
            f"bench: the saved run isn't of this machine ({name} was {before.get(name)} and is "
            f"{here.get(name)}), so its times differ by more than the code",
            file=sys.stderr,
        )


def save_nothing(config: pytest.Config) -> None:
    """Disable pytest-benchmark's saving, because it would warn that there is nothing to save."""
    tables = config.pluginmanager.get_plugin("pytest-benchmark")
    if tables is not None:
        tables.disabled = True


def show_tables(config: pytest.Config) -> bool:
    """Show the tables of pytest-benchmark, if requested; return False if a row got too slow.

    In pytest's summary, a row that got too slow would end in a traceback.
    """
    tables = config.pluginmanager.get_plugin("pytest-benchmark")
    if tables is None:
        return True
    try:
        tables.display(config.pluginmanager.get_plugin("terminalreporter"))
    except PerformanceRegression:  # already reported
        return False
    finally:
        tables.groups = None  # already shown
    return True
