"""The cases of attention, in two tiers.

`ci` runs under an interpreter on two cores, where a tile of 64 x 64 costs milliseconds: lengths
stay under 70 but for a few, heads and batches under 4. `full` is for a GPU. Every case of `ci` is
in `full` too.
"""

from __future__ import annotations

from functools import cache

from oracles.attention.cases_crossed import crossed
from oracles.attention.cases_features import features, shapes
from oracles.attention.cases_large import large
from oracles.attention.cases_probes import probes, related
from oracles.attention.cases_values import distributions, layouts
from oracles.op import Case, Tier

FAMILIES = (features, shapes, layouts, distributions, probes, related, crossed, large)


@cache
def _all() -> dict[str, Case]:
    made: dict[str, Case] = {}
    tiers: tuple[Tier, ...] = ("ci", "full")
    for tier in tiers:
        for family in FAMILIES:
            for case in family(tier):
                made.setdefault(case.id(), case)
    return made


@cache
def cases(op: str) -> tuple[Case, ...]:
    """All cases of an op, those of `ci` first, each once."""
    return tuple(case for case in _all().values() if case.op == op)
