"""What a kernel of layer norm declares to cast on its way: to which types, and how often.

The bound takes a cast's error from here, the emulation the cast itself. A cast to fp32, or to the
type that a number has, is none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernel_workbench.oracles.op import Case, Numerics
from kernel_workbench.oracles.rounding import HALF_SUBNORMAL_SPACING, UNIT_ROUNDOFF

_LARGEST_EXPONENT = 600.0  # exp of it is finite in float64, and more than any fp32 sum is off by


@dataclass(frozen=True, slots=True)
class Cast:
    """A cast to `dtype`, a half; None: there is none."""

    dtype: torch.dtype | None

    def __bool__(self) -> bool:
        return self.dtype is not None

    def __call__(self, wide: Tensor) -> Tensor:
        """The numbers after it, in their own dtype."""
        return wide if self.dtype is None else wide.to(self.dtype).to(wide.dtype)

    @property
    def u(self) -> float:
        """Its unit roundoff."""
        return 0.0 if self.dtype is None else UNIT_ROUNDOFF[self.dtype]

    @property
    def eta(self) -> float:
        """Half the spacing of its subnormals."""
        return 0.0 if self.dtype is None else HALF_SUBNORMAL_SPACING[self.dtype]

    def error(self, size: Tensor) -> Tensor:
        """What it does to numbers up to `size`; infinite where they may be past its largest."""
        if self.dtype is None:
            return torch.zeros_like(size)
        error = self.u * size + self.eta
        return error.masked_fill(size + error >= torch.finfo(self.dtype).max, torch.inf)


@dataclass(frozen=True, slots=True)
class Casts:
    """The declared casts of a case.

    gradient     of dy, to the weight's type
    weighted     of g = weight dy, normalised: of x^ before dy x^, products: of dy x^
    partials     of partial sums of dweight and dbias
    roundings    how many of those an addend meets at most
    accumulators    how many partial sums rows are added to one by one; 0: they are cast once
    """

    gradient: Cast
    weighted: Cast
    normalised: Cast
    products: Cast
    partials: Cast
    roundings: int
    accumulators: int

    @classmethod
    def of(cls, case: Case, numerics: Numerics) -> Casts:
        """The casts that a kernel with these numerics makes of a case."""
        has_weight = "no_weight" not in case.options

        def to(dtype: torch.dtype, *, declared: bool) -> Cast:
            return Cast(dtype if declared and has_weight and dtype != torch.float32 else None)

        m, other = case.size("m"), case.weight_dtype != case.dtype
        held = numerics.half_accumulators
        partials = to(case.dtype, declared=numerics.half_partials or held > 0)
        accumulators = min(held, m) if partials else 0
        return cls(
            gradient=to(case.weight_dtype, declared=numerics.rounds_gradient and other),
            weighted=to(case.dtype, declared=numerics.rounds_weighted),
            normalised=to(case.dtype, declared=numerics.rounds_normalised),
            products=to(case.dtype, declared=numerics.rounds_products),
            partials=partials,
            roundings=-(-m // accumulators) if accumulators else 1,
            accumulators=accumulators,
        )

    @property
    def of_sums(self) -> bool:
        """Whether dweight and dbias have any."""
        return any((self.gradient, self.normalised, self.products, self.partials))

    @property
    def growth(self) -> float:
        """(1 + u)^k - 1: what k roundings of partial sums do to an addend at most."""
        return math.expm1(min(self.roundings * math.log1p(self.partials.u), _LARGEST_EXPONENT))

    def share(self, *, products: bool) -> float:
        """What they do to a sum of dy, or of dy x^, of the sum of its addends' magnitudes."""
        each = (self.gradient, self.normalised, self.products) if products else (self.gradient,)
        return math.prod(1 + cast.u for cast in each) * (1 + self.growth) - 1

    def of_g(self, dy: Tensor, g: Tensor, weight: Tensor | None) -> Tensor | None:
        """What they do to g, of |dy|, |g| [rows, n] and |weight| [n]; None where nothing."""
        if weight is None or not (self.gradient or self.weighted):
            return None
        error = weight * self.gradient.error(dy)
        return error + self.weighted.error(g + error)

    def of_product(self, dy: Tensor, x_hat: Tensor) -> tuple[Tensor, Tensor]:
        """dy x^ as large as it may be after them, and what they do to it, of |dy| and |x^|."""
        e_d, e_x = self.gradient.error(dy), self.normalised.error(x_hat)
        size = (dy + e_d) * (x_hat + e_x)
        e_p = self.products.error(size)
        return size + e_p, dy * e_x + e_d * (x_hat + e_x) + e_p

    def of_partials(self, size: Tensor, largest: Tensor, rows: int) -> Tensor:
        """What casts of partial sums do, [n], to sums of `rows` addends.

        size: the sum of the addends' magnitudes; largest: the largest of them. Infinite where a
        partial sum may be past the type's largest number.
        """
        if not self.partials:
            return torch.zeros_like(size)
        error = self.growth * size + rows * self.partials.eta * (1 + self.growth)
        partial = self.partial(size, largest)
        held = partial + self.growth * partial + self.roundings * self.partials.eta
        assert self.partials.dtype is not None
        return error.masked_fill(held >= torch.finfo(self.partials.dtype).max, torch.inf)

    def partial(self, size: Tensor, largest: Tensor) -> Tensor:
        """What a partial sum comes to at most: all addends, or as many as one accumulator takes."""
        return torch.minimum(size, self.roundings * largest) if self.accumulators else size
