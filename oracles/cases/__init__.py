"""Common parts of all ops' cases: layouts, distributions, and how a list of cases is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from kernel_workbench.oracles.cases.names import case_named
from kernel_workbench.oracles.op import Case, Op, Tier

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# A folder for each tier, in it a file for each op, an id a line, made by `python -m
# studies.coverings --write`; and the `why` of such cases.
COVERINGS = Path(__file__).parent / "coverings"
GENERATED = "covering"

Family = Callable[[Tier], Iterator[Case]]


TIERS: tuple[Tier, ...] = ("ci", "full")


def collect(families: Iterable[Family]) -> tuple[Case, ...]:
    """Return all cases of these families, those of `ci` first, without duplicates."""
    cases: dict[str, Case] = {}
    ordered = tuple(families)
    for tier in TIERS:
        for family in ordered:
            for case in family(tier):
                cases.setdefault(case.id(), case)
    return tuple(cases.values())


def with_coverings(
    written: Callable[[], tuple[Case, ...]], op: Callable[[], Op]
) -> Callable[[], tuple[Case, ...]]:
    """Return a function of all cases, written and generated, those of `ci` first."""

    @cache
    def cases() -> tuple[Case, ...]:
        by_id: dict[str, Case] = {}
        for tier in TIERS:
            by_id |= {case.id(): case for case in written() if case.tier == tier}
            path = COVERINGS / tier / f"{op().name}.txt"
            for line in path.read_text().splitlines() if path.exists() else ():
                case = case_named(op(), line)
                if case is None:
                    raise ValueError(f"{path}: {line} is no case of {op().name}")
                by_id.setdefault(line, replace(case, tier=tier, why=GENERATED))
        return tuple(by_id.values())

    return cases
