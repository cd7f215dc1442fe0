"""Cases drawn within the domain of a user's kernel, beside its op's.

Each pair of levels that its own cases can have is to meet. A kernel with a narrow domain, as one
that serves causal attention with heads of 64 and lengths in multiples of 128 alone, meets few of
its op's cases: it is tried on no fewer than 60 in all, and asked everything on these.
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
# Of a case: the first takes an interpreter some tenths of a second; a domain may need the second.
_MOST_FLOPS = 1e6, 2e7
_MOST_BYTES = 2**22


def is_small(op: Op, case: Case, most_flops: float) -> bool:
    """Whether a case is one of those that are drawn; a reference is run to count flops."""
    return op.bytes(case) <= _MOST_BYTES and op.flops(case) <= most_flops


def own_cases(
    kernel: Kernel,
    refusal: Callable[[Case], str | None],
    beside: Iterable[Case],
    tier: Tier,
    learn: Callable[[Sequence[Case]], object] = lambda _: None,
) -> list[Case]:
    """Draw what the kernel is tried on besides; too few where its domain allows no more.

    learn: is called with cases that `refusal` may be asked about next.
    """
    op = kernel.op
    if op.allowed is None or not op.allowed.factors:
        return []

    def drawn(most_flops: float, known: Iterable[Case], why: str) -> list[Case]:
        def serves(case: Case) -> bool:
            return is_small(op, case, most_flops) and refusal(case) is None

        def ahead(cases: Sequence[Case]) -> None:
            learn([case for case in cases if is_small(op, case, most_flops)])

        known = list(known)
        together = list(cover_together(op, serves, known, tier, why))
        met = (*known, *together)
        return [*together, *cover_pairs(op, serves, met, tier, why, ahead=ahead, in_turn=True)]

    beside = list(beside)
    learn(beside)
    known = {case.id() for case in beside if refusal(case) is None}
    made: dict[str, Case] = {}
    if len(known) >= FEWEST:
        return drawn(_MOST_FLOPS[0], beside, GENERATED)
    for most in _MOST_FLOPS:
        made = {case.id(): case for case in drawn(most, beside, _WHY)}
        if len(known) + len(made) >= FEWEST:
            return list(made.values())
    once = drawn(_MOST_FLOPS[-1], (), _WHY)
    for seed in range(1, FEWEST):
        again = (replace(case, seed=seed) for case in once)
        made |= {case.id(): case for case in again if case.id() not in known}
        if len(known) + len(made) >= FEWEST:
            break
    return list(made.values())
