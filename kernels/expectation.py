"""What is expected of a kernel's compiled code, as data beside the kernel: `EXPECTATIONS`.

A module `expectations` of a package of kernels, or a user's own file, holds a tuple of that name.
`compile` holds every compiled variant that an expectation means to its claim, and a broken
one fails the session. Of several of one kind that mean a variant the last counts: what holds in
general comes first, and then what is otherwise. A figure that isn't as good as one would like is a
claim too, with what was measured as its allowance: it fails where it gets worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Loads:
    """At least `share` of the bytes named by loads of global memory come `width` or more at a time.

    Bytes of a load are a thread's. What a kernel loads one at a time (statistics, slopes) is what
    the share leaves room for.
    """

    width: int
    share: float = 0.9


@dataclass(frozen=True, slots=True)
class Stores:
    """Likewise, stores to global memory."""

    width: int
    share: float = 0.9


@dataclass(frozen=True, slots=True)
class Spills:
    """At most so many bytes of registers are stored to local memory by one thread."""

    most_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Uses:
    """An instruction of this name is there: `HGMMA`, `HMMA.16816`."""

    instruction: str


@dataclass(frozen=True, slots=True)
class Fits:
    """A block asks for no more shared memory than one may have, so that it can be launched."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """It asks for more than a block may have, and a launch raises: a defect that is known.

    Broken where it fits, so that it is taken out when the defect is.
    """


Claim = Loads | Stores | Spills | Uses | Fits | Unfit


def kind_of(claim: Claim) -> str:
    """Claims of one kind are about the same thing, so that only one of them counts."""
    match claim:
        case Fits() | Unfit():
            return "fits"
        case Uses():
            return f"uses {claim.instruction}"
        case _:
            return type(claim).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One claim, and the compiled variants that it is about: those that all fields let in.

    says       a sentence for the report
    kernels    patterns of kernels' names, as in `flash*`
    functions  patterns of jit functions' names, without the underscores around them
    dtypes     names of the activations' dtypes; none: any
    aligned    whether rows are multiples of 16 bytes; None: either
    sizes      for a size of the case, its smallest and largest
    options    a case may have these options and no others; None: any
    sm         compute capabilities, both ends included
    stands     whether what stands for the rest has it; else only `compile --all` does
    """

    says: str
    claim: Claim
    kernels: tuple[str, ...] = ("*",)
    functions: tuple[str, ...] = ("*",)
    dtypes: tuple[str, ...] = ()
    aligned: bool | None = None
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    options: frozenset[str] | None = None
    sm: tuple[int, int] = (0, 999)
    stands: bool = True
