"""`python -m studies.search_of_mutants [NAME ...]`: which mutants `nox -s search` finds by itself.

By default the study searches the mutants that are wrong where two or three things meet, one by one
as `nox -s search -- --kernel NAME --device cpu --jobs 1 --finds 1`: the search knows neither the
mutant's cases nor the op's lists. A find is shrunk, and tried on the mutant's sound kernel. NAME
may be any mutant of kernels/ or of an op from a reference, and a pattern, as own_softmax_*.

The study prints a line for each mutant (found or not, seconds and cases without shrinking, the
rule, the shrunk case, and the case as drawn), and the sums. A mutant that no interpreter shows, for
example at a size near 2^31 elements, is not found.

--minutes M: for each mutant (default 5). --seed N: seed of the draws. --jobs N: mutants at a time.
Ctrl-C ends the study with the sums so far.
"""

from __future__ import annotations

import argparse
import fnmatch
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.cases.names import case_named
from kernel_workbench.reports.arguments import CommandLine, number, whole_number
from kernel_workbench.reports.record import FindRow
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.run.option_table import DEFAULT_SM, SearchOptions, options_from
from kernel_workbench.suites.run.options import SuiteOptions
from kernel_workbench.suites.run.progress import Progress
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from kernel_workbench.suites.search.suite import Search
from tests import ROOT
from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.pairs import PAIRS, command_line, each_known

_CPU = torch.device("cpu")
_FOUND, _NOT_FOUND, _UNSOUND = "found", "not found", "sound one fails"


@dataclass(frozen=True, slots=True)
class Searched:
    """The result of a search; seconds and cases count up to the first failure, or all."""

    result: str
    seconds: float
    cases: int
    what: str


class _Silent(Progress):
    """A progress without output, since many searches run side by side."""

    def advance(self, label: str) -> None:
        """Print nothing."""


class _OfMutant(Search):
    """A search of one kernel, in a changed copy of `kernels/` or of a user's file."""

    def __init__(self, mutant: Mutant, folder: Path, *limits: str) -> None:
        typed = ["--op", mutant.op, "--kernel", mutant.kernel, "--device", "cpu", "--jobs", "1"]
        files: tuple[Path, ...] = ()
        if mutant.file is None:
            mutant.write_overlay(folder)
        else:
            files = (mutant.write_file(folder),)
            typed += ["--kernels", str(files[0])]
        parsed = SuiteOptions("search").read([*typed, "--finds", "1", *limits])
        options = options_from(SearchOptions, parsed)
        super().__init__(options, _CPU)
        self.workers = Workers(
            _CPU,
            self.sm,
            overlay=None if files else folder,
            files=files,
            time_limit_s=options.time_limit,
        )

    def selected(self) -> tuple[Kernel, ...]:
        """Return the mutant's kernel in the changed copy."""
        assert self.workers is not None
        wanted = self.options.op[0], self.options.kernel[0]
        kernels = self.workers.kernels()
        return tuple(kernel for kernel in kernels if (kernel.op.name, kernel.name) == wanted)


def searched(mutant: Mutant, folder: Path, minutes: float, seed: int) -> Searched:
    """Search until the first find or until the time is up."""
    search = _OfMutant(mutant, folder, "--minutes", str(minutes), "--seed", str(seed))
    try:
        search.plan()
        started, cases = time.perf_counter(), 0
        failed_s = 0.0
        for row in search.finish(_Silent("search")):
            if isinstance(row, FindRow):
                sound = _sound(mutant, row)
                result = _UNSOUND if sound == "failed" else _FOUND
                what = (
                    f"{row.rule}, {row.case.id}, {row.confirmed} of {row.confirmations} fresh, "
                    f"shrunk in {row.duration_s:.0f} s{'' if row.whole else ' (cut off)'}, "
                    f"the sound kernel {sound}; drawn as {row.first_case}"
                )
                return Searched(result, failed_s, cases, what)
            cases += 1
            failed_s = time.perf_counter() - started
        what = "-" if cases else "the kernel serves nothing here"
        return Searched(_NOT_FOUND, time.perf_counter() - started, cases, what)
    finally:
        search.close()


def _sound(mutant: Mutant, find: FindRow) -> str:
    """Return the status of the mutant's sound kernel on the shrunk case."""
    case = case_named(OPS[mutant.op], find.case.id)
    if case is None:
        return "can't be asked"
    name = mutant.op, mutant.sound or mutant.kernel
    workers = Workers(_CPU, DEFAULT_SM, files=() if mutant.file is None else (ROOT / mutant.file,))
    kernels = (*all_kernels(), *workers.kernels())
    kernel = next(kernel for kernel in kernels if (kernel.op.name, kernel.name) == name)
    run = Run(_CPU, DEFAULT_SM, workers=workers)
    try:
        if run.refusal(kernel, case) is not None:
            return "refuses"
        return run.try_pair(kernel, case).status
    finally:
        workers.close()


def _chosen(parser: CommandLine, options: argparse.Namespace) -> list[Mutant]:
    """Return the mutants of the names and patterns; without any, those of two or three things."""
    names = {mutant.name: mutant for mutant in MUTANTS if mutant.edits}
    selected: dict[str, Mutant] = {}
    for pattern in options.names:
        matches = fnmatch.filter(names, pattern)
        if not matches:
            parser.error(f"{pattern}: no mutant that is made by edits has such a name")
        selected |= {name: names[name] for name in matches}
    return list(selected.values()) or list(PAIRS)


def main() -> None:
    """Print a line for each mutant when it is done, and the sums."""
    parser = command_line("search_of_mutants", __doc__)
    parser.add_argument("--minutes", type=number(0.01, 10_000), default=5.0, metavar="M")
    parser.add_argument("--seed", type=whole_number(0, 2**31 - 1), default=0, metavar="N")
    options = parser.read()
    task = partial(searched, minutes=options.minutes, seed=options.seed)
    counts = dict.fromkeys((_FOUND, _NOT_FOUND, _UNSOUND), 0)
    for mutant, done in each_known(task, _chosen(parser, options), options.jobs):
        if isinstance(done, BaseException):
            print(f"{'?':15} {mutant.name:44} {type(done).__name__}: {done}", flush=True)
            continue
        counts[done.result] += 1
        print(
            f"{done.result:15} {mutant.name:44} {done.seconds:4.0f} s {done.cases:5} cases  "
            f"{done.what}",
            flush=True,
        )
    print(", ".join(f"{name}: {count}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
