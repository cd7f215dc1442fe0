"""What the cases of all ops share: layouts, distributions, and how a list of cases is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from oracles.cases.named import case_named
from oracles.op import Case, Op, Tier

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# A file for each op, an id a line, made by `python -m studies.coverings --write`; and their `why`.
COVERINGS = Path(__file__).parent / "coverings"
GENERATED = "covering"

Family = Callable[[Tier], Iterator[Case]]


def collect(families: Iterable[Family]) -> tuple[Case, ...]:
    """All cases of these families, those of `ci` first, each once."""
    made: dict[str, Case] = {}
    tiers: tuple[Tier, ...] = ("ci", "full")
    ordered = tuple(families)
    for tier in tiers:
        for family in ordered:
            for case in family(tier):
                made.setdefault(case.id(), case)
    return tuple(made.values())


def with_coverings(
    written: Callable[[], tuple[Case, ...]], op: Callable[[], Op]
) -> Callable[[], tuple[Case, ...]]:
    """The cases that people wrote, and then those that are generated for `full`, each once."""

    @cache
    def cases() -> tuple[Case, ...]:
        made = {case.id(): case for case in written()}
        path = COVERINGS / f"{op().name}.txt"
        for line in path.read_text().splitlines() if path.exists() else ():
            case = case_named(op(), line)
            if case is None:
                raise ValueError(f"{path.name}: {line} is no case of {op().name}")
            made.setdefault(line, replace(case, tier="full", why=GENERATED))
        return tuple(made.values())

    return cases
