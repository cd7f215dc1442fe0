"""`python -m studies.coverings [--write]`: the generated cases of both tiers.

They are in the files of `oracles/cases/coverings/`, beside the cases that people wrote. In those of
`full` each pair of levels meets that a case of each of our kernels can have, or one within what a
library serves (kernels/feature_sets.py); and so do every three options, each of which may be
absent. In those of `ci` each pair meets that a quick case of any of our kernels can have, which an
interpreter runs; and within what each library serves each pair that has an option in it. It says
what the files lack; --write adds that to them.

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

from kernel_workbench.kernels.domain import Domain
from kernel_workbench.kernels.feature_sets import feature_sets
from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.cases import COVERINGS, GENERATED, TIERS
from kernel_workbench.oracles.cases.covering import cover_pairs, cover_triples
from kernel_workbench.oracles.op import Case, Op, Tier
from kernel_workbench.suites.accuracy.own_cases import is_small

_SM = 90
_MOST_FLOPS = 5e6  # of a quick case


def within(*domains: Domain, device: str = "cuda") -> Callable[[Case], bool]:
    """Whether one of the domains holds a case."""

    def holds(case: Case) -> bool:
        return any(each.reject(case, _SM, device) is None for each in domains)

    return holds


def served_by(kernels: Iterable[Kernel], device: str = "cuda") -> Callable[[Case], bool]:
    """Whether one of the kernels serves a case."""
    return within(*(each.domain for each in kernels), device=device)


def _both(one: Callable[[Case], bool], other: Callable[[Case], bool], case: Case) -> bool:
    return one(case) and other(case)


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
    made: list[Case] = []
    domains = [each.domain for each in feature_sets(op)]
    if tier == "ci":
        serves = partial(_is_quick, op, served_by(kernels, "cpu"))
        for each in domains:
            both = partial(_both, serves, within(each))
            made += cover_pairs(op, both, (*known, *made), tier, GENERATED, of_options=True)
        return made + cover_pairs(op, serves, (*known, *made), tier, GENERATED)
    for each in (*(kernel.domain for kernel in kernels), *domains):
        made += cover_pairs(op, within(each), (*known, *made), tier, GENERATED)
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
    parser.add_argument("--write", action="store_true", help="add what the files lack")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    missing = 0
    for op in OPS.values():
        if op.allowed is None or not ours(op):
            continue
        known = list(op.cases())
        for tier in TIERS:
            made = covered(op, known, tier)
            known += made
            if options.write:
                generated = {each for each in known if (each.why, each.tier) == (GENERATED, tier)}
                ids = sorted(each.id() for each in generated)
                file_of(op, tier).write_text("".join(f"{each}\n" for each in ids))
                print(f"{op.name}, {tier}: {len(made):,} cases added to {len(ids) - len(made):,}")
            else:
                missing += len(made)
                print(f"{op.name}, {tier}: {len(made):,} cases would meet what none does")
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())
