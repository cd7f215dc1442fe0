"""`python -m studies.tiers_of_mutants [NAME ...]`: which tier's cases kill a mutant, its own aside.

By default the mutants that are wrong where two or three things meet. Each is tried on the cases of
`ci` that people wrote; where these let it pass, on the generated ones of `full` that an interpreter
can run (oracles/cases/coverings). A line a mutant: what killed it, and how many cases were tried.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from oracles import OPS
from oracles.cases import GENERATED
from oracles.op import Case
from reports.record import AccuracyRow
from suites.accuracy.run import Run
from suites.run.option_table import DEFAULT_SM
from suites.sandbox.judge_side.workers import Workers
from tests.mutants import attention_backward_pairs, attention_forward_pairs, layer_norm_pairs
from tests.mutants.mutant import Mutant, ci_cases

MUTANTS: tuple[Mutant, ...] = (
    *layer_norm_pairs.MUTANTS,
    *attention_forward_pairs.MUTANTS,
    *attention_backward_pairs.MUTANTS,
)
_MOST_FLOPS = 2e7  # of a case that an interpreter runs in a second


def generated(op: str) -> list[Case]:
    """The generated cases of `full` that a CPU can run, the small ones first."""
    found = [each for each in OPS[op].cases() if each.why == GENERATED]
    flops = OPS[op].flops
    return sorted((each for each in found if flops(each) <= _MOST_FLOPS), key=flops)


def rows(
    run: Run, workers: Workers, mutant: Mutant, cases: Iterable[Case]
) -> Iterator[AccuracyRow]:
    """The mutant on cases, those aside that it refuses."""
    known = workers.kernels()
    kernel = next(each for each in known if (each.op.name, each.name) == (mutant.op, mutant.kernel))
    run.workers = workers
    for case in cases:
        if run.refusal(kernel, case) is None:
            yield run.try_pair(kernel, case)


def killed(run: Run, mutant: Mutant, cases: Iterable[Case]) -> tuple[int, AccuracyRow | None]:
    """How many cases were tried, and the row that killed it."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        mutant.write_overlay(Path(folder))
        workers = Workers(run.device, DEFAULT_SM, overlay=Path(folder))
        try:
            tried = 0
            for row in rows(run, workers, mutant, cases):
                tried += 1
                if row.status == "failed":
                    return tried, row
            return tried, None
        finally:
            workers.close()


def main() -> None:
    """Print a line a mutant as it is known, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args().names
    counts = {"ci": 0, "full": 0, "none": 0}
    run = Run(torch.device("cpu"), DEFAULT_SM)
    for mutant in MUTANTS:
        if names and mutant.name not in names:
            continue
        tried, row = killed(run, mutant, ci_cases(mutant.op).values())
        tier = "ci" if row else "full"
        if row is None:
            more, row = killed(run, mutant, generated(mutant.op))
            tried += more
        tier = tier if row else "none"
        counts[tier] += 1
        what = "-" if row is None else f"{row.rule}, {row.case.id}"
        print(f"{tier:5} {mutant.name:44} {tried:4} tried  {what}", flush=True)
    print(", ".join(f"{name}: {count}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
