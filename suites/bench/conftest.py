"""Register the suite with pytest, and the device's clock with pytest-benchmark."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_workbench.suites.bench.against import run_against
from kernel_workbench.suites.bench.gpus import run_on_gpus
from kernel_workbench.suites.bench.pytest_benchmark import (
    check_saved_runs,
    save_nothing,
    show_tables,
    tell_of_another_machine,
)
from kernel_workbench.suites.bench.rounds import run_rounds
from kernel_workbench.suites.bench.suite import BenchSuite
from kernel_workbench.suites.run.exit_status import keep_what_ran
from kernel_workbench.suites.run.option_table import BenchOptions, options_from
from kernel_workbench.suites.run.options import DEVICE
from kernel_workbench.suites.run.session import SESSION, start

# Options that ask for pytest-benchmark's own table.
_TABLE = re.compile(r"--benchmark-(columns|sort|group-by|name|verbose|histogram|compare)")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Start several runs in processes of their own, for --gpus, --against or --rounds."""
    run = _several(config)
    if run is None:
        return None
    keep_what_ran()
    return run()


def _several(config: pytest.Config) -> Callable[[], int] | None:
    """Return a function that makes the several runs of an option, or None.

    --list and --collect-only list this tree once.
    """
    options = options_from(BenchOptions, config.option)
    if options.list or config.option.collectonly:
        return None
    if options.gpus is not None:
        return partial(run_on_gpus, config, options, options.gpus)
    if options.against is not None:
        return partial(run_against, config, options, options.against)
    if options.rounds not in (None, 1):
        return partial(run_rounds, config, options, options.rounds)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Start a session: it writes the record, shows the progress and prints the record's path."""
    if _several(config) is not None:
        return
    # A row without a figure, or an interrupted one, doesn't use the fixture.
    config.addinivalue_line("filterwarnings", "ignore:Benchmark fixture was not used")
    device = config.stash[DEVICE]
    arguments = list(map(str, config.invocation_params.args))
    if not any(map(_TABLE.match, arguments)):
        config.option.benchmark_quiet = True
    if not any(argument.startswith("--benchmark-storage") for argument in arguments):
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        folder = Path(config.getoption("--results")).resolve() / "benchmarks" / slug
        config.option.benchmark_storage = folder.as_uri()
    check_saved_runs(config)
    start(config, BenchSuite)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    """Save nothing if nothing was timed: pytest-benchmark would warn."""
    try:
        return (yield)
    finally:
        if _reason_of_none(session.config) is not None:
            save_nothing(session.config)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Show pytest-benchmark's tables: a row that got too slow for its options fails the run."""
    run = session.config.stash[SESSION]
    if run.record is not None:
        run.also_failed = not show_tables(session.config)
        if reason := _reason_of_none(session.config):
            print(f"bench: nothing was timed: {reason}", file=sys.stderr)


def _reason_of_none(config: pytest.Config) -> str | None:
    """Return the reason of the last row if no row has a figure, else None."""
    record = config.stash[SESSION].record
    rows = [] if record is None else record.rows
    if any(row.status == "timed" for row in rows):
        return None
    return str(rows[-1].reason) if rows else ""


def pytest_benchmark_update_machine_info(
    config: pytest.Config, machine_info: dict[str, Any]
) -> None:
    """Add the device: two GPUs in hosts of one kind are two machines."""
    machine_info["device"] = config.stash[SESSION].suite.machine.model_dump(
        include={
            "device_name",
            "sm",
            "multiprocessors",
            "driver",
            "cuda",
            "power_limit_w",
            "default_sm_clock_mhz",
        }
    )


@pytest.hookimpl(tryfirst=True)
def pytest_benchmark_compare_machine_info(
    machine_info: dict[str, Any], compared_benchmark: dict[str, Any]
) -> None:
    """Report a saved run of another machine; pytest-benchmark's warning would be an error."""
    tell_of_another_machine(machine_info, compared_benchmark["machine_info"])
    compared_benchmark["machine_info"] = machine_info
