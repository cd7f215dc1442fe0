"""Loads whose mask switches lanes off and that have no `other`: Triton leaves such lanes undefined.

The strict interpreter gives them NaN, or an integer that no index is; today's NVIDIA backend, and
the interpreter that isn't strict, give them zeros. A kernel may load so and store nothing of it;
each such load is noted all the same, by its line, so that a wrong output can be put down to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

UNNAMED = "a load"
PROMISED = ", in lanes of which"  # begins what is said of lanes that break a promise
_MOST = 3  # loads that a sentence names


@dataclass(slots=True)
class _Noted:
    zeros: bool = False
    loads: dict[str, str] = field(default_factory=dict)  # by line, what the sentence says of it


_NOTED = _Noted()


@contextmanager
def noted(*, zeros: bool) -> Iterator[Callable[[], tuple[str, ...]]]:
    """Note loads inside, whose undefined lanes read 0 where `zeros`; yields them."""
    _NOTED.zeros = zeros
    _NOTED.loads.clear()
    try:
        yield lambda: tuple(_NOTED.loads.values())
    finally:
        _NOTED.zeros = False


def note(line: str, name: Callable[[], str], why: str = "") -> bool:
    """Note a load at `line` with undefined lanes; say whether they read what is there, or 0.

    name: gives its argument's. why: they aren't masked off, but break a promise.
    """
    if line not in _NOTED.loads:
        _NOTED.loads[line] = f"{name()} at {line}{why}"
    return _NOTED.zeros


def let_pass(loads: Sequence[str]) -> tuple[str, ...]:
    """What is noted of a kernel that passed the interpreter that isn't strict, or nothing."""
    if not loads:
        return ()
    where = told([each.removeprefix(UNNAMED + " ") for each in loads])
    return (f"reads zeros in lanes that a load without `other` leaves undefined, {where}",)


def told(loads: Sequence[str]) -> str:
    """The loads, up to some."""
    more = f" and {len(loads) - _MOST} more" if len(loads) > _MOST else ""
    return ", ".join(loads[:_MOST]) + more
