"""Metamorphic relations: how outputs must change when inputs are changed in a known way."""

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
    expected  outputs on the case's own inputs -> what those on the changed inputs must be, for the
              outputs that the relation speaks of
    exact     bit for bit; else within the sum of both bounds
    of        the property that a kernel needs to have declared for this to be asked of it; None
              where every correct kernel has it
    """

    name: str
    case: Case
    change: Callable[[Inputs], Inputs]
    expected: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    exact: bool
    of: Property | None = None
