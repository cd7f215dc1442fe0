"""The configuration that a kernel's call must take, if the caller requests one.

A kernel whose call can use several tiles, loads or warps lists these by `configurations=`
(`kernels.registry`), and asks here at each call which one to take. `accuracy
--every-configuration` tries each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class RequestedConfiguration:
    """The requested configuration, and True in `asked` once a kernel has read it."""

    name: str
    asked: bool = False


# The last one applies. A context variable wouldn't work: autograd uses another thread.
_requested: list[RequestedConfiguration] = []


@contextmanager
def held_to(name: str) -> Iterator[RequestedConfiguration]:
    """Request the configuration `name` within the context."""
    _requested.append(RequestedConfiguration(name))
    try:
        yield _requested[-1]
    finally:
        _requested.pop()


def configuration() -> str | None:
    """Return the name of the configuration that this call must take; None: the kernel's own choice.

    >>> with held_to("block_m4"):
    ...     configuration()
    'block_m4'
    """
    if not _requested:
        return None
    _requested[-1].asked = True
    return _requested[-1].name
