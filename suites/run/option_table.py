"""The options of the suites: a class for each suite, whose fields are its options.

A field is declared once, as `option(...)`: its type, its names, its default and its meaning. The
table of all options (OPTIONS) follows from the classes. A suite refuses an option that its class
lacks (options.py): an option that a suite accepts and ignores would promise too much.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from kernel_workbench.reports.arguments import not_empty, number, whole_number
from kernel_workbench.root import default_results
from kernel_workbench.suites import MOST_JOBS

DEFAULT_SM = 90  # Hopper, which the kernels are tuned for
_WEEK_S = 604_800
_LARGEST_SEED = 2**31 - 1
_MOST_SEEDS = 1000
_MOST_MINUTES = 10_000
_SECRET = 2**63 - 1  # the largest that a row may have
_PLACES = {"FILE", "DIR", "RECORD"}  # values that name a file or folder, and may not be empty
_REPEATED: Mapping[str, Any] = MappingProxyType({"action": "append", "default": []})


@dataclass(frozen=True, slots=True)
class Option:
    """An option, its suites and its settings of argparse; pytests: pytest declares the option."""

    names: tuple[str, ...]
    suites: tuple[str, ...]
    settings: dict[str, Any]
    pytests: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Declaration:
    """An option of a class; late: --help shows it after the other options."""

    names: tuple[str, ...]
    settings: dict[str, Any]
    late: bool
    place: int = dataclasses.field(default_factory=itertools.count().__next__)


def option(typed: str, meaning: str, *, late: bool = False, **settings: Any) -> Any:  # noqa: ANN401
    """Declare the field of an option.

    Args:
        typed: the option's names and, if it takes a value, the value's name: "--seed N".
        meaning: the text of --help; argparse.SUPPRESS hides the option.
        late: --help shows the option after the options that one suite alone has.
        settings: argparse's settings, in place of the ones that follow from `typed`.

    Returns:
        A field of a dataclass, with the option's default.
    """
    names, settings = _as_typed(typed, meaning, settings)
    default = settings.get("default", False if settings.get("action") == "store_true" else None)
    return dataclasses.field(
        default=tuple(default) if isinstance(default, list) else default,
        metadata={"option": _Declaration(names, settings, late)},
    )


def _as_typed(
    typed: str, meaning: str, settings: Mapping[str, Any]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return an option's names and settings, including the settings that follow from `typed`.

    >>> _as_typed("--jobs N", "processes", {})
    (('--jobs',), {'metavar': 'N', 'help': 'processes'})
    """
    names = tuple(word for word in typed.split() if word.startswith("-"))
    value = typed.split()[len(names) :]
    implied: dict[str, Any] = {"metavar": value[0]} if value else {"action": "store_true"}
    if value and not _PLACES.isdisjoint(value[0].split("|")):
        implied["type"] = not_empty
    return names, implied | {"help": meaning} | dict(settings)


def _seeds(text: str) -> range:
    """Return the seeds of --seed: one number, or a range.

    >>> _seeds("3"), _seeds("0..19")
    (range(3, 4), range(0, 20))
    """
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
    """Return the bytes of --memory-limit.

    >>> _gib("0.5")
    536870912
    """
    # Rounded down, the least size would be too small for the command that repeats a row.
    return math.ceil(number(0.1, 100_000)(text) * 2**30)


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """Options of every suite."""

    op: tuple[str, ...] = option("--op NAME", "only this op; may be repeated", **_REPEATED)
    kernel: tuple[str, ...] = option(
        "--kernel NAME",
        "only this kernel; may be repeated; a baseline named here sets the exit status",
        **_REPEATED,
    )
    kernels: tuple[str, ...] = option(
        "--kernels FILE",
        "a Python file that registers kernels; they run alone unless --kernel names others",
        **_REPEATED,
    )
    ops: tuple[str, ...] = option(
        "--ops FILE",
        "a Python file that defines ops, for --kernels and --cases; may be repeated",
        **_REPEATED,
    )
    definition: tuple[str, ...] = option(
        "--definition FILE",
        "a definition of an op in flashinfer's trace format, JSON, for --kernels; may be repeated",
        **_REPEATED,
    )
    workloads: tuple[str, ...] = option(
        "--workloads FILE",
        "cases of --definition, in the same format, one JSON object a line; may be repeated",
        **_REPEATED,
    )
    problem: tuple[str, ...] = option(
        "--problem FILE",
        "a KernelBench problem (Model, get_inputs, get_init_inputs) for --kernels; its Model "
        "becomes an op with the file's name; dropout drops nothing; may be repeated",
        **_REPEATED,
    )
    results: str = option(
        "--results DIR",
        "the folder of records",
        late=True,
        default=str(default_results()),
    )
    details: bool = option(
        "--details", "print the whole report at the end, not a summary for a screen", late=True
    )


@dataclass(frozen=True, kw_only=True)
class ListingOptions:
    """Options of a suite that can list its rows without a run."""

    list: bool = option(
        "--list", "show the kernels and cases that would run, and run nothing", late=True
    )


@dataclass(frozen=True, kw_only=True)
class SpreadOptions:
    """Options of a suite whose work several processes share."""

    jobs: int | None = option(
        "--jobs N",
        "number of processes that share the work; by default it follows the machine and the work",
        type=whole_number(1, MOST_JOBS),
    )


@dataclass(frozen=True, kw_only=True)
class DomainOptions:
    """Options of a suite that asks domains without a GPU."""

    sm: int = option(
        "--sm N",
        f"on a CPU, the simulated GPU generation, for domains and dispatch (default {DEFAULT_SM})",
        default=DEFAULT_SM,
        type=whole_number(70, 199),
    )


@dataclass(frozen=True, kw_only=True)
class FileOfCasesOptions:
    """Options of a suite that takes a user's own cases."""

    cases: tuple[str, ...] = option(
        "--cases FILE",
        "your own cases, one JSON object a line, in place of the listed ones; may be repeated",
        **_REPEATED,
    )


@dataclass(frozen=True, kw_only=True)
class JudgedOptions(CommonOptions, FileOfCasesOptions):
    """Options of a suite that judges kernels on cases."""

    dtype: tuple[str, ...] = option(
        "--dtype NAME",
        "only activations of this dtype (float32, float16, bfloat16); may be repeated",
        **_REPEATED,
    )
    gate_baselines: bool = option(
        "--gate-baselines", "baselines' failures set the exit status too", late=True
    )
    hash_uuid: bool = option(
        "--hash-uuid", "record a hash of the GPU's UUID, not the UUID", late=True
    )


@dataclass(frozen=True, kw_only=True)
class CaseOptions(JudgedOptions):
    """Options of a suite with a list of cases."""

    case: tuple[str, ...] = option(
        "--case ID", "only the case with exactly this id; may be repeated", **_REPEATED
    )
    seed: range = option(
        "--seed N|N..M",
        "a number to add to every case's seed (default 0), or a range: one row for each number",
        default=range(1),
        type=_seeds,
    )


@dataclass(frozen=True, kw_only=True)
class SanitizeOptions(CaseOptions):
    """Options of `sanitize`, a run of accuracy under compute-sanitizer and consan."""

    tier: str = option(
        "--tier ci|full", "the cases of ci (default), or all cases (full)", default="ci"
    )
    every_configuration: bool = option(
        "--every-configuration",
        "judge each kernel with every configuration that could serve a case, not only with the "
        "one that dispatch takes",
    )
    configuration: tuple[str, ...] = option(
        "--configuration NAME",
        "judge kernels with this configuration only; rows of --every-configuration have the "
        "names; may be repeated",
        **_REPEATED,
    )


@dataclass(frozen=True, kw_only=True)
class CallingOptions(JudgedOptions, ListingOptions):
    """Options of a suite that calls kernels in processes of their own."""

    device: str = option(
        "--device cpu|cuda",
        "cuda, or cpu under Triton's interpreter; by default the GPU if there is one",
        default="auto",
    )
    time_limit: float = option(
        "--time-limit S",
        "seconds that one call of a kernel may take (default 300)",
        default=300.0,
        type=number(0.1, _WEEK_S),
    )
    memory_limit: int | None = option(
        "--memory-limit GIB",
        "memory of the host that a kernel's process may take; by default half of the free memory, "
        "and 1 GiB at least",
        type=_gib,
    )
    json: bool = option(
        "--json",
        "print one JSON object (docs/reference/report.md) to stdout, and all other text to stderr",
        late=True,
    )


@dataclass(frozen=True, kw_only=True)
class PlannedOptions(CallingOptions, CaseOptions):
    """Options of a suite that plans its rows before it starts."""

    lf: bool = option(
        "--lf --last-failed",
        "only the rows that failed in the last record in --results; all rows if none failed",
    )
    failedfirst: bool = option(
        "--ff --failed-first", "all rows, but first the rows that failed in the last record"
    )
    failed: str | None = option(
        "--failed RECORD",
        "only the rows that failed in this record; with --ff all rows, but failed ones first",
    )
    signs: int | None = option(
        "--signs N",
        "the seed of second calls' signs and of further values, as a row records it; by default a "
        "secret",
        type=whole_number(0, _SECRET),
    )
    max_seconds: float | None = option(
        "--max-seconds S",
        "end the run before the first row that would start after this time",
        late=True,
        type=number(0.1, _WEEK_S),
    )
    # For a run that `fleet` started: the pairs to skip.
    done: str | None = option("--done PAIRS", argparse.SUPPRESS)


@dataclass(frozen=True, kw_only=True)
class VerdictOptions(CallingOptions, SpreadOptions, DomainOptions):
    """Options of accuracy and search, whose rows are verdicts."""

    resume: str | None = option(
        "--resume RECORD",
        "continue the interrupted run of this record; repeat the run's options",
    )
    # For a process of a larger run: its share of the cases, and the file of all cases.
    shard: str = option("--shard N/M", argparse.SUPPRESS, default="")
    planned_cases: str = option("--known CASES", argparse.SUPPRESS, default="")
    no_strict: bool = option(
        "--no-strict",
        "on a CPU, don't check each access of a kernel against its arguments",
    )
    in_process: bool = option(
        "--in-process",
        "call kernels in the suite's own process, for a debugger; a kernel that crashes ends it",
    )


@dataclass(frozen=True, kw_only=True)
class AccuracyOptions(VerdictOptions, PlannedOptions, SanitizeOptions):
    """Options of `accuracy`."""

    coverage: bool = option(
        "--coverage",
        "count the pairs of layouts, values, options, sizes and dtypes that each kernel's cases "
        "contain; takes up to some seconds a kernel",
    )
    quick: bool = option(
        "--quick",
        "a dozen small cases of each op, as different as possible, for use while you edit a kernel",
    )
    fail_fast: bool = option("--fail-fast", "end at the first row that fails, as -x does")
    accepted: str | None = option(
        "--accepted FILE",
        "failures that don't set the exit status: a kernel and a case a line, or a report of "
        "--json",
    )
    accept: str | None = option(
        "--accept FILE",
        "write this run's failures to a file for --accepted; the exit status stays",
    )


@dataclass(frozen=True, kw_only=True)
class SearchOptions(VerdictOptions):
    """Options of `search`."""

    minutes: float = option(
        "--minutes M",
        "minutes in which cases are drawn; all of --cases are judged first (default 5)",
        default=5.0,
        type=number(0.01, _MOST_MINUTES),
    )
    finds: int | None = option(
        "--finds N",
        "end when a process has this many finds",
        type=whole_number(1, 1_000_000),
    )
    seed: int = option(
        "--seed N",
        "the seed of the drawn cases (default 0)",
        default=0,
        type=whole_number(0, _LARGEST_SEED),
    )
    time_limit: float = option(
        "--time-limit S",
        "seconds that one call of a kernel may take (default 60)",
        default=60.0,
        type=number(0.1, _WEEK_S),
    )


@dataclass(frozen=True, kw_only=True)
class BenchOptions(PlannedOptions, DomainOptions):
    """Options of `bench`."""

    cache: Literal["cold", "warm"] = option(
        "--cache cold|warm",
        "call with inputs outside (cold) or inside (warm) the L2 cache (default cold)",
        choices=("cold", "warm"),
        default="cold",
    )
    row_time: float = option(
        "--row-time S",
        "most seconds of sampling for a row (default 0.4)",
        default=0.4,
        type=number(0.001, 3600),
    )
    quick: bool = option("--quick", "time one case in four, for a fifth of the time")
    function: bool = option(
        "--function",
        "also time our functions and PyTorch's in eager mode, as a model calls them: the host's "
        "time and the whole, forward and backward",
    )
    no_baselines: bool = option(
        "--no-baselines",
        "leave baselines out; --against REF leaves them out too, unless --kernel names some",
    )
    gpus: str | None = option(
        "--gpus N,N|all", "run on each of these GPUs, one after the other", type=not_empty
    )
    gpus_together: bool = option("--gpus-together", "run on all GPUs of --gpus at the same time")
    against: str | None = option(
        "--against REF|FILE",
        "also time another commit's kernels, or with --kernels an older file's, in turn",
    )
    rounds: int | None = option(
        "--rounds N",
        "time every row in N processes, one after the other, in one record (default 1); with "
        "--against in 4 N processes, in the order A B B A (default 2)",
        type=whole_number(1, 1000),
    )
    ncu: bool = option(
        "--ncu",
        "also count each row's call with Nsight Compute; its report lies beside the record",
    )
    gate: bool = option(
        "--gate", "with --against, exit with status 1 if a row is slower or less accurate"
    )
    changed: bool = option(
        "--changed",
        "with --against, compare the compiled code first, and time only rows whose code differs",
    )


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(PlannedOptions):
    """Options of `profile`."""

    window: float = option(
        "--window S",
        "seconds of a trial, including the first second, which is dropped (default 5)",
        default=5.0,
        type=number(2, 3600),
    )
    trials: int = option(
        "--trials N",
        "number of trials of a row (default 4); a row on zeros beside a normal one has one less",
        default=4,
        type=whole_number(1, 1000),
    )
    distribution: tuple[str, ...] = option(
        "--distribution normal|zeros",
        "the values of operands; may be repeated; by default normal, and also zeros if arithmetic "
        "is most of the work",
        choices=("normal", "zeros"),
        **_REPEATED,
    )


@dataclass(frozen=True, kw_only=True)
class CompileOptions(CommonOptions, FileOfCasesOptions, ListingOptions, SpreadOptions):
    """Options of `compile`."""

    sm: tuple[int, ...] = option(
        "--sm N",
        "only this generation; may be repeated (75, 80, 86, 89, 90, 100, 120)",
        type=whole_number(1, 999),
        **_REPEATED,
    )
    all: bool = option(
        "--all", "compile every variant of every kernel, not only representative ones"
    )
    against: str | None = option("--against FILE", "also show the changes since this record")
    cache: str | None = option(
        "--cache DIR",
        "the folder of the cache (default: ~/.cache/kernel-workbench/compile)",
    )
    check_driver: bool = option(
        "--check-driver",
        "on a machine with a GPU, compare the figures with the driver's for each kernel",
    )


OF_SUITE: dict[str, type[CommonOptions]] = {
    "accuracy": AccuracyOptions,
    "bench": BenchOptions,
    "profile": ProfileOptions,
    "sanitize": SanitizeOptions,
    "search": SearchOptions,
    "compile": CompileOptions,
}
_PYTESTS = ("accuracy", "bench", "profile", "sanitize")
_JUDGED = (*_PYTESTS, "search")
_Options = TypeVar("_Options", bound=CommonOptions)


def options_from(options_class: type[_Options], parsed: argparse.Namespace) -> _Options:
    """Return a suite's options as they were parsed, by pytest or by argparse."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(options_class):
        value = getattr(parsed, field.name)
        values[field.name] = tuple(value) if isinstance(value, list) else value
    return options_class(**values)


def _declared() -> tuple[Option, ...]:
    """Return the options of all classes, in the order of their declaration."""
    fields: dict[_Declaration, tuple[str, list[str]]] = {}
    for suite, options_class in OF_SUITE.items():
        for field in dataclasses.fields(options_class):
            fields.setdefault(field.metadata["option"], (field.name, []))[1].append(suite)
    return tuple(
        Option(
            option.names, tuple(fields[option][1]), {"dest": fields[option][0]} | option.settings
        )
        for option in sorted(fields, key=lambda option: (option.late, option.place))
    )


def _of_pytest(
    typed: str,
    meaning: str,
    suites: tuple[str, ...] = _PYTESTS,
    **settings: Any,  # noqa: ANN401
) -> Option:
    """Return an option that pytest itself declares and reads."""
    names, settings = _as_typed(typed, meaning, settings)
    return Option(names, suites, settings, pytests=True)


OPTIONS = (
    *_declared(),
    _of_pytest("-k WORDS", 'only rows whose names match, for example "bfloat16 and offset1"'),
    _of_pytest("-x --exitfirst", "end at the first row that fails"),
    _of_pytest("--maxfail N", "end after N failed rows", type=whole_number(1, 10**9)),
    _of_pytest("--collect-only --co", "list the rows, and run nothing"),
    _of_pytest("--pdb", "start a debugger at a failure, with --in-process", ("accuracy",)),
    _of_pytest(
        "-s",
        "show the output that kernels print, with --in-process",
        ("accuracy", "search", "sanitize"),
    ),
    # --help doesn't show these.
    *(
        _of_pytest(name, argparse.SUPPRESS, _JUDGED, action="count")
        for name in ("-q", "-v", "--no-header", "--no-summary")
    ),
    *(
        _of_pytest(name, argparse.SUPPRESS, _JUDGED, action="append")
        for name in ("-p", "-W", "-o", "--tb")
    ),
)

# The options whose value is the path of a file.
OF_FILES = frozenset(
    name
    for declared in OPTIONS
    if declared.settings.get("metavar") in {"FILE", "RECORD"}
    for name in declared.names
)
