"""Note loads with a mask and no `other`: Triton leaves their masked lanes undefined.

The strict interpreter fills these lanes with NaN, or an integer that is no valid index; today's
NVIDIA backend, and the interpreter that isn't strict, fill them with zeros. A kernel may load them
and store nothing of it; so a load is only noted, by its line, to explain a wrong output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

UNNAMED = "a load"
PROMISED = ", in lanes where"  # begins the clause about lanes that break a promise
_MOST = 3  # a sentence names so many loads


@dataclass(slots=True)
class _UndefinedLoads:
    zeros: bool = False
    loads: dict[str, str] = field(default_factory=dict)  # by line, the text about the load


_NOTED = _UndefinedLoads()


@contextmanager
def noted(*, zeros: bool) -> Iterator[Callable[[], tuple[str, ...]]]:
    """Note loads in the block; yield a function that lists them. `zeros`: their lanes read 0."""
    _NOTED.zeros = zeros
    _NOTED.loads.clear()
    try:
        yield lambda: tuple(_NOTED.loads.values())
    finally:
        _NOTED.zeros = False


def note(line: str, name: Callable[[], str], why: str = "") -> bool:
    """Note a load at `line` with undefined lanes; return True if these read as in stock.

    `name` returns the argument's name; `why` says which promise the lanes break, if any.
    """
    if line not in _NOTED.loads:
        _NOTED.loads[line] = f"{name()} at {line}{why}"
    return _NOTED.zeros


def let_pass(loads: Sequence[str]) -> tuple[str, ...]:
    """Return a note on the loads of a kernel that passed without strictness, or nothing."""
    if not loads:
        return ()
    where = listed([load.removeprefix(UNNAMED + " ") for load in loads])
    return (f"reads zeros in lanes that a load without `other` leaves undefined, {where}",)


def listed(loads: Sequence[str]) -> str:
    """Return the loads as text, for example "x_ptr at line 5 of k.py, ... and 2 more"."""
    more = f" and {len(loads) - _MOST} more" if len(loads) > _MOST else ""
    return ", ".join(loads[:_MOST]) + more
