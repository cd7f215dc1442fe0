"""Metamorphic relations: how outputs must change when inputs are changed in a known way.

A kernel is compared with itself here, and the oracle has no part in it but for the bounds: where
the kernel may be off by E on its own inputs and by E' on the changed ones, both outputs are within
carry(E) + E' of what the relation says. A relation that is exact holds bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor

if TYPE_CHECKING:
    from oracles.op import Case, Inputs

Property = Literal["batch-invariant", "device-independent"]


@dataclass(frozen=True, slots=True)
class Relation:
    """One change of a case's inputs, and what it does to the outputs of a correct kernel.

    name      a phrase for the report, as "K + c leaves out"
    case      the case that the changed inputs are of: sizes and layout as changed
    change    the case's own inputs -> the changed ones, tensors of their own
    carry     outputs on the case's own inputs -> those that the changed inputs must have, for the
              outputs that the relation speaks of, but for the shift; bounds are carried likewise
    shift     the case's own inputs -> what is added to some outputs, in float64
    exact     bit for bit, of a kernel whose bits repeat; else within both bounds
    slack     for an exact one: outputs on the case's own inputs -> what they may be off by after
              all, in float64
    underflows    an exact one holds within both bounds alone, of a kernel that casts early
              (`Numerics.casts_early`): what is subnormal before the change isn't after it
    of        the property that a kernel needs to have declared for this to be asked of it; None
              where every correct kernel has it
    """

    name: str
    case: Case
    change: Callable[[Inputs], Inputs]
    carry: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    shift: Callable[[Inputs], dict[str, Tensor]] | None = None
    exact: bool = False
    slack: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] | None = None
    underflows: bool = False
    of: Property | None = None


@dataclass(frozen=True, slots=True)
class Balance:
    """A sum over the last axis of an output, perhaps weighted, that must come to a known value.

    The casts of the output err to either side alike, so that their errors all but cancel; what is
    bounded before them is added up in full.

    name      a phrase for the report, as "sum of dx is 0"
    output    the name of the output
    weights   the case's inputs -> float64 weights that broadcast to the output; None: all 1
    total     the case's inputs -> what the sums must be, in float64
    """

    name: str
    output: str
    weights: Callable[[Inputs], Tensor] | None
    total: Callable[[Inputs], Tensor]


Relations = tuple[Relation | Balance, ...]
