"""The options of the suites as data: what each means, and which suites serve it.

A suite refuses what it doesn't serve (options.py): an option that is taken and does nothing would
promise what isn't done.
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from typing import Any

from kernel_workbench.reports.arguments import not_empty, number, whole_number
from kernel_workbench.suites import MOST_JOBS, ROOT

DEFAULT_SM = 90  # Hopper, which the kernels are tuned for
_WEEK_S = 604_800
_LARGEST_SEED = 2**31 - 1
_MOST_SEEDS = 1000
_MOST_MINUTES = 10_000
_SECRET = 2**63 - 1  # the largest that a row may have

_ACCURACY, _BENCH, _PROFILE, _COMPILE = ("accuracy",), ("bench",), ("profile",), ("compile",)
_SEARCH = ("search",)
_JUDGES = (*_ACCURACY, *_SEARCH)
_RUNS = (*_ACCURACY, *_BENCH, *_PROFILE)
_PYTESTS = (*_RUNS, "sanitize")
_JUDGED = (*_PYTESTS, *_SEARCH)
_ALL = (*_JUDGED, *_COMPILE)
_IN_PROCESS = ("accuracy", "search", "sanitize")
_REPEATED: dict[str, Any] = {"action": "append", "default": []}


@dataclass(frozen=True, slots=True)
class Option:
    """An option; settings: as argparse takes them. pytests: pytest declares it, it is told here."""

    names: tuple[str, ...]
    suites: tuple[str, ...]
    settings: dict[str, Any]
    pytests: bool = False


def _of(suites: tuple[str, ...], typed: str, told: str, **settings: Any) -> Option:  # noqa: ANN401
    """An option as it is typed, its names and then its value where it takes one: "--seed N"."""
    names = tuple(each for each in typed.split() if each.startswith("-"))
    value = typed.split()[len(names) :]
    known: dict[str, Any] = {"metavar": value[0]} if value else {"action": "store_true"}
    return Option(names, suites, known | {"help": told} | settings)


def _of_pytest(
    typed: str,
    told: str,
    suites: tuple[str, ...] = _PYTESTS,
    **settings: Any,  # noqa: ANN401
) -> Option:
    return dataclasses.replace(_of(suites, typed, told, **settings), pytests=True)


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


OPTIONS = (
    # Which kernels, on which cases.
    _of(_ALL, "--op NAME", "only this op; may be repeated", **_REPEATED),
    _of(
        _ALL,
        "--kernel NAME",
        "only this kernel; may be repeated; a baseline named here sets the exit status",
        **_REPEATED,
    ),
    _of(
        _ALL,
        "--kernels FILE",
        "a Python file that registers kernels; they run alone unless --kernel names others",
        type=not_empty,
        **_REPEATED,
    ),
    _of(
        _ALL,
        "--ops FILE",
        "a Python file that defines ops, for --kernels and --cases; may be repeated",
        type=not_empty,
        **_REPEATED,
    ),
    _of(
        _ALL,
        "--definition FILE",
        "an op as flashinfer's trace format defines it, in JSON, for --kernels; may be repeated",
        type=not_empty,
        **_REPEATED,
    ),
    _of(
        _ALL,
        "--workloads FILE",
        "cases of --definition, in the same format, a JSON object a line; may be repeated",
        type=not_empty,
        **_REPEATED,
    ),
    _of(
        _JUDGED,
        "--dtype NAME",
        "only activations of this dtype (float32, float16, bfloat16); may be repeated",
        **_REPEATED,
    ),
    _of(
        ("accuracy", "sanitize"),
        "--tier ci|full",
        "ci (default), or full, which includes it",
        default="ci",
    ),
    _of(_PYTESTS, "--case ID", "only the case of this exact id", **_REPEATED),
    _of(
        _JUDGED,
        "--cases FILE",
        "cases of your own, a JSON object a line; they run alone; may be repeated",
        type=not_empty,
        **_REPEATED,
    ),
    _of(
        _PYTESTS,
        "--seed N|N..M",
        "added to every case's seed (default 0); every case once for each of several",
        default="0",
        type=_seeds,
    ),
    _of_pytest("-k WORDS", 'only rows that have words in their names, as "bfloat16 and offset1"'),
    _of(
        _RUNS,
        "--lf --last-failed",
        "only the rows that failed in the last record in --results; all, where none did",
        dest="lf",
    ),
    _of(
        _RUNS, "--ff --failed-first", "all rows, those that failed there first", dest="failedfirst"
    ),
    _of(
        _RUNS,
        "--failed RECORD",
        "only the rows that failed in this record; with --ff all, those first",
        type=not_empty,
    ),
    _of(
        _JUDGES,
        "--resume RECORD",
        "go on with a run that was cut off, given its options",
        type=not_empty,
    ),
    # Of a process that another one started: which share of the cases it tries, what it needn't try,
    # and a file with what the suite has found out already.
    _of(_JUDGES, "--shard N/M", argparse.SUPPRESS, default=""),
    _of(_JUDGES, "--known CASES", argparse.SUPPRESS, default=""),
    _of(_RUNS, "--done PAIRS", argparse.SUPPRESS),
    # Where and how kernels are called.
    _of(
        (*_RUNS, *_SEARCH),
        "--device cpu|cuda",
        "cuda, or cpu under Triton's interpreter; by default the GPU where there is one",
        default="auto",
    ),
    _of(
        ("accuracy", "bench", "search"),
        "--sm N",
        f"on a CPU, the sm that domains are asked about (default {DEFAULT_SM})",
        default=DEFAULT_SM,
        type=whole_number(70, 199),
    ),
    _of(
        _JUDGES,
        "--no-strict",
        "on a CPU, don't check each access of a kernel against its arguments",
    ),
    _of(
        (*_JUDGES, *_COMPILE),
        "--jobs N",
        "processes that share the work; by default as many as the machine is good for",
        type=whole_number(1, MOST_JOBS),
    ),
    _of(
        _RUNS,
        "--time-limit S",
        "seconds that one call of a kernel may take (default 300)",
        default=300.0,
        type=number(0.1, _WEEK_S),
    ),
    _of(
        (*_RUNS, *_SEARCH),
        "--memory-limit GIB",
        "memory of the host that a kernel's process may take; by default half of what is free",
        type=_gib,
    ),
    _of(
        _JUDGES,
        "--in-process",
        "call kernels in the suite's own process, for a debugger; one that crashes ends it",
    ),
    _of(
        _RUNS,
        "--signs N",
        "what second calls' signs, and further values, are drawn from, as a row has it; by "
        "default a secret",
        type=whole_number(0, _SECRET),
    ),
    _of(
        ("accuracy", "sanitize"),
        "--every-configuration",
        "judge each kernel by every configuration that could serve a case, not by the one that "
        "dispatch takes alone",
    ),
    _of(
        ("accuracy", "sanitize"),
        "--configuration NAME",
        "judge kernels by this configuration alone, as a row of --every-configuration names it; "
        "may be repeated",
        **_REPEATED,
    ),
    _of(
        _ACCURACY,
        "--coverage",
        "tell which pairs of layouts, values, options, sizes and dtypes met in each kernel's "
        "cases; takes up to some seconds a kernel",
    ),
    # How cases are searched for.
    _of(
        _SEARCH,
        "--minutes M",
        "how long to search (default 5)",
        default=5.0,
        type=number(0.01, _MOST_MINUTES),
    ),
    _of(
        _SEARCH,
        "--finds N",
        "end when a process has found so many",
        type=whole_number(1, 1_000_000),
    ),
    _of(
        _SEARCH,
        "--seed N",
        "what cases are drawn from (default 0)",
        default=0,
        type=whole_number(0, _LARGEST_SEED),
    ),
    _of(
        _SEARCH,
        "--time-limit S",
        "seconds that one call of a kernel may take (default 60)",
        default=60.0,
        type=number(0.1, _WEEK_S),
    ),
    # How a time is measured.
    _of(
        _BENCH,
        "--cache cold|warm",
        "whether a call finds its inputs in the L2 cache (default cold)",
        choices=("cold", "warm"),
        default="cold",
    ),
    _of(
        _BENCH,
        "--row-time S",
        "seconds of sampling for a row, at most (default 0.4)",
        default=0.4,
        type=number(0.001, 3600),
    ),
    _of(_BENCH, "--quick", "one case in four, a fifth as long"),
    _of(
        _BENCH,
        "--no-baselines",
        "no peers beside ours; so does --against REF, unless --kernel names some",
    ),
    _of(_BENCH, "--gpus N,N|all", "on each of these GPUs, one after the other", type=not_empty),
    _of(_BENCH, "--gpus-together", "on all of --gpus at the same time"),
    _of(
        _BENCH,
        "--against REF|FILE",
        "time another commit's kernels too, or with --kernels an older file's, in turn",
        type=not_empty,
    ),
    _of(
        _BENCH,
        "--rounds N",
        "every row in so many processes, one after the other, in one record (default 1); of "
        "--against so many times four, A B B A (default 2)",
        type=whole_number(1, 1000),
    ),
    _of(
        _BENCH,
        "--ncu",
        "of each row's call also what Nsight Compute counts; its report lies beside the record",
    ),
    _of(_BENCH, "--gate", "of --against, exit status 1 where a row is slower or less accurate"),
    # How an energy is measured.
    _of(
        _PROFILE,
        "--window S",
        "seconds of a trial, of which the first is dropped (default 5)",
        default=5.0,
        type=number(2, 3600),
    ),
    _of(
        _PROFILE,
        "--trials N",
        "of each row (default 4); one less of what stands beside it on other inputs",
        default=4,
        type=whole_number(1, 1000),
    ),
    _of(
        _PROFILE,
        "--distribution normal|zeros",
        "what operands hold; may be repeated; by default normal, and zeros beside it where "
        "arithmetic is most of the work",
        choices=("normal", "zeros"),
        **_REPEATED,
    ),
    # What is compiled.
    _of(
        _COMPILE,
        "--sm N",
        "only this generation; may be repeated (75, 80, 86, 89, 90, 100, 120)",
        type=whole_number(1, 999),
        **_REPEATED,
    ),
    _of(_COMPILE, "--all", "every variant of every kernel, not only those that stand for the rest"),
    _of(_COMPILE, "--against FILE", "also show what changed since this record", type=not_empty),
    _of(
        _COMPILE,
        "--cache DIR",
        "where measurements are kept (default: ~/.cache/kernel-workbench/compile)",
        type=not_empty,
    ),
    _of(
        _COMPILE,
        "--check-driver",
        "on a machine with a GPU: compare with what its driver says of each kernel",
    ),
    # When the run fails, what is written, what is shown.
    _of_pytest("-x --exitfirst", "end at the first row that fails"),
    _of_pytest("--maxfail N", "end when so many rows failed", type=whole_number(1, 10**9)),
    _of(_JUDGED, "--gate-baselines", "baselines' failures set the exit status too"),
    _of(
        _ALL,
        "--results DIR",
        "where records are written",
        default=str(ROOT / "results"),
        type=not_empty,
    ),
    _of(_JUDGED, "--hash-uuid", "keep a hash of the GPU's UUID, not the UUID"),
    _of(_ALL, "--details", "at the end print all of the report, not what fits a screen"),
    _of(
        (*_RUNS, *_SEARCH, *_COMPILE),
        "--list",
        "show the kernels and cases that would run, and run nothing",
    ),
    _of_pytest("--collect-only --co", "only list the rows"),
    _of_pytest("--pdb", "a debugger at a failure, for --in-process", _ACCURACY),
    _of_pytest("-s", "show what kernels print, for --in-process", _IN_PROCESS),
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
