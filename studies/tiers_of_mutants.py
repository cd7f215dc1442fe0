"""`python -m studies.tiers_of_mutants [NAME ...]`: which cases kill a mutant, its own aside.

By default the mutants that are wrong where two or three things meet. Each is tried on the cases of
`ci` that people wrote; where these let it pass, on the generated ones of `ci`, called once; and
then on the generated ones of `full` that an interpreter can run (oracles/cases/coverings). Of our
kernels those are asked that its edits can change. Cases that have most in common with its own come
first, since one that is killed is done with then: how many were tried says little.

A line a mutant as it is known: what killed it, how many rows were tried, and in how many seconds;
and the sums. --jobs N: so many at a time. --parts N: each mutant's cases in so many parts, tried
beside one another. Ctrl-C ends it with the sums of those that are known.
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

_MOST_FLOPS = 2e7  # of a case that an interpreter runs in a second
_NONE = "none"
_STAGES = ("written", *TIERS, _NONE)


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


def killed(mutant: Mutant, folder: Path, part: int, parts: int) -> Killed:
    """The first stage in which a row of this part of the cases fails.

    It ends where another part has killed the mutant in the same stage or an earlier one.
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
                if any(each.exists() for each in marks):
                    return Killed(_NONE, "-", tried, time.perf_counter() - started)
        return Killed(_NONE, "-", tried, time.perf_counter() - started)
    finally:
        workers.close()


def together(parts: Sequence[Killed]) -> Killed:
    """What the parts of a mutant come to; seconds: of all processes."""
    first = min(parts, key=lambda each: _STAGES.index(each.stage))
    tried, seconds = sum(each.tried for each in parts), sum(each.seconds for each in parts)
    return Killed(first.stage, first.what, tried, seconds)


def main() -> None:
    """Print a line a mutant as it is known, and the sums."""
    parser = command_line("tiers_of_mutants", __doc__)
    parser.add_argument("--parts", type=whole_number(1, 100), default=1, metavar="N")
    options = parser.read()
    counts, found = dict.fromkeys(_STAGES, 0), dict[str, list[Killed]]()
    task = partial(killed, parts=options.parts)
    for mutant, known in each_known(task, chosen(parser, options), options.jobs, options.parts):
        if isinstance(known, BaseException):
            print(f"{'?':7} {mutant.name:44} {type(known).__name__}: {known}", flush=True)
            continue
        found.setdefault(mutant.name, []).append(known)
        if len(found[mutant.name]) < options.parts:
            continue
        whole = together(found[mutant.name])
        counts[whole.stage] += 1
        print(
            f"{whole.stage:7} {mutant.name:44} {whole.tried:4} tried  {whole.seconds:4.0f} s  "
            f"{whole.what}",
            flush=True,
        )
    for name, parts in found.items():
        if len(parts) < options.parts:
            whole = together(parts)
            told = f"{len(parts)} of {options.parts} parts done"
            print(f"{'cut off':7} {name:44} {whole.tried:4} tried  {told}: {whole.stage}")
    print(", ".join(f"{name}: {count}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
