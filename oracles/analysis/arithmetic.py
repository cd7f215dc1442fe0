"""What a kernel's arithmetic does to a number: roundings, what flushing loses, casts, tf32."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from oracles.op import Numerics
from oracles.rounding import (
    FLUSHED,
    GRADUAL,
    HALF_SUBNORMAL_SPACING,
    NEAREST,
    TF32,
    UNIT_ROUNDOFF,
    Gamma,
)

LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The errors of single operations, for bounds of one form.

    gamma     of sums; deterministic, or probable for so many results
    u, eta    of any operation: relative, and what flushing to zero (or the last bit) loses
    dtype     what marked casts are to where they don't say it themselves
    """

    gamma: Gamma
    u: float
    eta: float
    dtype: torch.dtype
    numerics: Numerics

    @classmethod
    def of(cls, numerics: Numerics, dtype: torch.dtype) -> Arithmetic:
        """The deterministic form."""
        u = numerics.accumulation_roundoff
        eta = GRADUAL if numerics.gradual_underflow else FLUSHED
        return cls(Gamma(u), u, eta, dtype, numerics)

    def probable(self, results: int) -> Arithmetic | None:
        """The form that holds with probability 1 - 1e-6 for so many sums; None where none does.

        It needs roundings to nearest: a truncating accumulation, and truncated operands, err to
        one side.
        """
        if self.u > NEAREST or self.numerics.tf32_operands:
            return None
        return replace(self, gamma=Gamma(self.u, results))

    @property
    def sure(self) -> Arithmetic:
        """The deterministic form."""
        return replace(self, gamma=Gamma(self.u))

    def growth(self, n: float) -> float:
        """What n roundings in a row do to a number: (1 + u)^n - 1, or what is as probable."""
        return math.expm1(min(self.gamma(n) + n * self.u**2, 600.0))

    def rounded(self, value: Tensor, error: Tensor | None, roundings: float = 1) -> Tensor:
        """The error after so many roundings of `value`, which had this error before; in new memory.

        A subnormal result may be flushed to zero.
        """
        size = value.abs().mul_(roundings * self.u).add_(self.eta)
        return size if error is None else size.add_(error, alpha=1 + roundings * self.u)

    def cast(self, value: Tensor, error: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """The error after a cast, of which a type as wide as the arithmetic's needs none."""
        u = UNIT_ROUNDOFF.get(dtype, 0.0)
        if u <= self.u:
            return error
        size = value.abs() if error is None else value.abs().add_(error)
        after = size.mul_(u).add_(HALF_SUBNORMAL_SPACING[dtype])
        return after if error is None else after.add_(error)

    def casts(self, name: str) -> bool:
        """Whether a kernel makes the cast marked by the name; "" stands for one that all make."""
        return not name or name in self.numerics.casts.split()

    def operand(self, value: Tensor, error: Tensor | None) -> Tensor | None:
        """The error of a number as a product of matrices reads it."""
        if not self.numerics.tf32_operands:
            return error
        u, least = TF32
        cut = value.abs().mul_(u).add_(least)
        return cut if error is None else cut.add_(error, alpha=1 + u)
