"""What places a run on a node: three calls that Ray and Slurm fill in, and what a node tells.

An attempt is one process of a suite on one node. A run has several where a node is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Protocol

Pair = tuple[str, str]  # a kernel's name and a case's id


class FleetError(Exception):
    """What was asked for can't be run; the message is for the user, a sentence a line."""


class NoNodeError(FleetError):
    """There is no node, or no other one, to run on."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a node is to run.

    done       pairs that have their rows
    crashed    pairs that ended their process twice: they get a row that says so
    variables  of the environment, besides the node's own
    """

    suite: str
    arguments: tuple[str, ...]
    done: tuple[Pair, ...] = ()
    crashed: tuple[Pair, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Started:
    """The process was started, on the host of this name."""

    host: str


@dataclass(frozen=True, slots=True)
class Text:
    """The next bytes of the record that the process writes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Beat:
    """The process lives, and isn't stopped."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The process ended. pair: what it tried last; output: the end of what it printed."""

    status: int
    output: str
    pair: Pair | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """The engine lost the attempt, or the node that it ran on."""

    reason: str


Event = Started | Text | Beat | Ended | Lost


class Engine(Protocol):
    """Places attempts, each by a number that no other one has."""

    def start(self, kind: str, order: Order, avoided: Collection[str]) -> tuple[int, str]:
        """Place an attempt on a node of this type; its number, and the node's name.

        avoided: names of nodes that were lost. Raises NoNodeError.
        """

    def events(self, timeout_s: float) -> Iterable[tuple[int, Event]]:
        """What the attempts tell, each with its number; waits so long for the first."""

    def cancel(self, number: int) -> None:
        """End an attempt; what it tells from now on may still come."""

    def close(self) -> None:
        """End all attempts, and leave the cluster."""
