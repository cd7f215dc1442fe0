"""Partial sums of dweight and dbias that a kernel casts to x's dtype, as it declares.

An addend meets k such casts at most: 1 where each partial sum is cast once ("partials"), and
ceil(m / P) where each of P accumulators is cast after each row (`half_accumulators`). With u_p and
eta_p of x's dtype they change the sum of m addends by at most

    ((1 + u_p)^k - 1) sum|addends| + m eta_p (1 + u_p)^k

which the analysis of a reference can't know, since nobody declares which rows a partial sum has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from kernel_workbench.oracles.layer_norm.numerics import LayerNormNumerics
from kernel_workbench.oracles.op import Bound, Case, Numerics
from kernel_workbench.oracles.rounding import HALF_SUBNORMAL_SPACING, UNIT_ROUNDOFF

_LARGEST_EXPONENT = 600.0  # exp of it is finite in float64, and more than any fp32 sum is off by
# From here on casts of partial sums leave dweight and dbias no power.
_POWERLESS_GROWTH = 3**-0.5
_CASTS_OF_ADDENDS = frozenset({"gradient", "normalised", "products"})


@dataclass(frozen=True, slots=True)
class Addends:
    """The numbers that are added up over the rows, column by column, [n] each, in float64.

    size, largest    the sum of the addends' magnitudes, and the largest one
    total, squares   the sums of the addends and of their squares
    """

    size: Tensor
    largest: Tensor
    total: Tensor
    squares: Tensor

    @classmethod
    def of(cls, addends: Tensor) -> Self:
        """Measure addends [rows, n]."""
        size = addends.abs()
        none = size.new_zeros(1, size.shape[1])
        largest = torch.cat([size, none]).amax(0)
        return cls(size.sum(0), largest, addends.sum(0), addends.square().sum(0))

    @classmethod
    def joined(cls, parts: tuple[Self, ...]) -> Self:
        """Put several columns' together."""
        names = [field.name for field in fields(cls)]
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def silenced(self, share: float) -> Tensor:
        """Return where a third of the rows is less than this share of all magnitudes, bool [n]."""
        third = torch.maximum(self.total.abs(), (3 * self.squares).sqrt()) / 3
        return share * self.size > third


@dataclass(frozen=True, slots=True)
class PartialCasts:
    """The casts of a case's partial sums.

    dtype          what partial sums are cast to, a half; weight_dtype: the last cast's
    rows           how many addends a sum has
    accumulators   partial sums that rows are added to one by one; 0: each is cast once
    addend_casts   casts that an addend meets before it is added
    """

    dtype: torch.dtype
    weight_dtype: torch.dtype
    rows: int
    accumulators: int
    addend_casts: int

    @classmethod
    def of(cls, case: Case, numerics: Numerics) -> Self | None:
        """Return the casts that a kernel with these numerics makes of a case; None for none."""
        count = LayerNormNumerics.of(numerics).half_accumulators
        has_weight = "no_weight" not in case.options
        is_declared = count > 0 or numerics.makes("partials")
        if not is_declared or not has_weight or case.dtype == torch.float32:
            return None
        rows = case.size("m")
        addend_casts = len(_CASTS_OF_ADDENDS & set(numerics.casts.split()))
        return cls(case.dtype, case.weight_dtype, rows, min(count, rows), addend_casts)

    @property
    def roundings(self) -> int:
        """Return k, how many casts of partial sums an addend meets at most."""
        return -(-self.rows // self.accumulators) if self.accumulators else 1

    def _growth(self, roundings: int) -> float:
        u = UNIT_ROUNDOFF[self.dtype]
        return math.expm1(min(roundings * math.log1p(u), _LARGEST_EXPONENT))

    @property
    def growth(self) -> float:
        """Return (1 + u_p)^k - 1."""
        return self._growth(self.roundings)

    @property
    def have_power(self) -> bool:
        """Say whether the casts leave sums of addends of both signs any power."""
        return self.growth < _POWERLESS_GROWTH

    def largest_partial(self, size: Tensor, largest: Tensor) -> Tensor:
        """Return what a partial sum comes to at most, [n].

        It has all addends, or as many as one accumulator takes.
        """
        return torch.minimum(size, self.roundings * largest) if self.accumulators else size

    def error(self, size: Tensor, largest: Tensor) -> Tensor:
        """Return what the casts change sums by, [n]; size and largest: as `Addends` has them.

        The error is infinite where a partial sum may be past the dtype's largest number.
        """
        eta, growth = HALF_SUBNORMAL_SPACING[self.dtype], self.growth
        error = growth * size + self.rows * eta * (1 + growth)
        partial = self.largest_partial(size, largest) * (1 + growth) + self.roundings * eta
        return error.masked_fill(partial >= torch.finfo(self.dtype).max, torch.inf)

    def widened(self, before: Bound, addends: Addends, value: Tensor) -> Bound:
        """Return a sum's bound with these casts and the last one.

        before: the bound without either; addends: as exact arithmetic has them; value: the output.
        """

        def after(error: Tensor) -> Tensor:
            # A kernel's addends are off by no more together than the sum is.
            extra = self.error(addends.size + error, addends.largest + error)
            u, eta = UNIT_ROUNDOFF[self.weight_dtype], HALF_SUBNORMAL_SPACING[self.weight_dtype]
            whole = (error + extra * (1 + 2.0**-20)) * (1 + u) + u * value.abs() + eta
            return torch.where(value.isfinite(), whole, torch.nan)

        silent = addends.silenced(self._growth(self.roundings + self.addend_casts))
        if before.powerless is not None:
            silent |= before.powerless
        likely = None if before.probabilistic is None else after(before.probabilistic)
        return replace(
            before,
            deterministic=after(before.deterministic),
            probabilistic=likely,
            powerless=silent,
        )

    def emulated_sum(self, addends: Tensor) -> Tensor:
        """Add up addends [rows, n] in fp32, in partial sums that are cast as declared.

        Partial sums that are cast once are two, or one where the output is of another dtype, which
        leaves as much as any number of them.
        """
        if self.accumulators == self.rows:
            return addends.to(self.dtype).float().sum(0)
        if not self.accumulators:
            count = 2 if self.weight_dtype == self.dtype else 1
            parts = [addends[number::count].sum(0) for number in range(count)]
            return torch.stack(parts).to(self.dtype).float().sum(0)
        if not self.have_power:
            return addends.sum(0)
        sums = torch.zeros_like(addends[: self.accumulators])
        for few in addends.split(self.accumulators):
            sums = torch.cat([(sums[: len(few)] + few).to(self.dtype).float(), sums[len(few) :]])
        return sums.sum(0)
