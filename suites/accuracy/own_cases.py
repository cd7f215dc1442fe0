"""Cases drawn within the domain of a user's kernel, beside its op's.

Each pair of levels that its own cases can have is to meet. A kernel with a narrow domain, as one
that serves causal attention with heads of 64 and lengths in multiples of 128 alone, meets few of
its op's cases: it is tried on no fewer than 60 in all, and asked everything on these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.cases import GENERATED
from kernel_workbench.oracles.cases.covering import cover_pairs
from kernel_workbench.oracles.op import Case, Op, Tier

FEWEST = 60
_WHY = "covering of the kernel's own domain"
# Of a case: the first takes an interpreter some tenths of a second; a domain may need the second.
_MOST_FLOPS = 1e6, 2e7
_MOST_BYTES = 2**22


def is_small(op: Op, case: Case, most_flops: float) -> bool:
    """Whether a case is one of those that are drawn; a reference is run to count flops."""
    return op.bytes(case) <= _MOST_BYTES and op.flops(case) <= most_flops


def own_cases(
    kernel: Kernel, refusal: Callable[[Case], str | None], beside: Iterable[Case], tier: Tier
) -> list[Case]:
    """What the kernel is tried on besides; too few where its domain allows no more."""
    op = kernel.op
    if op.allowed is None or not op.allowed.factors:
        return []

    known = {case.id() for case in beside if refusal(case) is None}
    made: dict[str, Case] = {}
    if len(known) >= FEWEST:
        serves = partial(_serves, op, refusal, _MOST_FLOPS[0])
        return cover_pairs(op, serves, beside, tier, GENERATED)
    for most in _MOST_FLOPS:
        serves = partial(_serves, op, refusal, most)
        made = {case.id(): case for case in cover_pairs(op, serves, beside, tier, _WHY)}
        if len(known) + len(made) >= FEWEST:
            return list(made.values())
    once = cover_pairs(op, serves, (), tier, _WHY)
    for seed in range(1, FEWEST):
        again = (replace(case, seed=seed) for case in once)
        made |= {case.id(): case for case in again if case.id() not in known}
        if len(known) + len(made) >= FEWEST:
            break
    return list(made.values())


def _serves(op: Op, refusal: Callable[[Case], str | None], most_flops: float, case: Case) -> bool:
    return is_small(op, case, most_flops) and refusal(case) is None
