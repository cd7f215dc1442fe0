"""Processor time as Linux reports it in /proc: the whole host's, and a process tree's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_IDLE = (3, 4)  # places in a host's fields: idle, and idle while a disk works
_GUEST_FROM = 8  # a guest's time is in the first field too
# Places in a process's fields after its name: its parent; its time and its ended children's time.
_PARENT, _TIMES = 1, slice(11, 15)


@dataclass(frozen=True, slots=True)
class HostTime:
    """Ticks of all cores together since the host started: busy ticks, and all ticks."""

    busy: int
    whole: int


@dataclass(frozen=True, slots=True)
class TreeTime:
    """A process and its descendants: their ids, and the ticks that they have used."""

    processes: frozenset[int]
    ticks: int


def host_time(root: Path = _PROC) -> HostTime | None:
    """Return the host's time; None where the host hides it (a sandbox shows zeros)."""
    try:
        name, *fields = (root / "stat").read_text().split("\n", 1)[0].split()
        ticks = list(map(int, fields[:_GUEST_FROM]))
    except (OSError, ValueError):
        return None
    whole = sum(ticks)
    if name != "cpu" or not whole:
        return None
    return HostTime(whole - sum(ticks[place] for place in _IDLE), whole)


def tree_time(top: int, root: Path = _PROC) -> TreeTime:
    """Return the time of the process `top` and of its descendants, ended ones included."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for process in (int(entry.name) for entry in os.scandir(root) if entry.name.isdigit()):
        try:
            # Hosts have hundreds of processes, and pathlib takes twice as long.
            with open(f"{root}/{process}/stat", "rb") as file:  # noqa: PTH123
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended
        children.setdefault(int(fields[_PARENT]), []).append(process)
        ticks[process] = sum(map(int, fields[_TIMES]))
    tree, todo = set(), [top]
    while todo:
        process = todo.pop()
        tree.add(process)
        todo += children.get(process, [])
    return TreeTime(frozenset(tree), sum(ticks.get(process, 0) for process in tree))
