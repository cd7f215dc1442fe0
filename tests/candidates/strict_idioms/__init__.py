"""Idioms of sound kernels, each a small kernel with its inputs, its result, and one planted fault.

They are what the tutorials of Triton and public libraries of kernels do, written anew. Sound, each
passes the strict interpreter and computes what torch does; with its fault it is found. A module
holds those of one kind; FAULT is 1 in a kernel with its fault, and 0 in the sound one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Made = tuple[Tensor, Tensor]  # what it computed and what is right
Call = Callable[[int], Made]


@dataclass(frozen=True, slots=True)
class Idiom:
    """A kernel that is right, and wrong in one way.

    call   from 0, or 1 for the fault, to what it computed and what is right
    found  a part of what the strict interpreter says of the fault
    """

    name: str
    call: Call
    found: str


IDIOMS: dict[str, Idiom] = {}


def idiom(found: str) -> Callable[[Call], Call]:
    """Add the decorated function to the catalogue; see Idiom."""

    def add(call: Call) -> Call:
        kind = call.__module__.rpartition(".")[2]
        name = f"{kind}: {call.__name__.replace('_', ' ')}"
        assert name not in IDIOMS
        IDIOMS[name] = Idiom(name, call, found)
        return call

    return add
