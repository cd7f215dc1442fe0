"""Shared setup of the tests: the interpreter is right and strict before any kernel is launched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernel_workbench.kernels import registry
from kernel_workbench.oracles import OPS
from kernel_workbench.reports import commands
from kernel_workbench.suites.interpreter import repairs, strict
from kernel_workbench.suites.run.commands import FOLDER
from kernel_workbench.suites.run.options import DEVICE
from kernel_workbench.suites.sandbox.judge_side import detached, worker_process
from tests.builders.python_server import ForkingPopen


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the environment of the runs that tests start, and decide about long runs.

    pytest-benchmark measures nothing in a process that pytest-xdist started, and a shell's
    background jobs ignore Ctrl-C. Reports name the program that the user called, and paths as
    seen from the user's folder: the tests expect the command's, also where nox started them.

    Every test runs that the command line selects; a process of pytest-xdist gets the answer.
    """
    option = config.option
    selected = option.keyword or option.markexpr or getattr(option, "lf", False)
    by_path = config.args_source is config.ArgsSource.ARGS
    of_controller = getattr(config, "workerinput", {}).get("all")
    option.all = bool(option.all or selected or by_path) if of_controller is None else of_controller
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in list(os.environ):
        if name.startswith("PYTEST_XDIST_") or name in (commands.NOX, commands.PROGRAM, FOLDER):
            del os.environ[name]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401 (pytest-xdist has no type for it)
    """Tell a process of pytest-xdist if long runs are in, which an option wouldn't."""
    node.workerinput["all"] = node.config.option.all


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: tests of fleets, signals and limits mostly wait."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option that runs all tests."""
    parser.addoption(
        "--all", action="store_true", help="run the tests of whole runs too, which take long"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long runs to `--all`, and put files that start processes first.

    A long one at the end leaves a core without work.
    """
    if not config.option.all:
        long_runs = [item for item in items if item.get_closest_marker("long_run")]
        items[:] = [item for item in items if not item.get_closest_marker("long_run")]
        config.hook.pytest_deselected(items=long_runs)
    items.sort(key=lambda each: {"run_python", "Running"}.isdisjoint(vars(each.module)))  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> torch.device:
    """Where kernels run: the CPU, or with --device=cuda the GPU."""
    return pytestconfig.stash[DEVICE]


@pytest.fixture
def interpreted(device: torch.device) -> None:
    """Skip a test of the interpreter where kernels run on a GPU."""
    if device.type != "cpu":
        pytest.skip("the interpreter is for machines without a GPU")


@pytest.fixture(scope="session", autouse=True)
def _mended_interpreter(device: torch.device) -> None:
    if device.type == "cpu":
        torch.set_num_threads(1)  # as the suite does
        repairs.install()
        strict.install()


@pytest.fixture(scope="module", autouse=True)
def _registry_as_it_was() -> Iterator[None]:
    """Forget the kernels and ops that a module of tests registers: a later one would find them.

    all_kernels comes first: a module is imported once, and its kernels would be lost.
    """
    registry.all_kernels()
    modules = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_registered", dict(registry._registered))
        patch.setattr(registry, "_homes", dict(registry._homes))
        ops = dict(OPS)
        yield
    for name in OPS.keys() - ops.keys():
        del OPS[name]
    for name in set(sys.modules) - modules:
        if name.startswith("user_kernels_"):
            del sys.modules[name]


@pytest.fixture
def known_ops_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the ops that a test defines, at its end."""
    before = dict(OPS)
    monkeypatch.setattr(registry, "_homes", {})
    yield
    OPS.clear()
    OPS.update(before)


@pytest.fixture(scope="session", autouse=True)
def _forked_workers(device: torch.device) -> Iterator[None]:
    """Fork the server of workers, and users' processes, from a Python that has torch loaded."""
    with pytest.MonkeyPatch.context() as patch:
        if device.type == "cpu":
            forking = SimpleNamespace(**vars(subprocess) | {"Popen": ForkingPopen})
            patch.setattr(worker_process, "subprocess", forking)
            patch.setattr(detached, "subprocess", forking)
        yield
