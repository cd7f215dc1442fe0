"""The configuration that a kernel's call is held to, where whoever calls it asks for one.

A kernel whose call can be cut in several ways (tiles, loads, warps) lists them by `configurations=`
(`kernels.registry`), and asks here, at each call, which one to take. `nox -s accuracy --
--every-configuration` holds it to each in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Held:
    """The configuration that calls are held to, and whether a kernel has asked for it."""

    name: str
    asked: bool = False


# The last one holds. No context variable: autograd calls a backward from a thread of its own.
_held: list[Held] = []


@contextmanager
def held_to(name: str) -> Iterator[Held]:
    """Inside, `configuration()` is `name`."""
    _held.append(Held(name))
    try:
        yield _held[-1]
    finally:
        _held.pop()


def configuration() -> str | None:
    """The name of the configuration that this call must take; None: the kernel's own choice."""
    if not _held:
        return None
    _held[-1].asked = True
    return _held[-1].name
