"""What the cases of all ops share: layouts, distributions, and how a list of cases is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from oracles.op import Case, Tier

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

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
