"""`python -m studies.tiers_of_mutants [NAME ...]`: which cases kill a mutant, its own aside.

By default the mutants that are wrong where two or three things meet. Each is tried on the cases of
`ci` that people wrote; where these let it pass, on the generated ones of `ci`, called once; and
then on the generated ones of `full` that an interpreter can run (oracles/cases/coverings). Of our
kernels those are asked that its edits can change. Cases that have most in common with its own come
first, since one that is killed is done with then: how many were tried says little.

A line a mutant as it is known: what killed it, how many rows were tried, and in how many seconds;
and the sums. --jobs N: so many at a time. Ctrl-C ends it with the sums of those that are known.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from oracles import OPS
from oracles.cases import GENERATED, TIERS
from oracles.op import Case
from reports.record import AccuracyRow
from suites.accuracy.run import Run
from suites.accuracy.suite import FURTHER
from suites.run.option_table import DEFAULT_SM
from suites.sandbox.judge_side.workers import Workers
from tests.mutants.mutant import Mutant
from tests.mutants.pairs import (
    changed_kernels,
    chosen,
    command_line,
    each_known,
    is_told_by_another,
)

_MOST_FLOPS = 2e7  # of a case that an interpreter runs in a second
_NONE = "none"


@dataclass(frozen=True, slots=True)
class Killed:
    """The stage that killed a mutant, or none, and by what."""

    stage: str
    what: str
    tried: int
    seconds: float


def stages(mutant: Mutant) -> dict[str, list[Case]]:
    """The cases of each stage that a CPU can run: most like its own first, of these the small."""
    op = OPS[mutant.op]
    own = [frozenset(_words(each)) for each in mutant.own_cases.values()]
    found = {each: list[Case]() for each in ("written", *TIERS)}

    def unlike(case: Case) -> tuple[int, float]:
        has = set(_words(case))
        return min((len(each - has) for each in own), default=0), op.flops(case)

    for case in sorted(op.cases(), key=unlike):
        if case.why == GENERATED and op.flops(case) <= _MOST_FLOPS:
            found[case.tier].append(case)
        elif case.why != GENERATED and case.tier == "ci":
            found["written"].append(case)
    return found


def _words(case: Case) -> Iterator[str]:
    """What a case has besides sizes."""
    yield from case.options
    yield case.dtype_label
    if case.distribution != "normal":
        yield case.distribution
    if case.layout.tensors:
        yield from case.layout.name.split("+")


def rows(run: Run, workers: Workers, mutant: Mutant, cases: list[Case]) -> Iterator[AccuracyRow]:
    """Our kernels, as the mutant has them, on cases that they serve: a run tries them all."""
    ours = changed_kernels(workers.kernels(), mutant)
    for case in cases:
        for kernel in ours:
            if run.refusal(kernel, case) is None and not is_told_by_another(
                run, kernel, case, ours
            ):
                yield run.try_pair(kernel, case)


def killed(mutant: Mutant, folder: Path) -> Killed:
    """The first stage that has a row which fails."""
    started, tried = time.perf_counter(), 0
    mutant.write_overlay(folder)
    device = torch.device("cpu")
    workers = Workers(device, DEFAULT_SM, overlay=folder)
    run = Run(device, DEFAULT_SM, workers=workers, further=FURTHER)
    try:
        for stage, cases in stages(mutant).items():
            run.briefly = stage == "ci"
            for row in rows(run, workers, mutant, cases):
                tried += 1
                if row.status == "failed":
                    what = f"{row.rule}, {row.kernel}, {row.case.id}"
                    return Killed(stage, what, tried, time.perf_counter() - started)
        return Killed(_NONE, "-", tried, time.perf_counter() - started)
    finally:
        workers.close()


def main() -> None:
    """Print a line a mutant as it is known, and the sums."""
    parser = command_line("tiers_of_mutants", __doc__)
    options = parser.read()
    counts = dict.fromkeys(("written", *TIERS, _NONE), 0)
    for mutant, known in each_known(killed, chosen(parser, options), options.jobs):
        if isinstance(known, BaseException):
            print(f"{'?':7} {mutant.name:44} {type(known).__name__}: {known}", flush=True)
            continue
        counts[known.stage] += 1
        print(
            f"{known.stage:7} {mutant.name:44} {known.tried:4} tried  {known.seconds:4.0f} s  "
            f"{known.what}",
            flush=True,
        )
    print(", ".join(f"{name}: {count}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
