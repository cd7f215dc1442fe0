"""Cases drawn within the domain of a kernel that a user brings, beside those of its op.

The op's cases cover what kernels of ours serve. A kernel with a narrower domain, as one that serves
causal attention with heads of 64 and lengths in multiples of 128 alone, meets few of them. Each
pair of levels that its own cases can have is to meet, too, and no fewer than 60 cases in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from kernels.registry import Kernel
from oracles.cases.covering import cover_pairs
from oracles.op import Case, Op, Tier

FEWEST = 60
_WHY = "covering of the kernel's own domain"
_MOST_FLOPS = 2e7
_MOST_BYTES = 2**22


def is_small(op: Op, case: Case) -> bool:
    """Whether a case is one of those that are drawn."""
    return op.flops(case) <= _MOST_FLOPS and op.bytes(case) <= _MOST_BYTES


def own_cases(
    kernel: Kernel, refusal: Callable[[Case], str | None], beside: Iterable[Case], tier: Tier
) -> list[Case]:
    """What the kernel is tried on besides; fewer than there ought to be where it allows no more."""
    op = kernel.op
    if op.allowed is None or not op.allowed.factors:
        return []

    def serves(case: Case) -> bool:
        return is_small(op, case) and refusal(case) is None

    known = {case.id() for case in beside if refusal(case) is None}
    made = {case.id(): case for case in cover_pairs(op, serves, beside, tier, _WHY)}
    for seed in range(1, FEWEST):
        if len(known) + len(made) >= FEWEST:
            break
        again = (replace(case, seed=seed) for case in cover_pairs(op, serves, (), tier, _WHY))
        made |= {case.id(): case for case in again if case.id() not in known}
    return list(made.values())
