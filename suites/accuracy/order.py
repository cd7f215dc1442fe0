"""Order an op's cases: cases that make wrong kernels fail come first.

A defect shows where the level that it needs is met: an odd size, a stride, an option, a value. So
the first cases meet each level of each factor, and as many at once as a case can have. Two things
at once come after that, in the order in which the list of cases has them. A case in which nothing
is computed comes last.
"""

from __future__ import annotations

from collections.abc import Iterable

from kernel_workbench.oracles.cases.factors import levels_of
from kernel_workbench.oracles.op import Case, Op

_ORDERED = 64  # cases that are chosen one by one
_ROUNDS = 2  # how often each level is met before the list's own order goes on
_LIMITED = frozenset({"nan", "inf"})  # words of distributions whose rows tell of little else


def by_early_death(op: Op, cases: Iterable[Case]) -> list[Case]:
    """Return the op's cases, those of `telling_cases` first and cases without work last."""
    listed = list(cases)
    chosen = telling_cases(op, listed)
    first = set(chosen)
    rest = [case for case in listed if case not in first]
    # Nothing is computed in the last ones.
    return [*chosen, *filter(op.flops, rest), *(case for case in rest if not op.flops(case))]


def telling_cases(op: Op, cases: Iterable[Case], rounds: int = _ROUNDS) -> list[Case]:
    """Choose few cases that meet each level of each factor `rounds` times, if the cases allow it.

    Args:
        op: an op.
        cases: the cases to choose from.
        rounds: how often each level is met.

    Returns:
        At most 64 cases, in the order of the number of new levels that they meet.
    """
    names = [factor.name for factor in op.allowed.factors]
    levels = {
        case: frozenset(zip(names, levels_of(op, case), strict=True))
        | {("option", word) for word in case.options}
        for case in cases
        if op.flops(case)
    }
    costs = {case: op.bytes(case) for case in levels}
    waiting = dict.fromkeys(levels)
    chosen: list[Case] = []
    for _ in range(rounds):
        missing = frozenset().union(*(levels[case] for case in waiting))
        while missing and len(chosen) < _ORDERED:
            best = max(waiting, key=lambda case: _worth(case, levels[case] & missing, costs[case]))
            missing -= levels[best]
            chosen.append(best)
            del waiting[best]
    return chosen


def _worth(case: Case, new: frozenset[tuple[str, str]], cost: int) -> tuple[int, bool, bool, int]:
    """Return what sorts a case: its new levels, ordinary values, no size of 1, few bytes."""
    ordinary = not any(word in case.distribution for word in _LIMITED)
    return len(new), ordinary, all(size > 1 for _, size in case.sizes), -cost
