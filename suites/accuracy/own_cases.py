"""Draw cases within the domain of a user's kernel, beside its op's cases.

The drawn cases meet each pair of levels that the domain allows. A kernel with a narrow domain, for
example causal attention with heads of 64 and lengths in multiples of 128, serves few of its op's
cases: it is tried on at least 60 in all, with every check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.cases import GENERATED
from kernel_workbench.oracles.cases.covering import cover_pairs, cover_together
from kernel_workbench.oracles.op import Case, Op, Tier

FEWEST = 60
_WHY = "covering of the kernel's own domain"
# Limits of a case: an interpreter takes some tenths of a second for the first; some domains need
# the second.
_MOST_FLOPS = 1e6, 2e7
_MOST_BYTES = 2**22


def is_small(op: Op, case: Case, most_flops: float) -> bool:
    """Return True if the case is small enough to be drawn; a reference runs to count flops."""
    return op.bytes(case) <= _MOST_BYTES and op.flops(case) <= most_flops


def own_cases(
    kernel: Kernel,
    refusal: Callable[[Case], str | None],
    beside: Iterable[Case],
    tier: Tier,
    learn: Callable[[Sequence[Case]], object] = lambda _: None,
) -> list[Case]:
    """Draw cases for a user's kernel within its domain.

    Args:
        kernel: the kernel.
        refusal: returns a sentence if the kernel doesn't serve a case, else None.
        beside: the op's cases, which count towards the 60.
        tier: the tier of the drawn cases.
        learn: is called with the cases whose `refusal` may be called next.

    Returns:
        The drawn cases: with `beside` fewer than 60 only if the domain allows no more.
    """
    op = kernel.op

    def draw(most_flops: float, earlier: Iterable[Case], why: str) -> list[Case]:
        def serves(case: Case) -> bool:
            return is_small(op, case, most_flops) and refusal(case) is None

        def ahead(cases: Sequence[Case]) -> None:
            learn([case for case in cases if is_small(op, case, most_flops)])

        earlier = list(earlier)
        together = list(cover_together(op, serves, earlier, tier, why))
        met = (*earlier, *together)
        return [*together, *cover_pairs(op, serves, met, tier, why, ahead=ahead, in_turn=True)]

    beside = list(beside)
    learn(beside)
    served = {case.id() for case in beside if refusal(case) is None}
    drawn: dict[str, Case] = {}
    if len(served) >= FEWEST:
        return draw(_MOST_FLOPS[0], beside, GENERATED)
    for most in _MOST_FLOPS:
        drawn = {case.id(): case for case in draw(most, beside, _WHY)}
        if len(served) + len(drawn) >= FEWEST:
            return list(drawn.values())
    once = draw(_MOST_FLOPS[-1], (), _WHY)
    for seed in range(1, FEWEST):
        again = (replace(case, seed=seed) for case in once)
        drawn |= {case.id(): case for case in again if case.id() not in served}
        if len(served) + len(drawn) >= FEWEST:
            break
    return list(drawn.values())
