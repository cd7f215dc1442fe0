"""`python -m studies.search_of_mutants [NAME ...]`: which mutants `nox -s search` finds by itself.

By default the mutants that are wrong where two or three things meet. Each is searched as `nox -s
search -- --kernel NAME --device cpu --jobs 1 --finds 1` searches it: nothing is known of its cases,
nor of the lists of the op. What is found is shrunk, and tried on the kernel that the mutant was
made of.

A line a mutant as it is known: whether it was found, after how many seconds and cases (with finding
out which pairs the kernel can have, without shrinking), by which rule, the shrunk case, and the
case as it was drawn; and the sums. A mutant that no interpreter shows, as one of a size near 2^31
elements, is simply not found.

--minutes M: for each mutant (default 5). --seed N: what cases are drawn from. --jobs N: so many
mutants at a time. Ctrl-C ends it with the sums of those that are known.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.cases.names import case_named
from kernel_workbench.reports.arguments import number, whole_number
from kernel_workbench.reports.record import FindRow
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.run.option_table import DEFAULT_SM, SearchOptions, options_from
from kernel_workbench.suites.run.options import SuiteOptions
from kernel_workbench.suites.run.progress import Progress
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from kernel_workbench.suites.search.suite import Search
from tests.mutants.mutant import Mutant
from tests.mutants.pairs import chosen, command_line, each_known

_CPU = torch.device("cpu")
_FOUND, _NOT_FOUND, _UNSOUND = "found", "not found", "sound one fails"


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search came to; seconds and cases: until the first row that failed, or in all."""

    result: str
    seconds: float
    cases: int
    what: str


class _Silent(Progress):
    """Of a search beside many others."""

    def advance(self, label: str) -> None:
        """Say nothing."""


class _OfMutant(Search):
    """A search of one kernel in a changed copy of `kernels/`."""

    def __init__(self, mutant: Mutant, overlay: Path, *limits: str) -> None:
        typed = ["--op", mutant.op, "--kernel", mutant.kernel, "--device", "cpu", "--jobs", "1"]
        parsed = SuiteOptions("search").read([*typed, "--finds", "1", *limits])
        options = options_from(SearchOptions, parsed)
        super().__init__(options, _CPU)
        self.workers = Workers(_CPU, self.sm, overlay=overlay, time_limit_s=options.time_limit)

    def selected(self) -> tuple[Kernel, ...]:
        """The one that the mutant is made of, as it is in the copy."""
        assert self.workers is not None
        wanted = self.options.op[0], self.options.kernel[0]
        known = self.workers.kernels()
        return tuple(each for each in known if (each.op.name, each.name) == wanted)


def searched(mutant: Mutant, folder: Path, _: int, minutes: float, seed: int) -> Searched:
    """Search until the first find or until the time is up."""
    mutant.write_overlay(folder)
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
    """How the kernel that it was made of does on the shrunk case."""
    case = case_named(OPS[mutant.op], find.case.id)
    if case is None:
        return "can't be asked"
    name = mutant.op, mutant.sound or mutant.kernel
    kernel = next(each for each in all_kernels() if (each.op.name, each.name) == name)
    workers = Workers(_CPU, DEFAULT_SM)
    run = Run(_CPU, DEFAULT_SM, workers=workers)
    try:
        if run.refusal(kernel, case) is not None:
            return "refuses"
        return run.try_pair(kernel, case).status
    finally:
        workers.close()


def main() -> None:
    """Print a line a mutant as it is known, and the sums."""
    parser = command_line("search_of_mutants", __doc__)
    parser.add_argument("--minutes", type=number(0.01, 10_000), default=5.0, metavar="M")
    parser.add_argument("--seed", type=whole_number(0, 2**31 - 1), default=0, metavar="N")
    options = parser.read()
    task = partial(searched, minutes=options.minutes, seed=options.seed)
    counts = dict.fromkeys((_FOUND, _NOT_FOUND, _UNSOUND), 0)
    for mutant, known in each_known(task, chosen(parser, options), options.jobs):
        if isinstance(known, BaseException):
            print(f"{'?':15} {mutant.name:44} {type(known).__name__}: {known}", flush=True)
            continue
        counts[known.result] += 1
        print(
            f"{known.result:15} {mutant.name:44} {known.seconds:4.0f} s {known.cases:5} cases  "
            f"{known.what}",
            flush=True,
        )
    print(", ".join(f"{name}: {count}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
