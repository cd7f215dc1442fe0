"""What the cases of all ops share: layouts, distributions, and how a list of cases is made."""

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
    """All cases of these families, those of `ci` first, each once."""
    made: dict[str, Case] = {}
    ordered = tuple(families)
    for tier in TIERS:
        for family in ordered:
            for case in family(tier):
                made.setdefault(case.id(), case)
    return tuple(made.values())


def with_coverings(
    written: Callable[[], tuple[Case, ...]], op: Callable[[], Op]
) -> Callable[[], tuple[Case, ...]]:
    """The cases that people wrote, and those that are generated: of `ci` first, each once."""

    @cache
    def cases() -> tuple[Case, ...]:
        made: dict[str, Case] = {}
        for tier in TIERS:
            made |= {case.id(): case for case in written() if case.tier == tier}
            path = COVERINGS / tier / f"{op().name}.txt"
            for line in path.read_text().splitlines() if path.exists() else ():
                case = case_named(op(), line)
                if case is None:
                    raise ValueError(f"{path}: {line} is no case of {op().name}")
                made.setdefault(line, replace(case, tier=tier, why=GENERATED))
        return tuple(made.values())

    return cases
