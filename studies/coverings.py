"""`python -m studies.coverings [--write]`: the generated cases of both tiers.

It makes the files of `oracles/cases/coverings/`, beside the cases that people wrote. In those of
`full` each pair of levels meets that a case of each of our kernels can have
(oracles/cases/covering.py), and so do every three options, each of which may be absent. In those of
`ci` each pair meets that a quick case of any of our kernels can have: an interpreter runs them.
Without --write it says what the files lack.

Kernels that users bring get the rest within their own domains when they are run, in `ci` too
(suites/accuracy/own_cases.py).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch

from kernels.registry import Kernel, all_kernels
from oracles import OPS
from oracles.cases import COVERINGS, GENERATED, TIERS
from oracles.cases.covering import cover_pairs, cover_triples
from oracles.op import Case, Op, Tier
from suites.accuracy.own_cases import is_small

_SM = 90
_MOST_FLOPS = 5e6  # of a quick case


def served_by(kernels: Iterable[Kernel], device: str = "cuda") -> Callable[[Case], bool]:
    """Whether one of the kernels serves a case."""
    chosen = tuple(kernels)

    def serves(case: Case) -> bool:
        return any(each.domain.reject(case, _SM, device) is None for each in chosen)

    return serves


def ours(op: Op) -> tuple[Kernel, ...]:
    """Our kernels of an op, that which serves the least of its cases first."""
    kernels = [each for each in all_kernels() if each.op.name == op.name and each.origin == "ours"]
    ci = [case for case in written(op) if case.tier == "ci"]
    return tuple(sorted(kernels, key=lambda each: sum(map(served_by([each]), ci))))


def written(op: Op) -> list[Case]:
    """The cases that people wrote."""
    return [case for case in op.cases() if case.why != GENERATED]


def covered(op: Op, beside: Iterable[Case], tier: Tier) -> list[Case]:
    """The cases of a tier in which, with these of it, all that is to meet there meets."""
    kernels = ours(op)
    known = [case for case in beside if tier in {"full", case.tier}]
    if tier == "ci":
        serves = partial(_is_quick, op, served_by(kernels, "cpu"))
        return cover_pairs(op, serves, known, tier, GENERATED)
    made: list[Case] = []
    for each in kernels:
        made += cover_pairs(op, served_by([each]), (*known, *made), tier, GENERATED)
    made += cover_triples(op, served_by(kernels), (*known, *made), tier, GENERATED)
    return made


def _is_quick(op: Op, serves: Callable[[Case], bool], case: Case) -> bool:
    assert op.allowed is not None
    return is_small(op, case, _MOST_FLOPS) and op.allowed.is_quick(case) and serves(case)


def file_of(op: Op, tier: Tier) -> Path:
    """The file that has the generated ids."""
    return COVERINGS / tier / f"{op.name}.txt"


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or say what they lack."""
    parser = argparse.ArgumentParser(prog="python -m studies.coverings", description=__doc__)
    parser.add_argument("--write", action="store_true", help="make the files anew")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.write:  # before they are read: what is made doesn't depend on what was made
        for path in COVERINGS.glob("*/*.txt"):
            path.unlink()
    missing = 0
    for op in OPS.values():
        if op.allowed is None or not ours(op):
            continue
        known = written(op) if options.write else list(op.cases())
        for tier in TIERS:
            made = covered(op, known, tier)
            if options.write:
                ids = sorted(case.id() for case in made)
                file_of(op, tier).write_text("".join(f"{each}\n" for each in ids))
                print(f"{op.name}, {tier}: {len(ids):,} cases")
            else:
                missing += len(made)
                print(f"{op.name}, {tier}: {len(made):,} cases would meet what none does")
            known += made
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())
