"""`python -m studies.tiers_of_mutants [NAME ...]`: which cases kill a mutant, its own aside.

By default the mutants that are wrong where two or three things meet. Each is tried on the cases of
`ci` that people wrote; where these let it pass, on the generated ones of `ci`, called once; and
then on the generated ones of `full` that an interpreter can run (oracles/cases/coverings). A line a
mutant: what killed it, and how many rows were tried.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from oracles import OPS
from oracles.cases import GENERATED, TIERS
from oracles.op import Case
from reports.record import AccuracyRow
from suites.accuracy.run import Run
from suites.run.option_table import DEFAULT_SM
from suites.sandbox.judge_side.workers import Workers
from tests.mutants import attention_backward_pairs, attention_forward_pairs, layer_norm_pairs
from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *layer_norm_pairs.MUTANTS,
    *attention_forward_pairs.MUTANTS,
    *attention_backward_pairs.MUTANTS,
)
_MOST_FLOPS = 2e7  # of a case that an interpreter runs in a second


def stages(op: str) -> dict[str, list[Case]]:
    """The cases of each stage that a CPU can run, the small ones first."""
    flops, found = OPS[op].flops, {each: list[Case]() for each in ("written", *TIERS)}
    for case in sorted(OPS[op].cases(), key=flops):
        if case.why == GENERATED and flops(case) <= _MOST_FLOPS:
            found[case.tier].append(case)
        elif case.why != GENERATED and case.tier == "ci":
            found["written"].append(case)
    return found


def rows(
    run: Run, workers: Workers, mutant: Mutant, cases: Iterable[Case]
) -> Iterator[AccuracyRow]:
    """Our kernels, as the mutant has them, on cases that they serve: a run tries them all."""
    known = [each for each in workers.kernels() if each.op.name == mutant.op]
    ours = [each for each in known if each.origin == "ours"]
    run.workers = workers
    for case in cases:
        for kernel in ours:
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
    counts = {"written": 0, "ci": 0, "full": 0, "none": 0}
    run = Run(torch.device("cpu"), DEFAULT_SM)
    for mutant in MUTANTS:
        if names and mutant.name not in names:
            continue
        tried, what, killer = 0, "-", "none"
        for stage, cases in stages(mutant.op).items():
            run.briefly = stage == "ci"
            more, row = killed(run, mutant, cases)
            tried += more
            if row is not None:
                killer, what = stage, f"{row.rule}, {row.case.id}"
                break
        counts[killer] += 1
        print(f"{killer:7} {mutant.name:44} {tried:4} tried  {what}", flush=True)
    print(", ".join(f"{name}: {count}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
