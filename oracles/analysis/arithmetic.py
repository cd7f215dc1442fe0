"""Effects of a kernel's arithmetic on a number: roundings, what flushing loses, casts, tf32."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernel_workbench.oracles.analysis.quantities import Combination, Quantity, scalar
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
        """Return the relative error of n roundings: (1 + u)^n - 1, or its probable form."""
        return math.expm1(min(self.gamma(n) + n * self.u**2, 600.0))

    def rounded(
        self,
        out: Quantity,
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
        """Return an error of `times` after so many more roundings."""
        return times * (1 + roundings * self.u)

    def local(
        self, out: Quantity, roundings: float = 1, *, absolute: float = 0.0, relative: float = 0.0
    ) -> Combination:
        """Return the error of so many roundings of an exact number, to which a rule adds.

        Args:
            out: the exact number, of any shape.
            roundings: how many there are.
            absolute: the number's error before them.
            relative: the same, in units of its magnitude.
        """
        slope = roundings * self.u + self.grown(relative, roundings)
        return Combination(out, [(slope, out)], self.eta + self.grown(absolute, roundings))

    def cast(self, a: Quantity, dtype: torch.dtype) -> Combination | Tensor | None:
        """The error after a cast, of which a type as wide as the arithmetic's needs none."""
        u = UNIT_ROUNDOFF.get(dtype, 0.0)
        if u <= self.u:
            return a.lazy_error
        return Combination(a, [(u, a)], HALF_SUBNORMAL_SPACING[dtype]).plus(a.lazy_error, 1 + u)

    def casts(self, name: str) -> bool:
        """Return True if a kernel makes the cast of that name; every kernel makes ""."""
        return not name or self.numerics.makes(name)

    def operand(self, a: Quantity) -> Tensor | None:
        """The error of a number as a product of matrices reads it."""
        if not self.numerics.tf32_operands:
            return a.error
        u, least = TF32
        cut = torch.add(scalar(least), a.size, alpha=u)
        return cut if a.error is None else cut.add_(a.error, alpha=1 + u)
