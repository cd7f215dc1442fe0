"""The options of a command line: held to those of the suite, told to pytest; and the device.

A plugin (`-p kernel_workbench.suites.run.options`) for every pytest of this checkout, rather than a
conftest, so that the options are known wherever pytest is started from. It decides between GPU and
interpreter before triton is imported: one process can't do both.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from kernel_workbench.reports.arguments import CommandLine, quoted, sentence
from kernel_workbench.reports.commands import this_program
from kernel_workbench.reports.output import refuse_to_overwrite
from kernel_workbench.reports.record import RecordError
from kernel_workbench.reports.record.reader import header_at
from kernel_workbench.suites import PACKAGE, SUITES
from kernel_workbench.suites.run.option_table import OPTIONS

if TYPE_CHECKING:
    import torch

FOLDERS = {suite: PACKAGE / "suites" / suite for suite in SUITES}
DEVICE: pytest.StashKey[torch.device] = pytest.StashKey()
# Options that mean something with another one alone, and would do nothing without it.
_NEEDS = {
    "--gate": "--against",
    "--changed": "--against",
    "--gpus-together": "--gpus",
    "--benchmark-compare-fail": "--benchmark-compare",
    "--pdb": "--in-process",
    "-s": "--in-process",
}
_ALREADY = {"sanitize": {"--in-process"}}  # options that a suite gives by itself
# With these pytest-benchmark writes the times of one process.
_OF_ONE_PROCESS = ("--benchmark-json", "--benchmark-save", "--benchmark-autosave")
_SEVERAL = "times in several processes, and this file is of one; the record has them all"
_NO_LAST = "starts several runs, of which none is the last one; name its record: --failed=RECORD"
_NO_COUNTERS = "times in several processes, and counters are of one; count in a run of its own"
# The options that another one leaves without a meaning, and why.
_EXCLUDES = (
    (
        "--in-process",
        ("--time-limit", "--memory-limit"),
        "has no process of its own to limit; leave one out",
    ),
    (
        "--in-process",
        ("--signs",),
        "calls kernels on the same values each time, and draws none; leave one out",
    ),
    ("--configuration", ("--every-configuration",), "asks for one; leave one out"),
    (
        "--check-driver",
        ("--sm", "--against", "--details", "--all"),
        "asks the driver of this machine's GPU alone; leave one out",
    ),
    *((option, _OF_ONE_PROCESS, _SEVERAL) for option in ("--rounds", "--against")),
    *((option, ("--ncu",), _NO_COUNTERS) for option in ("--rounds", "--against")),
    *((option, ("--lf", "--ff"), _NO_LAST) for option in ("--gpus", "--rounds", "--against")),
)


class SuiteOptions(CommandLine):
    """The options of a suite. A wrong option raises pytest.UsageError.

    defaults: whether an option that isn't typed has its default, or is left out.
    """

    def __init__(self, suite: str, *, defaults: bool = True) -> None:
        prefix = this_program().prefix(suite)
        super().__init__(prog=prefix, usage=f"{prefix} [options]")
        self.suite = suite
        changed = {} if defaults else {"default": argparse.SUPPRESS}
        for option in OPTIONS:
            if suite in option.suites:
                self.add_argument(*option.names, **(option.settings | changed))

    def typed(self, given: argparse.Namespace) -> set[str]:
        """The names of the options that say something else than what is so without them."""
        return {
            name
            for action in self._actions
            if getattr(given, action.dest, action.default) != action.default
            for name in action.option_strings
        }

    def unknown(self, name: str) -> str:
        """Say so where it is another suite's."""
        suites = [suite for option in OPTIONS if name in option.names for suite in option.suites]
        if not suites:
            return super().unknown(name)
        return (
            f"{name}: {self.suite} doesn't serve it; it is an option of "
            f"{', '.join(suites)}: {this_program().command(suites[0], [name])}"
        )

    def hold(self, given: argparse.Namespace) -> None:
        """Refuse options that do nothing beside the others. Raises UsageError."""
        typed = self.typed(given)
        if getattr(given, "rounds", None) == 1:
            typed.discard("--rounds")  # a run as without it
        for name, needed in _NEEDS.items():
            there = typed | _ALREADY.get(self.suite, set())
            if name in typed and needed not in there:
                self.error(f"{name}: it says how {needed} is done, which isn't there; add {needed}")
        for name, excluded, why in _EXCLUDES:
            for other in excluded:
                if name in typed and other in typed:
                    self.error(f"{other}: {name} {why}")
        if "--in-process" in typed and (getattr(given, "jobs", None) or 1) > 1:
            self.error("--jobs: --in-process calls kernels in one process; leave one out")

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, in one sentence."""
        raise pytest.UsageError(sentence(message))


class _OfBenchmark:
    """Takes the options of pytest-benchmark, which declares them to pytest."""

    def __init__(self, options: argparse.ArgumentParser) -> None:
        self.group = options.add_argument_group("pytest-benchmark")
        self.addoption: Callable[..., object] = self.group.add_argument

    def getgroup(self, *_: str) -> _OfBenchmark:
        return self


def suite_of(arguments: Sequence[str], directory: Path) -> tuple[str, str] | None:
    """The argument that names a suite's folder, or a test in it, and the suite; None: none does."""
    for argument in arguments:
        path = directory / argument.partition("::")[0]
        for suite, folder in FOLDERS.items():
            if not argument.startswith("-") and path.is_relative_to(folder):
                return argument, suite
    return None


def check(suite: str, arguments: Sequence[str]) -> argparse.Namespace:
    """Hold what was typed to the suite's options, and return it. Raises UsageError.

    With --help it shows the suite's own, and ends the process.
    """
    options = SuiteOptions(suite, defaults=False)
    if suite == "bench":
        from pytest_benchmark.plugin import pytest_addoption  # noqa: PLC0415 (bench alone needs it)

        pytest_addoption(_OfBenchmark(options))  # type: ignore[no-untyped-call]
    given, others = options.parse_known_args(arguments)
    for other in others:
        name = other.partition("=")[0]
        if name.startswith("-"):
            options.error(options.unknown(name))
        options.error(
            f"{quoted(other)}: {suite} takes no paths and no bare words; kernels of your own "
            f"come by --kernels=FILE, words of a row's name by -k"
        )
    options.hold(given)
    if getattr(given, "benchmark_skip", False):
        options.error("--benchmark-skip: every row would be left out; leave the option out")
    made = getattr(given, "benchmark_json", None)
    if made is not None:
        try:
            refuse_to_overwrite({"--benchmark-json": (made, "JSON of pytest-benchmark")})
        except RecordError as error:
            raise pytest.UsageError(str(error)) from error
    return given


def _check_records(given: argparse.Namespace) -> None:
    """Raise UsageError where a record that is to be read isn't one, before anything is loaded."""
    for name in ("resume", "failed"):
        record = getattr(given, name, None)
        if record is not None:
            try:
                header_at(Path(record))
            except RecordError as error:
                raise pytest.UsageError(f"--{name}: {error}") from error


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare what selects kernels, cases and the device.

    Before that the options that were typed are held to those of the suite that is run: pytest
    itself would take any suite's, and says what it doesn't know in five lines. Raises UsageError.
    """
    config = pluginmanager.get_plugin("pytestconfig")
    assert isinstance(config, pytest.Config)
    typed = [str(argument) for argument in config.invocation_params.args]
    suite = suite_of(typed, config.invocation_params.dir)
    name = ""
    if suite is not None:
        folder, name = suite
        typed.remove(folder)
        _check_records(check(name, typed))
    # --lf and --ff go by records here, not by pytest's cache. Its plugin has declared them by now,
    # unless it was left out.
    if suite:
        pluginmanager.set_blocked("lfplugin")
    declared = {name for option in parser.getgroup("general").options for name in option.names()}
    group = parser.getgroup("workbench", "kernel-workbench")
    for each in OPTIONS:
        of_suite = name in each.suites if suite else "--device" in each.names
        if of_suite and not each.pytests and declared.isdisjoint(each.names):
            group.addoption(*each.names, **each.settings)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Choose the device, and tell triton, before a conftest imports it. Raises UsageError."""
    wanted = early_config.known_args_namespace.device
    if wanted not in ("auto", "cpu", "cuda"):
        raise pytest.UsageError(f"--device {wanted}: there is no such device; use cpu or cuda")
    # A run is spread over processes: threads of numpy's in each would only wait for one another.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import torch  # noqa: PLC0415  (a second of work that --help needn't wait for)

    if wanted == "cuda" and not torch.cuda.is_available():
        raise pytest.UsageError(
            "--device cuda: torch sees no CUDA device here; use --device cpu, or install a CUDA "
            "build of torch on a machine with a GPU"
        )
    device = "cpu" if wanted == "cpu" or not torch.cuda.is_available() else "cuda"
    if device == "cpu":
        if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
            raise pytest.UsageError(
                "triton was imported before the interpreter could be switched on; "
                "start pytest with TRITON_INTERPRET=1"
            )
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        os.environ.pop("TRITON_INTERPRET", None)
    early_config.stash[DEVICE] = torch.device(device)
