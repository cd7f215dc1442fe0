"""`python -m studies.coverings [--write]`: the generated cases of both tiers.

The files are in `oracles/cases/coverings/`, beside the cases that people wrote. The file of `full`
covers each pair of levels that a case of our kernels can have, or a case within a library's
features (kernels/feature_sets.py), and every combination of three options. The file of `ci` covers
each pair that a quick case of our kernels can have in the interpreter, and each pair with an option
within a library's features. The study lists missing cases; --write adds them.

A user's kernel gets the remaining pairs of its own domain when it runs, in `ci` too
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
from kernel_workbench.oracles.cases.covering import cover_pairs, cover_together, cover_triples
from kernel_workbench.oracles.op import Case, Op, Tier
from kernel_workbench.suites.accuracy.own_cases import is_small

_SM = 90
_MOST_FLOPS = 5e6  # the most of a quick case


def within(*domains: Domain, device: str = "cuda") -> Callable[[Case], bool]:
    """Return a function that is True for a case that one of the domains serves."""

    def holds(case: Case) -> bool:
        return any(domain.reject(case, _SM, device) is None for domain in domains)

    return holds


def served_by(kernels: Iterable[Kernel], device: str = "cuda") -> Callable[[Case], bool]:
    """Return a function that is True for a case that one of the kernels serves."""
    return within(*(kernel.domain for kernel in kernels), device=device)


def _both(one: Callable[[Case], bool], other: Callable[[Case], bool], case: Case) -> bool:
    return one(case) and other(case)


def ours(op: Op) -> tuple[Kernel, ...]:
    """Return our kernels of an op, the one that serves the fewest cases first."""
    kernels = [one for one in all_kernels() if one.op.name == op.name and one.origin == "ours"]
    ci = [case for case in written(op) if case.tier == "ci"]
    return tuple(sorted(kernels, key=lambda kernel: sum(map(served_by([kernel]), ci))))


def written(op: Op) -> list[Case]:
    """Return the cases that people wrote."""
    return [case for case in op.cases() if case.why != GENERATED]


def covered(op: Op, beside: Iterable[Case], tier: Tier) -> list[Case]:
    """Return the cases that a tier needs, in addition to `beside`, to cover all pairs."""
    kernels = ours(op)
    present = [case for case in beside if tier in {"full", case.tier}]
    added: list[Case] = []
    domains = [features.domain for features in feature_sets(op)]
    if tier == "ci":
        serves = partial(_is_quick, op, served_by(kernels, "cpu"))
        for domain in domains:
            both = partial(_both, serves, within(domain))
            added += cover_pairs(op, both, (*present, *added), tier, GENERATED, of_options=True)
        added += cover_together(op, serves, (*present, *added), tier, GENERATED)
        return added + cover_pairs(op, serves, (*present, *added), tier, GENERATED)
    for domain in (*(kernel.domain for kernel in kernels), *domains):
        added += cover_pairs(op, within(domain), (*present, *added), tier, GENERATED)
    added += cover_triples(op, served_by(kernels), (*present, *added), tier, GENERATED)
    return added


def _is_quick(op: Op, serves: Callable[[Case], bool], case: Case) -> bool:
    return is_small(op, case, _MOST_FLOPS) and op.allowed.is_quick(case) and serves(case)


def file_of(op: Op, tier: Tier) -> Path:
    """Return the file that has the generated ids."""
    return COVERINGS / tier / f"{op.name}.txt"


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or print how many cases they lack."""
    parser = argparse.ArgumentParser(prog="python -m studies.coverings", description=__doc__)
    parser.add_argument("--write", action="store_true", help="add what the files lack")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    missing = 0
    for op in OPS.values():
        if not ours(op):
            continue
        present = list(op.cases())
        for tier in TIERS:
            added = covered(op, present, tier)
            present += added
            if options.write:
                generated = {case for case in present if (case.why, case.tier) == (GENERATED, tier)}
                ids = sorted(case.id() for case in generated)
                file_of(op, tier).write_text("".join(f"{name}\n" for name in ids))
                print(f"{op.name}, {tier}: {len(added):,} cases added to {len(ids) - len(added):,}")
            else:
                missing += len(added)
                print(f"{op.name}, {tier}: {len(added):,} cases are missing")
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())
