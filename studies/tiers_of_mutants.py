"""`python -m studies.tiers_of_mutants [NAME ...]`: which cases kill a mutant, besides its own.

By default the study tries the mutants that are wrong where two or three things meet. A mutant runs
on the cases of `ci` that people wrote; if it passes, on the generated cases of `ci`, called once;
then on the generated cases of `full` that an interpreter can run (oracles/cases/coverings). Only
our kernels that the mutant's edits can change run. Cases most similar to the mutant's own come
first, to end early, so the number of tried rows says little.

The study prints a line for each mutant (the rule and case that killed it, tried rows, seconds), and
the sums. --jobs N: mutants at a time. --parts N: parts of each mutant's cases, tried side by side.
Ctrl-C ends the study with the sums so far.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.cases import GENERATED, TIERS
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.arguments import whole_number
from kernel_workbench.reports.record import AccuracyRow
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.accuracy.suite import FURTHER
from kernel_workbench.suites.run.option_table import DEFAULT_SM
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from tests.mutants.mutant import Mutant
from tests.mutants.pairs import (
    changed_kernels,
    chosen,
    command_line,
    each_known,
    is_told_by_another,
)

_MOST_FLOPS = 2e7  # an interpreter runs such a case in a second
_NONE = "none"
_STAGES = ("written", *TIERS, _NONE)


@dataclass(frozen=True, slots=True)
class Killed:
    """The stage that killed a mutant, or "none", and the rule, kernel and case."""

    stage: str
    what: str
    tried: int
    seconds: float


def stages(mutant: Mutant) -> dict[str, list[Case]]:
    """Return each stage's cases for a CPU: most similar to the mutant's own first, then small."""
    op = OPS[mutant.op]
    own = [frozenset(_words(case)) for case in mutant.own_cases.values()]
    cases = {stage: list[Case]() for stage in ("written", *TIERS)}

    def unlike(case: Case) -> tuple[int, float]:
        has = set(_words(case))
        return min((len(words - has) for words in own), default=0), op.flops(case)

    for case in sorted(op.cases(), key=unlike):
        if case.why == GENERATED and op.flops(case) <= _MOST_FLOPS:
            cases[case.tier].append(case)
        elif case.why != GENERATED and case.tier == "ci":
            cases["written"].append(case)
    return cases


def _words(case: Case) -> Iterator[str]:
    """Yield a case's properties other than sizes."""
    yield from case.options
    yield case.dtype_label
    if case.distribution != "normal":
        yield case.distribution
    if case.layout.tensors:
        yield from case.layout.name.split("+")


def rows(run: Run, workers: Workers, mutant: Mutant, cases: list[Case]) -> Iterator[AccuracyRow]:
    """Yield the rows of the mutant's copies of our kernels on the cases that they serve."""
    ours = changed_kernels(workers.kernels(), mutant)
    for case in cases:
        for kernel in ours:
            if run.refusal(kernel, case) is None and not is_told_by_another(
                run, kernel, case, ours
            ):
                yield run.try_pair(kernel, case)


def killed(mutant: Mutant, folder: Path, part: int, parts: int) -> Killed:
    """Return the first stage in which a row of this part of the cases fails.

    The run ends when another part has killed the mutant in the same stage or an earlier one.
    """
    started, tried = time.perf_counter(), 0
    mutant.write_overlay(folder)
    device = torch.device("cpu")
    workers = Workers(device, DEFAULT_SM, overlay=folder)
    run = Run(device, DEFAULT_SM, workers=workers, further=FURTHER)
    marks: list[Path] = []
    try:
        for stage, cases in stages(mutant).items():
            run.briefly = stage == "ci"
            marks.append(folder.parent / f"killed_by_{stage}")
            for row in rows(run, workers, mutant, cases[part::parts]):
                tried += 1
                if row.status == "failed":
                    marks[-1].touch()
                    what = f"{row.rule}, {row.kernel}, {row.case.id}"
                    return Killed(stage, what, tried, time.perf_counter() - started)
                if any(mark.exists() for mark in marks):
                    return Killed(_NONE, "-", tried, time.perf_counter() - started)
        return Killed(_NONE, "-", tried, time.perf_counter() - started)
    finally:
        workers.close()


def together(parts: Sequence[Killed]) -> Killed:
    """Combine the results of a mutant's parts; seconds are the sum over processes."""
    first = min(parts, key=lambda part: _STAGES.index(part.stage))
    tried, seconds = sum(part.tried for part in parts), sum(part.seconds for part in parts)
    return Killed(first.stage, first.what, tried, seconds)


def main() -> None:
    """Print a line for each mutant when it is done, and the sums."""
    parser = command_line("tiers_of_mutants", __doc__)
    parser.add_argument("--parts", type=whole_number(1, 100), default=1, metavar="N")
    options = parser.read()
    counts, results = dict.fromkeys(_STAGES, 0), dict[str, list[Killed]]()
    task = partial(killed, parts=options.parts)
    for mutant, outcome in each_known(task, chosen(parser, options), options.jobs, options.parts):
        if isinstance(outcome, BaseException):
            print(f"{'?':7} {mutant.name:44} {type(outcome).__name__}: {outcome}", flush=True)
            continue
        results.setdefault(mutant.name, []).append(outcome)
        if len(results[mutant.name]) < options.parts:
            continue
        whole = together(results[mutant.name])
        counts[whole.stage] += 1
        print(
            f"{whole.stage:7} {mutant.name:44} {whole.tried:4} tried  {whole.seconds:4.0f} s  "
            f"{whole.what}",
            flush=True,
        )
    for name, parts in results.items():
        if len(parts) < options.parts:
            whole = together(parts)
            progress = f"{len(parts)} of {options.parts} parts done"
            print(f"{'cut off':7} {name:44} {whole.tried:4} tried  {progress}: {whole.stage}")
    print(", ".join(f"{name}: {count}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
