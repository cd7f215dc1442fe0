"""The few cases of `--quick`: as many different kinds of inputs as a dozen small cases can have.

An author who edits a kernel wants to hear of a mistake within seconds. Most mistakes show in many
cases, so that a dozen cases which differ in all that cases can differ in find most of them; the
whole tier is for what they don't find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kernel_workbench.oracles.op import Case, Op
from kernel_workbench.suites.accuracy.order import telling_cases
from kernel_workbench.suites.accuracy.own_cases import is_small

MOST_CASES = 12  # of an op: about a second of an interpreter's time
MOST_FLOPS = 3e5


def quick_cases(op: Op, cases: Iterable[Case], serves: Callable[[Case], bool]) -> list[Case]:
    """Return the served small cases that have the most levels of the op's factors among them.

    Args:
        op: the op of the cases.
        cases: those to choose from.
        serves: whether a kernel that runs serves a case.

    Returns:
        At most `MOST_CASES` cases, those that come first in a whole run (order.py), and fewer where
        fewer have every level. Where no small case is served, the cheapest one that is.
    """
    served = [case for case in cases if serves(case)]
    left = [case for case in served if is_small(op, case, MOST_FLOPS)]
    if not left:
        return sorted(served, key=op.flops)[:1]
    return telling_cases(op, left, rounds=1)[:MOST_CASES]
