"""Processes that wait for their task: started ahead by a warm judge, each taken once.

A judge that waits for a run starts the server of its workers and the process of users' calls before
it knows the run. Both are the processes that a run starts for itself, and no candidate has been in
them.
"""

from __future__ import annotations

from typing import Any

_waiting: dict[tuple[object, ...], Any] = {}


def keep(key: tuple[object, ...], process: object) -> None:
    """Keep a process for the run that asks for one with this key."""
    _waiting[key] = process


def take(key: tuple[object, ...]) -> Any:  # noqa: ANN401  (a process of the kind that was kept)
    """Return the process that waits for this key, which then waits no more, or None."""
    return _waiting.pop(key, None)
