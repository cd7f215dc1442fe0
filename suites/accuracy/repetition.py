"""Whether a kernel keeps more memory, or does more, at each further call: that is told of.

Both are counted, not timed: the bytes that a call leaves allocated beside its outputs, and its
Triton launches and operations of PyTorch. A cache is filled by a call or two, and a leak by all.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from suites.accuracy.candidate import Call

_CALLS = 8


def grows(first: Call, second: Call) -> bool:
    """Whether two calls are reason enough to ask for more."""
    return _keeps([second]) or _does_more([first, second])


def notes(call: Callable[[], Call]) -> tuple[str, ...]:
    """What more calls on the same values show, each a sentence's end about the kernel."""
    calls: list[Call] = []
    while len(calls) < _CALLS and (_keeps(calls) or _does_more(calls)):
        made = call()
        if made.rule is not None:
            return ()
        calls.append(made)
    told = []
    if _keeps(calls):
        least = min(each.kept_bytes or 0 for each in calls)
        told.append(f"keeps {least:,} bytes more after each of {_CALLS} more calls")
    if _does_more(calls):
        told.append(
            f"does more at each call: {_work(calls[0])} launches and operations of PyTorch at the "
            f"first of {_CALLS} more calls, {_work(calls[-1])} at the last"
        )
    return tuple(told)


def _keeps(calls: list[Call]) -> bool:
    return all((each.kept_bytes or 0) > 0 for each in calls)


def _does_more(calls: list[Call]) -> bool:
    return all(_work(one) < _work(other) for one, other in pairwise(calls))


def _work(call: Call) -> int:
    return (call.launches or 0) + (call.operations or 0)
