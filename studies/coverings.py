"""`python -m studies.coverings [--write]`: the generated part of `full`.

It makes the files of `oracles/cases/coverings/`: cases in which each pair of levels meets that a
case of each of our kernels can have (oracles/cases/covering.py), and every triple of options,
beside the cases that people wrote. Without --write it says what the files lack.

Kernels that users bring get the rest within their own domains when they are run, in `ci` too
(suites/accuracy/own_cases.py).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from kernels.registry import Kernel, all_kernels
from oracles import OPS
from oracles.cases import COVERINGS, GENERATED
from oracles.cases.covering import cover_pairs, cover_triples
from oracles.op import Case, Op

_SM = 90


def served_by(kernels: Iterable[Kernel]) -> Callable[[Case], bool]:
    """Whether one of the kernels serves a case."""
    chosen = tuple(kernels)

    def serves(case: Case) -> bool:
        return any(each.domain.reject(case, _SM, "cuda") is None for each in chosen)

    return serves


def ours(op: Op) -> tuple[Kernel, ...]:
    """Our kernels of an op, that which serves the least of its cases first."""
    kernels = [each for each in all_kernels() if each.op.name == op.name and each.origin == "ours"]
    ci = [case for case in op.cases() if case.tier == "ci"]
    return tuple(sorted(kernels, key=lambda each: sum(map(served_by([each]), ci))))


def written(op: Op) -> list[Case]:
    """The cases that people wrote."""
    return [case for case in op.cases() if case.why != GENERATED]


def covered(op: Op, beside: Iterable[Case]) -> list[Case]:
    """The cases in which, with these, all pairs and triples meet."""
    kernels, known = ours(op), list(beside)
    made: list[Case] = []
    for each in kernels:
        made += cover_pairs(op, served_by([each]), (*known, *made), "full", GENERATED)
    made += cover_triples(op, served_by(kernels), (*known, *made), "full", GENERATED)
    return made


def file_of(op: Op) -> Path:
    """The file that has the generated ids."""
    return COVERINGS / f"{op.name}.txt"


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or say what they lack."""
    parser = argparse.ArgumentParser(prog="python -m studies.coverings", description=__doc__)
    parser.add_argument("--write", action="store_true", help="make the files anew")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.write:  # before they are read: what is made doesn't depend on what was made
        for path in COVERINGS.glob("*.txt"):
            path.unlink()
    missing = 0
    for op in OPS.values():
        if op.allowed is None or not ours(op):
            continue
        if options.write:
            ids = sorted(case.id() for case in covered(op, written(op)))
            file_of(op).write_text("".join(f"{each}\n" for each in ids))
            print(f"{op.name}: {len(ids):,} cases")
        else:
            lacking = covered(op, op.cases())
            missing += len(lacking)
            print(f"{op.name}: {len(lacking):,} cases would meet what none does")
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())
