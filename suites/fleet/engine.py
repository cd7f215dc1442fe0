"""The interface that Ray and Slurm implement to place a run on a node, and a node's events.

An attempt is one process of a suite on one node. A run has several attempts if a node is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Protocol

Pair = tuple[str, str]  # a kernel's name and a case's id


class FleetError(Exception):
    """The run can't start; the message is for the user, one sentence a line."""


class NoNodeError(FleetError):
    """There is no node, or no other node, to run on."""


@dataclass(frozen=True, slots=True)
class Order:
    """A suite and its arguments for a node to run.

    done       pairs that have their rows
    crashed    pairs that ended their process twice: they get a row that says so
    variables  environment variables, besides the node's own
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
    """The process ended. `pair` is its last pair, and `output` the end of its printed lines."""

    status: int
    output: str
    pair: Pair | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """The engine lost the attempt, for example because its node was removed."""

    reason: str


Event = Started | Text | Beat | Ended | Lost


class Engine(Protocol):
    """Places attempts, and gives a unique number to each."""

    def start(self, kind: str, order: Order, avoided: Collection[str]) -> tuple[int, str]:
        """Place an attempt on a node of this type; return its number, and the node's name.

        `avoided` has the names of lost nodes. Raises NoNodeError.
        """

    def events(self, timeout_s: float) -> Iterable[tuple[int, Event]]:
        """Yield the attempts' events with their numbers; wait `timeout_s` for the first."""

    def cancel(self, number: int) -> None:
        """End an attempt; a few more of its events may still arrive."""

    def close(self) -> None:
        """End all attempts, and leave the cluster."""
