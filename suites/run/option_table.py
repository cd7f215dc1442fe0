"""The options of the suites as data: what each means, and which suites serve it.

A suite refuses what it doesn't serve: an option that is taken and does nothing would promise what
isn't done.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from reports.arguments import CommandLine, not_empty, number, quoted, sentence, whole_number
from reports.record import RecordError
from reports.written_files import refuse_to_overwrite
from suites import MOST_JOBS, ROOT

DEFAULT_SM = 90  # Hopper, which the kernels are tuned for
FOLDERS = {"accuracy": "suites/accuracy", "bench": "suites/bench", "profile": "suites/profile"}
_WEEK_S = 604_800
_LARGEST_SEED = 2**31 - 1
_MOST_SEEDS = 1000
_SECRET = 2**63 - 1  # the largest that a row may have

_RUNS = ("accuracy", "bench", "profile")
_ALL = (*_RUNS, "sanitize")
_CPU = ("accuracy", "bench")


@dataclass(frozen=True, slots=True)
class Option:
    """An option; settings: as argparse takes them. pytests: it is pytest's own, told here too."""

    names: tuple[str, ...]
    suites: tuple[str, ...]
    settings: dict[str, Any]
    pytests: bool = False


def _seeds(text: str) -> range:
    """What --seed asks for: "3" one seed, "0..19" twenty."""
    first, several, last = text.partition("..")
    one = whole_number(-_LARGEST_SEED, _LARGEST_SEED)
    try:
        seeds = range(one(first), one(last if several else first) + 1)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; give a number, or a range as 0..19") from error
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text} is empty; give the smaller number first")
    if len(seeds) > _MOST_SEEDS:
        raise argparse.ArgumentTypeError(
            f"{text} is {len(seeds):,} seeds, and a run has at most {_MOST_SEEDS:,}"
        )
    return seeds


def _gib(text: str) -> int:
    """Bytes of what --memory-limit says."""
    return int(number(0.1, 100_000)(text) * 2**30)


def _of(suites: Sequence[str], *names: str, **settings: Any) -> Option:  # noqa: ANN401 (argparse's)
    return Option(names, tuple(suites), settings)


def _of_pytest(*names: str, **settings: Any) -> Option:  # noqa: ANN401 (argparse's)
    return Option(names, _ALL, settings, pytests=True)


OPTIONS = (
    _of(
        _ALL,
        "--op",
        action="append",
        default=[],
        metavar="NAME",
        help="only this op; may be repeated",
    ),
    _of(
        _ALL,
        "--kernel",
        action="append",
        default=[],
        metavar="NAME",
        help="only this kernel; may be repeated; a baseline named here sets the exit status",
    ),
    _of(
        _ALL,
        "--kernels",
        action="append",
        metavar="FILE",
        type=not_empty,
        default=[],
        help="a Python file that registers kernels; they run alone unless --kernel names others",
    ),
    _of(
        _ALL,
        "--dtype",
        action="append",
        default=[],
        metavar="NAME",
        help="only activations of this dtype (float32, float16, bfloat16); may be repeated",
    ),
    _of(
        ("accuracy", "sanitize"),
        "--tier",
        metavar="ci|full",
        default="ci",
        help="ci (default), or full, which includes it",
    ),
    _of(
        _ALL,
        "--case",
        action="append",
        default=[],
        metavar="ID",
        help="only the case of this exact id",
    ),
    _of(
        _ALL,
        "--cases",
        action="append",
        metavar="FILE",
        type=not_empty,
        default=[],
        help="cases of your own, a JSON object a line; they run alone; may be repeated",
    ),
    _of(
        _RUNS,
        "--device",
        metavar="cpu|cuda",
        default="auto",
        help="cuda, or cpu under Triton's interpreter; by default the GPU where there is one",
    ),
    _of(
        _CPU,
        "--sm",
        type=whole_number(70, 199),
        metavar="N",
        default=DEFAULT_SM,
        help=f"on a CPU, the sm that domains are asked about (default {DEFAULT_SM})",
    ),
    _of(
        ("accuracy",),
        "--no-strict",
        action="store_true",
        help="on a CPU, don't check each access of a kernel against its arguments",
    ),
    _of(
        ("accuracy",),
        "--jobs",
        type=whole_number(1, MOST_JOBS),
        metavar="N",
        help="processes that share the cases; by default as many as the machine is good for",
    ),
    _of(
        _RUNS,
        "--time-limit",
        type=number(0.1, _WEEK_S),
        default=300.0,
        metavar="S",
        help="seconds that one call of a kernel may take (default 300)",
    ),
    _of(
        _RUNS,
        "--memory-limit",
        type=_gib,
        metavar="GIB",
        help="memory of the host that a kernel's process may take; by default half of what is free",
    ),
    _of(
        ("accuracy",),
        "--in-process",
        action="store_true",
        help="call kernels in the suite's own process, for a debugger; one that crashes ends it",
    ),
    _of(
        _RUNS,
        "--signs",
        metavar="N",
        type=whole_number(0, _SECRET),
        help="what second calls' signs, and further values, are drawn from, as a row has it; by "
        "default a secret",
    ),
    _of(
        ("accuracy",),
        "--resume",
        metavar="RECORD",
        type=not_empty,
        help="go on with a run that was cut off, given its options",
    ),
    _of(
        ("bench",),
        "--cache",
        metavar="cold|warm",
        choices=("cold", "warm"),
        default="cold",
        help="whether a call finds its inputs in the L2 cache (default cold)",
    ),
    _of(
        ("bench",),
        "--row-time",
        metavar="S",
        type=number(0.001, 3600),
        default=0.4,
        help="seconds of sampling for a row, at most (default 0.4)",
    ),
    _of(("bench",), "--quick", action="store_true", help="one case in four, a fifth as long"),
    _of(
        ("bench",),
        "--gpus",
        metavar="N,N|all",
        type=not_empty,
        help="on each of these GPUs, one after the other",
    ),
    _of(
        ("bench",),
        "--gpus-together",
        action="store_true",
        help="on all of --gpus at the same time",
    ),
    _of(
        ("bench",),
        "--against",
        metavar="REF|FILE",
        type=not_empty,
        help="time another commit's kernels too, or with --kernels an older file's, in turn",
    ),
    _of(
        ("bench",),
        "--no-baselines",
        action="store_true",
        help="no peers beside ours; so does --against REF, unless --kernel names some",
    ),
    _of(
        ("bench",),
        "--rounds",
        metavar="N",
        type=whole_number(1, 1000),
        help="every row in so many processes, one after the other, in one record (default 1); of "
        "--against so many times four, A B B A (default 2)",
    ),
    _of(
        ("bench",),
        "--gate",
        action="store_true",
        help="of --against, exit status 1 where a row is slower or less accurate",
    ),
    _of(
        ("profile",),
        "--window",
        type=number(2, 3600),
        default=5.0,
        metavar="S",
        help="seconds of a trial, of which the first is dropped (default 5)",
    ),
    _of(
        ("profile",),
        "--trials",
        type=whole_number(1, 1000),
        default=4,
        metavar="N",
        help="of each row (default 4); one less of what stands beside it on other inputs",
    ),
    _of(
        ("profile",),
        "--distribution",
        action="append",
        choices=("normal", "zeros"),
        default=[],
        help="what operands hold; may be repeated; by default normal, and zeros beside it where "
        "arithmetic is most of the work",
    ),
    # Of a process that another one started: which share of the cases it tries.
    _of(("accuracy",), "--shard", default="", help=argparse.SUPPRESS),
    _of(
        _ALL,
        "--seed",
        type=_seeds,
        default="0",
        metavar="N|N..M",
        help="added to every case's seed (default 0); every case once for each of several",
    ),
    _of(
        _ALL,
        "--gate-baselines",
        action="store_true",
        help="baselines' failures set the exit status too",
    ),
    _of(
        _ALL, "--hash-uuid", action="store_true", help="keep a hash of the GPU's UUID, not the UUID"
    ),
    _of(
        _ALL,
        "--results",
        metavar="DIR",
        type=not_empty,
        default=str(ROOT / "results"),
        help="where records are written",
    ),
    _of(
        _ALL,
        "--details",
        action="store_true",
        help="at the end print all of the report, not what fits a screen",
    ),
    _of(
        _RUNS,
        "--list",
        action="store_true",
        help="show the kernels and cases that would run, and run nothing",
    ),
    _of_pytest("-k", metavar="WORDS", help='by words of rows\' names, as "bfloat16 and offset1"'),
    _of_pytest("--collect-only", "--co", action="store_true", help="only list the rows"),
    _of_pytest("--pdb", action="store_true", help="a debugger at a failure, for --in-process"),
    _of_pytest("-s", action="store_true", help="show what kernels print, for --in-process"),
    *(
        _of_pytest(each, action="count", help=argparse.SUPPRESS)
        for each in ("-q", "-v", "--no-header", "--no-summary")
    ),
    *(
        _of_pytest(each, action="append", help=argparse.SUPPRESS)
        for each in ("-p", "-W", "-o", "--tb")
    ),
)
# What is meant for another option only: without that one it would do nothing.
_NEEDS = {
    "--gate": "--against",
    "--gpus-together": "--gpus",
    "--benchmark-compare-fail": "--benchmark-compare",
}
# What an option leaves without a meaning.
_EXCLUDES = {"--in-process": ("--time-limit", "--memory-limit")}


class _Options(CommandLine):
    """The options of a suite. What is wrong raises pytest.UsageError."""

    def __init__(self, suite: str) -> None:
        super().__init__(prog=f"nox -s {suite} --", usage=f"nox -s {suite} -- [options]")
        self.suite = suite
        for each in OPTIONS:
            if suite in each.suites:
                self.add_argument(*each.names, **(each.settings | {"default": argparse.SUPPRESS}))

    def unknown(self, name: str) -> str:
        """Say so where it is another suite's."""
        for each in OPTIONS:
            if name in each.names:
                suites = ", ".join(each.suites)
                return (
                    f"{name}: nox -s {self.suite} doesn't serve it; it is an option of {suites}: "
                    f"nox -s {each.suites[0]} -- {name}"
                )
        return super().unknown(name)

    def error(self, message: str) -> NoReturn:
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
    for each in arguments:
        path = directory / each.partition("::")[0]
        for suite, folder in FOLDERS.items():
            if not each.startswith("-") and path.is_relative_to(ROOT / folder):
                return each, suite
    return None


def check(suite: str, arguments: Sequence[str]) -> None:
    """Hold what was typed to the suite's options. Raises UsageError, in one sentence.

    With --help it shows the suite's own, and ends the process.
    """
    options = _Options(suite)
    if suite == "bench":
        from pytest_benchmark.plugin import pytest_addoption  # noqa: PLC0415 (bench alone needs it)

        pytest_addoption(_OfBenchmark(options))  # type: ignore[no-untyped-call]
    given, others = options.parse_known_args(arguments)
    for each in others:
        name = each.partition("=")[0]
        if name.startswith("-"):
            options.error(options.unknown(name))
        options.error(
            f"{quoted(each)}: nox -s {suite} takes no paths and no bare words; kernels of your own "
            f"come by --kernels=FILE, words of a row's name by -k"
        )
    typed = {
        f"--{name.replace('_', '-')}"
        for name, value in vars(given).items()
        if value != options.get_default(name)
    }
    for name, needed in _NEEDS.items():
        if name in typed and needed not in typed:
            options.error(f"{name}: it says how {needed} is done, which isn't there; add {needed}")
    for name, without in _EXCLUDES.items():
        for each in without:
            if name in typed and each in typed:
                options.error(f"{each}: {name} has no process of its own to limit; leave one out")
    if getattr(given, "benchmark_skip", False):
        options.error("--benchmark-skip: every row would be left out; leave the option out")
    made = getattr(given, "benchmark_json", None)
    if made is not None:
        try:
            refuse_to_overwrite({"--benchmark-json": (made, "JSON of pytest-benchmark")})
        except RecordError as error:
            raise pytest.UsageError(str(error)) from error
