"""What a kernel's arithmetic does to a number: roundings, what flushing loses, casts, tf32."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernel_workbench.oracles.analysis.quantities import Combination, Known, scalar
from kernel_workbench.oracles.op import Numerics
from kernel_workbench.oracles.rounding import (
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

    def rounded(
        self,
        out: Known,
        error: Combination | Tensor | None,
        roundings: float = 1,
        *,
        times: float = 1.0,
    ) -> Combination:
        """The error after so many roundings of `out`, which had `times` this error before.

        A subnormal result may be flushed to zero.
        """
        return self.local(out, roundings).plus(error, self.grown(times, roundings))

    def grown(self, times: float, roundings: float = 1) -> float:
        """What an error is multiplied by that was `times` as large before so many roundings."""
        return times * (1 + roundings * self.u)

    def local(
        self, out: Known, roundings: float = 1, *, absolute: float = 0.0, relative: float = 0.0
    ) -> Combination:
        """What so many roundings do to an exact number, for a rule to add to.

        absolute, relative: what it was off by before them, and in units of its size.
        """
        slope = roundings * self.u + self.grown(relative, roundings)
        return Combination(out, [(slope, out)], self.eta + self.grown(absolute, roundings))

    def cast(self, a: Known, dtype: torch.dtype) -> Combination | Tensor | None:
        """The error after a cast, of which a type as wide as the arithmetic's needs none."""
        u = UNIT_ROUNDOFF.get(dtype, 0.0)
        if u <= self.u:
            return a.given
        return Combination(a, [(u, a)], HALF_SUBNORMAL_SPACING[dtype]).plus(a.given, 1 + u)

    def casts(self, name: str) -> bool:
        """Whether a kernel makes the cast marked by the name; "" stands for one that all make."""
        return not name or self.numerics.makes(name)

    def operand(self, a: Known) -> Tensor | None:
        """The error of a number as a product of matrices reads it."""
        if not self.numerics.tf32_operands:
            return a.error
        u, least = TF32
        cut = torch.add(scalar(least), a.size, alpha=u)
        return cut if a.error is None else cut.add_(a.error, alpha=1 + u)
