"""Choose a kernel's plainest failing case, and the traits that failing cases alone share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernel_workbench.reports.record import CaseInfo

_PLAIN_DTYPES = ("float32", "bfloat16", "float16")
_DIVISORS = (2, 4, 8, 16, 32, 64, 128, 256)


def plainness(case: CaseInfo) -> tuple[int, bool, bool, bool, int, int, str]:
    """Return a key that sorts plainer cases first.

    Fewer options, ordinary values, contiguous inputs, no empty one, an ordinary dtype, and then
    smaller sizes.
    """
    dtypes = _PLAIN_DTYPES
    return (
        len(case.options),
        case.distribution != "normal",
        case.layout != "contiguous",
        0 in case.sizes.values(),
        dtypes.index(case.dtype) if case.dtype in dtypes else len(dtypes),
        math.prod(max(size, 1) for size in case.sizes.values()),
        case.id,
    )


def shared_facts(failing: Sequence[CaseInfo], passing: Sequence[CaseInfo]) -> tuple[str, ...]:
    """Facts that all failing cases share, and that no passing case has together.

    A passing case whose values hide the defect, as zeros do, may have them all: where the values
    are no fact, passing cases that have the values of a failing one count alone, if there are as
    many as failing ones, and if fewer facts do then.

    Empty where no case passed, where one case alone fails, since any of its facts would do, or
    where no such facts exist.
    """
    if len(failing) < 2 or not passing:
        return ()
    facts = _separating(failing, passing)
    values = {case.distribution for case in failing}
    alike = [case for case in passing if case.distribution in values]
    if len(alike) < len(failing) or any(fact.startswith("values ") for fact in facts):
        return facts
    of_alike = _separating(failing, alike)
    return of_alike if of_alike and (not facts or len(of_alike) < len(facts)) else facts


def _separating(failing: Sequence[CaseInfo], passing: Sequence[CaseInfo]) -> tuple[str, ...]:
    """Return the facts of all failing cases that no passing one has together.

    Fewer facts say more: a fact is left out where the others already rule every passing case out.
    """
    facts = _facts(failing, passing)
    having = {fact: frozenset(places) for fact, places in facts.items()}
    # One fact alone says most; else facts that rule out more passing cases are kept longer.
    for fact, places in having.items():
        if not places:
            return (fact,)
    kept = sorted(having, key=lambda fact: -len(having[fact]))
    if not kept or frozenset.intersection(*having.values()):
        return ()
    for fact in list(kept):
        rest = [having[other] for other in kept if other != fact]
        if rest and not frozenset.intersection(*rest):
            kept.remove(fact)
    return tuple(fact for fact in having if fact in kept)


def _facts(failing: Sequence[CaseInfo], passing: Sequence[CaseInfo]) -> dict[str, list[int]]:
    """By fact that every failing case has: the places of the passing cases that have it too."""
    ranges = {}
    for size in failing[0].sizes:
        if all(size in case.sizes for case in (*failing, *passing)):
            values = [case.sizes[size] for case in failing]
            ranges[size] = min(values), max(values)
    first, *rest = (_facts_of(case, ranges) for case in failing)
    among = [_facts_of(case, ranges) for case in passing]
    return {
        fact: [place for place, facts in enumerate(among) if fact in facts]
        for fact in first
        if all(fact in facts for facts in rest)
    }


def _facts_of(case: CaseInfo, ranges: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return what is so of a case, its sizes beside the least and the most of failing cases."""
    facts = [*case.options, case.dtype, f"layout {case.layout}", f"values {case.distribution}"]
    facts += ["a layout that isn't contiguous"] * (case.layout != "contiguous")
    for size, (least, most) in ranges.items():
        value = case.sizes[size]
        if least == most:
            facts += [f"{size} of {least:,}"] * (value == least)
            continue
        facts += [f"{size} of {least:,} or more"] * (value >= least)
        facts += [f"{size} of {most:,} or less"] * (value <= most)
        facts += [f"{size} no multiple of {divisor}" for divisor in _DIVISORS if value % divisor]
    return facts
