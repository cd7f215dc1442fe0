"""The options of the suites: a class for each suite, whose fields are its options.

A field is declared once, as `option(...)`: its type, its names, its default and its meaning. The
table of all options (OPTIONS) follows from the classes. A suite refuses an option that its class
lacks (options.py): an option that a suite accepts and ignores would promise too much.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
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
_REPEATED: Mapping[str, Any] = MappingProxyType({"action": "append", "default": []})


@dataclass(frozen=True, slots=True)
class Option:
    """An option; settings: as argparse takes them. pytests: pytest declares it, it is told here."""

    names: tuple[str, ...]
    suites: tuple[str, ...]
    settings: dict[str, Any]
    pytests: bool = False


@dataclass(frozen=True, slots=True)
class _Declaration:
    """An option of a class, whichever suites have the class; late: it is shown after others."""

    names: tuple[str, ...]
    settings: dict[str, Any]
    late: bool
    place: int = dataclasses.field(default_factory=itertools.count().__next__)


def option(typed: str, meaning: str, *, late: bool = False, **settings: Any) -> Any:  # noqa: ANN401
    """Declare the field of an option as it is typed, names and then a value: "--seed N".

    Args:
        typed: names and, where the option takes a value, the value's name.
        meaning: what --help shows; argparse.SUPPRESS hides the option.
        late: it comes behind the options that one suite alone has.
        settings: as argparse takes them, in place of those that follow from `typed`.

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
    """Return an option's names and its settings, with those that follow from what is typed."""
    names = tuple(each for each in typed.split() if each.startswith("-"))
    value = typed.split()[len(names) :]
    implied: dict[str, Any] = {"metavar": value[0]} if value else {"action": "store_true"}
    return names, implied | {"help": meaning} | dict(settings)


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
        type=not_empty,
        **_REPEATED,
    )
    ops: tuple[str, ...] = option(
        "--ops FILE",
        "a Python file that defines ops, for --kernels and --cases; may be repeated",
        type=not_empty,
        **_REPEATED,
    )
    definition: tuple[str, ...] = option(
        "--definition FILE",
        "an op as flashinfer's trace format defines it, in JSON, for --kernels; may be repeated",
        type=not_empty,
        **_REPEATED,
    )
    workloads: tuple[str, ...] = option(
        "--workloads FILE",
        "cases of --definition, in the same format, a JSON object a line; may be repeated",
        type=not_empty,
        **_REPEATED,
    )
    problem: tuple[str, ...] = option(
        "--problem FILE",
        "a KernelBench problem (Model, get_inputs, get_init_inputs), whose Model is an op named as "
        "the file, for --kernels; dropout drops nothing; may be repeated",
        type=not_empty,
        **_REPEATED,
    )
    results: str = option(
        "--results DIR",
        "where records are written",
        late=True,
        default=str(default_results()),
        type=not_empty,
    )
    details: bool = option(
        "--details", "at the end print all of the report, not what fits a screen", late=True
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
        "processes that share the work; by default as many as the machine is good for",
        type=whole_number(1, MOST_JOBS),
    )


@dataclass(frozen=True, kw_only=True)
class DomainOptions:
    """Options of a suite that asks domains without a GPU."""

    sm: int = option(
        "--sm N",
        f"on a CPU, the sm that domains are asked about (default {DEFAULT_SM})",
        default=DEFAULT_SM,
        type=whole_number(70, 199),
    )


@dataclass(frozen=True, kw_only=True)
class JudgedOptions(CommonOptions):
    """Options of a suite that judges kernels on cases."""

    dtype: tuple[str, ...] = option(
        "--dtype NAME",
        "only activations of this dtype (float32, float16, bfloat16); may be repeated",
        **_REPEATED,
    )
    cases: tuple[str, ...] = option(
        "--cases FILE",
        "cases of your own, a JSON object a line; they run alone; may be repeated",
        type=not_empty,
        **_REPEATED,
    )
    gate_baselines: bool = option(
        "--gate-baselines", "baselines' failures set the exit status too", late=True
    )
    hash_uuid: bool = option(
        "--hash-uuid", "keep a hash of the GPU's UUID, not the UUID", late=True
    )


@dataclass(frozen=True, kw_only=True)
class CaseOptions(JudgedOptions):
    """Options of a suite whose cases are listed."""

    case: tuple[str, ...] = option("--case ID", "only the case of this exact id", **_REPEATED)
    seed: range = option(
        "--seed N|N..M",
        "added to every case's seed (default 0); every case once for each of several",
        default=range(1),
        type=_seeds,
    )


@dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """Options of a suite for the program that starts the run."""

    json: bool = option(
        "--json",
        "print one JSON object to stdout, as docs/reference/report.md says; all else to stderr",
        late=True,
    )


@dataclass(frozen=True, kw_only=True)
class SanitizeOptions(CaseOptions):
    """Options of `sanitize`, a run of accuracy under compute-sanitizer."""

    tier: str = option("--tier ci|full", "ci (default), or full, which includes it", default="ci")
    every_configuration: bool = option(
        "--every-configuration",
        "judge each kernel by every configuration that could serve a case, not by the one that "
        "dispatch takes alone",
    )
    configuration: tuple[str, ...] = option(
        "--configuration NAME",
        "judge kernels by this configuration alone, as a row of --every-configuration names it; "
        "may be repeated",
        **_REPEATED,
    )


@dataclass(frozen=True, kw_only=True)
class CallingOptions(JudgedOptions, ListingOptions, ProgramOptions):
    """Options of a suite that calls kernels in processes of their own."""

    device: str = option(
        "--device cpu|cuda",
        "cuda, or cpu under Triton's interpreter; by default the GPU where there is one",
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
        "memory of the host that a kernel's process may take; by default half of what is free",
        type=_gib,
    )


@dataclass(frozen=True, kw_only=True)
class PlannedOptions(CallingOptions, CaseOptions):
    """Options of a suite that plans its rows before it starts."""

    lf: bool = option(
        "--lf --last-failed",
        "only the rows that failed in the last record in --results; all, where none did",
    )
    failedfirst: bool = option("--ff --failed-first", "all rows, those that failed there first")
    failed: str | None = option(
        "--failed RECORD",
        "only the rows that failed in this record; with --ff all, those first",
        type=not_empty,
    )
    signs: int | None = option(
        "--signs N",
        "what second calls' signs, and further values, are drawn from, as a row has it; by "
        "default a secret",
        type=whole_number(0, _SECRET),
    )
    max_seconds: float | None = option(
        "--max-seconds S",
        "end before the next row once the run has taken so long; rows that are left are missing",
        late=True,
        type=number(0.1, _WEEK_S),
    )
    # Of a run that another one started: pairs that it needn't try.
    done: str | None = option("--done PAIRS", argparse.SUPPRESS)


@dataclass(frozen=True, kw_only=True)
class VerdictOptions(CallingOptions, SpreadOptions, DomainOptions):
    """Options of accuracy and search, whose rows are verdicts."""

    resume: str | None = option(
        "--resume RECORD",
        "go on with a run that was cut off, given its options",
        type=not_empty,
    )
    # Of a process that another one started: which share of the cases it tries, and a file with
    # what the suite has found out already.
    shard: str = option("--shard N/M", argparse.SUPPRESS, default="")
    known: str = option("--known CASES", argparse.SUPPRESS, default="")
    no_strict: bool = option(
        "--no-strict",
        "on a CPU, don't check each access of a kernel against its arguments",
    )
    in_process: bool = option(
        "--in-process",
        "call kernels in the suite's own process, for a debugger; one that crashes ends it",
    )


@dataclass(frozen=True, kw_only=True)
class AccuracyOptions(VerdictOptions, PlannedOptions, SanitizeOptions):
    """Options of `accuracy`."""

    coverage: bool = option(
        "--coverage",
        "tell which pairs of layouts, values, options, sizes and dtypes met in each kernel's "
        "cases; takes up to some seconds a kernel",
    )
    quick: bool = option(
        "--quick",
        "a dozen small cases of each op, as different as they can be: for a kernel that is edited",
    )
    fail_fast: bool = option("--fail-fast", "end at the first row that fails, as -x does")
    accepted: str | None = option(
        "--accepted FILE",
        "failures that don't set the exit status: a kernel and a case a line, or a report of "
        "--json",
        type=not_empty,
    )
    accept: str | None = option(
        "--accept FILE",
        "write this run's failures to a file for --accepted; the exit status stays",
        type=not_empty,
    )


@dataclass(frozen=True, kw_only=True)
class SearchOptions(VerdictOptions):
    """Options of `search`."""

    minutes: float = option(
        "--minutes M",
        "how long to search (default 5)",
        default=5.0,
        type=number(0.01, _MOST_MINUTES),
    )
    finds: int | None = option(
        "--finds N",
        "end when a process has found so many",
        type=whole_number(1, 1_000_000),
    )
    seed: int = option(
        "--seed N",
        "what cases are drawn from (default 0)",
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
        "whether a call finds its inputs in the L2 cache (default cold)",
        choices=("cold", "warm"),
        default="cold",
    )
    row_time: float = option(
        "--row-time S",
        "seconds of sampling for a row, at most (default 0.4)",
        default=0.4,
        type=number(0.001, 3600),
    )
    quick: bool = option("--quick", "one case in four, a fifth as long")
    no_baselines: bool = option(
        "--no-baselines",
        "no peers beside ours; so does --against REF, unless --kernel names some",
    )
    gpus: str | None = option(
        "--gpus N,N|all", "on each of these GPUs, one after the other", type=not_empty
    )
    gpus_together: bool = option("--gpus-together", "on all of --gpus at the same time")
    against: str | None = option(
        "--against REF|FILE",
        "time another commit's kernels too, or with --kernels an older file's, in turn",
        type=not_empty,
    )
    rounds: int | None = option(
        "--rounds N",
        "every row in so many processes, one after the other, in one record (default 1); of "
        "--against so many times four, A B B A (default 2)",
        type=whole_number(1, 1000),
    )
    ncu: bool = option(
        "--ncu",
        "of each row's call also what Nsight Compute counts; its report lies beside the record",
    )
    gate: bool = option(
        "--gate", "of --against, exit status 1 where a row is slower or less accurate"
    )


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(PlannedOptions):
    """Options of `profile`."""

    window: float = option(
        "--window S",
        "seconds of a trial, of which the first is dropped (default 5)",
        default=5.0,
        type=number(2, 3600),
    )
    trials: int = option(
        "--trials N",
        "of each row (default 4); one less of what stands beside it on other inputs",
        default=4,
        type=whole_number(1, 1000),
    )
    distribution: tuple[str, ...] = option(
        "--distribution normal|zeros",
        "what operands hold; may be repeated; by default normal, and zeros beside it where "
        "arithmetic is most of the work",
        choices=("normal", "zeros"),
        **_REPEATED,
    )


@dataclass(frozen=True, kw_only=True)
class CompileOptions(CommonOptions, ListingOptions, SpreadOptions):
    """Options of `compile`."""

    sm: tuple[int, ...] = option(
        "--sm N",
        "only this generation; may be repeated (75, 80, 86, 89, 90, 100, 120)",
        type=whole_number(1, 999),
        **_REPEATED,
    )
    all: bool = option(
        "--all", "every variant of every kernel, not only those that stand for the rest"
    )
    against: str | None = option(
        "--against FILE", "also show what changed since this record", type=not_empty
    )
    cache: str | None = option(
        "--cache DIR",
        "where measurements are kept (default: ~/.cache/kernel-workbench/compile)",
        type=not_empty,
    )
    check_driver: bool = option(
        "--check-driver",
        "on a machine with a GPU: compare with what its driver says of each kernel",
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
    suites: dict[int, list[str]] = {}
    declarations: dict[int, tuple[_Declaration, str]] = {}
    for suite, options_class in OF_SUITE.items():
        for field in dataclasses.fields(options_class):
            declaration = field.metadata["option"]
            declarations[declaration.place] = declaration, field.name
            suites.setdefault(declaration.place, []).append(suite)
    in_order = sorted(declarations.values(), key=lambda pair: (pair[0].late, pair[0].place))
    return tuple(
        Option(
            declaration.names,
            tuple(suites[declaration.place]),
            {"dest": name} | declaration.settings,
        )
        for declaration, name in in_order
    )


def _of_pytest(
    typed: str,
    meaning: str,
    suites: tuple[str, ...] = _PYTESTS,
    **settings: Any,  # noqa: ANN401
) -> Option:
    """Return an option that pytest declares, and reads."""
    names, settings = _as_typed(typed, meaning, settings)
    return Option(names, suites, settings, pytests=True)


OPTIONS = (
    *_declared(),
    _of_pytest("-k WORDS", 'only rows that have words in their names, as "bfloat16 and offset1"'),
    _of_pytest("-x --exitfirst", "end at the first row that fails"),
    _of_pytest("--maxfail N", "end when so many rows failed", type=whole_number(1, 10**9)),
    _of_pytest("--collect-only --co", "only list the rows"),
    _of_pytest("--pdb", "a debugger at a failure, for --in-process", ("accuracy",)),
    _of_pytest(
        "-s", "show what kernels print, for --in-process", ("accuracy", "search", "sanitize")
    ),
    # What is taken and not told of.
    *(
        _of_pytest(each, argparse.SUPPRESS, _JUDGED, action="count")
        for each in ("-q", "-v", "--no-header", "--no-summary")
    ),
    *(
        _of_pytest(each, argparse.SUPPRESS, _JUDGED, action="append")
        for each in ("-p", "-W", "-o", "--tb")
    ),
)

# Those whose value is the path of a file.
OF_FILES = frozenset(
    name
    for each in OPTIONS
    if each.settings.get("metavar") in {"FILE", "RECORD"}
    for name in each.names
)
