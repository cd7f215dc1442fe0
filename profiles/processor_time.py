"""Processor time as Linux tells it in /proc: all of the host's, and a tree of processes'."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_IDLE = (3, 4)  # of a host's fields: idle, and idle while a disk works
_GUEST_FROM = 8  # a guest's time is in the first field too
# Of a process's fields after its name: its parent, and its time and that of children which ended.
_PARENT, _TIMES = 1, slice(11, 15)


@dataclass(frozen=True, slots=True)
class HostTime:
    """Ticks of all cores together since the host started: busy, and busy or not."""

    busy: int
    whole: int


@dataclass(frozen=True, slots=True)
class TreeTime:
    """A process and all below it: their ids, and the ticks that they have taken."""

    processes: frozenset[int]
    ticks: int


def host_time(root: Path = _PROC) -> HostTime | None:
    """The host's time; None where it isn't told (a sandbox has zeros there)."""
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
    """The time of the process `top` and of all below it, those that have ended too."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for each in root.iterdir():
        if each.name.isdigit():
            try:
                fields = (each / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            children.setdefault(int(fields[_PARENT]), []).append(int(each.name))
            ticks[int(each.name)] = sum(map(int, fields[_TIMES]))
    found, todo = set(), [top]
    while todo:
        process = todo.pop()
        found.add(process)
        todo += children.get(process, [])
    return TreeTime(frozenset(found), sum(ticks.get(each, 0) for each in found))
