"""Expectations about a kernel's compiled code, as data beside the kernel: `EXPECTATIONS`.

A module `expectations` of a package of kernels, or a user's own file, defines a tuple of that name.
`compile` compares every compiled variant that an expectation covers with its claim, and a broken
claim fails the session. If several claims of one kind cover a variant, the last one counts: general
claims come first, and exceptions after them. An unsatisfactory figure is a claim too, with the
measured value as its allowance: it fails if the figure gets worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Loads:
    """At least `share` of the bytes loaded from global memory come `width` or more at a time.

    The bytes of a load are a thread's. The rest of the share is left for values that a kernel loads
    one at a time (statistics, slopes).
    """

    width: int
    share: float = 0.9


@dataclass(frozen=True, slots=True)
class Stores:
    """At least `share` of the bytes stored to global memory leave `width` or more at a time."""

    width: int
    share: float = 0.9


@dataclass(frozen=True, slots=True)
class Spills:
    """One thread stores at most so many bytes of registers to local memory."""

    most_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Uses:
    """The code contains an instruction of this name, for example `HGMMA` or `HMMA.16816`."""

    instruction: str


@dataclass(frozen=True, slots=True)
class Fits:
    """A block requests no more shared memory than a block may have, so it can be launched."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """A block requests too much shared memory, and a launch raises: a known defect.

    The claim breaks if the block fits, so that it is removed together with the defect.
    """


Claim = Loads | Stores | Spills | Uses | Fits | Unfit


def kind_of(claim: Claim) -> str:
    """Return the kind of a claim; of several claims of one kind only one counts."""
    match claim:
        case Fits() | Unfit():
            return "fits"
        case Uses():
            return f"uses {claim.instruction}"
        case _:
            return type(claim).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One claim, and the compiled variants that it covers: all fields must match.

    says       a sentence for the report
    kernels    patterns of kernels' names, for example `flash*`
    functions  patterns of jit functions' names, without the underscores around them
    dtypes     names of the activations' dtypes; empty: any
    aligned    rows are multiples of 16 bytes; None: either
    sizes      for a size of the case, its smallest and largest value
    options    a case may have these options and no others; None: any
    sm         compute capabilities, both ends included
    stands     True if representative variants include it; False: only `compile --all` does
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
