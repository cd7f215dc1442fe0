"""Layer-norm backward as a correct kernel computes it, in fp32, on a CPU.

The closed form has several orders of sums, several forms of x^, and several ways to combine dx.
Tests replace these parts one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from kernel_workbench.oracles import LAYER_NORM_BACKWARD, LayerNormNumerics
from kernel_workbench.oracles.op import Case, Inputs, Numerics

# A CPU keeps subnormals, so that the narrower of the two bounds must hold.
PLAIN = LayerNormNumerics(gradual_underflow=True)
DISTRIBUTED = LayerNormNumerics(gradual_underflow=True, distributed_normalisation=True)
Sum = Callable[[Tensor], Tensor]  # float32 [k, ...] to [...], over the first dimension


def any_order(addends: Tensor) -> Tensor:
    """Add in torch's order."""
    return addends.sum(0)


def sequential(addends: Tensor) -> Tensor:
    """Add one after another, as numpy's cumsum does in float32; torch's uses float64."""
    return torch.from_numpy(np.cumsum(addends.numpy(), axis=0, dtype=np.float32)[-1])


def pairwise(addends: Tensor) -> Tensor:
    """Add halves to halves."""
    while addends.shape[0] > 1:
        half = addends.shape[0] // 2
        pairs = addends[:half] + addends[half : 2 * half]
        addends = torch.cat([pairs, addends[2 * half :]])
    return addends[0]


def blocks_of_16(addends: Tensor) -> Tensor:
    """Add sixteen in a row, and then their sums."""
    return sequential(torch.stack([sequential(block) for block in addends.split(16)]))


def backwards(addends: Tensor) -> Tensor:
    """Add one after another, the last first."""
    return sequential(addends.flip(0))


def without_last(addends: Tensor) -> Tensor:
    """Add all but the last: a defect."""
    return addends[:-1].sum(0)


def in_the(half: torch.dtype) -> Sum:
    """Add one after another, and round each sum to the half: a defect."""

    def accumulate(addends: Tensor) -> Tensor:
        total = torch.zeros_like(addends[0])
        for addend in addends:
            total = (total + addend).to(half).float()
        return total

    return accumulate


def centred(x: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    """Return x^ as most kernels compute it."""
    return (x - mean) * rstd


def distributed(x: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    """Return x^ of a kernel that declares that it multiplies first."""
    return x * rstd - mean * rstd


def distributed_fma(x: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    """Return fma(x, rstd, -fl(mean rstd)): pure rounding on a constant row; `centred` gives 0."""
    return (x.double() * rstd.double() - (mean * rstd).double()).float()


@dataclass(frozen=True)
class Combine:
    """A way to combine dx of rstd, g, the row's sums and x^; tests plant wrong signs."""

    form: int
    sign: float = 1.0

    def __call__(self, rstd: Tensor, g: Tensor, sums: Tensor, x_hat: Tensor) -> Tensor:
        """Return dx [m, n] for g, x_hat [m, n], rstd [m, 1] and the sums of g and g x^ [m, 2]."""
        n = g.shape[1]
        if self.form == 3:  # as PyTorch's CUDA kernel has it
            return (rstd / n) * (g * n - sums[:, :1] - x_hat * sums[:, 1:] * self.sign)
        # Two roundings, of 1/n and of the product, where a division would have one.
        means = sums * torch.tensor(1.0).div(n)
        c1, c2 = means[:, :1], means[:, 1:] * self.sign
        if self.form == 0:
            return rstd * (g - c1 - x_hat * c2)
        if self.form == 1:
            return rstd * g - rstd * (c1 + x_hat * c2)
        return (g - (x_hat * c2 + c1)) * rstd


@dataclass(frozen=True)
class Early:
    """The values that are cast before the outputs; by default none.

    gradient    dy, to the weight's type; all else to x's
    weighted, normalised, products    g, x^ on its way to dweight, and dy x^
    partials    so many partial sums over neighbouring rows, cast once; 0: not cast
    accumulators    so many, to which rows are added in turn with a cast after each; 0: none
    """

    gradient: bool = False
    weighted: bool = False
    normalised: bool = False
    products: bool = False
    partials: int = 0
    accumulators: int = 0

    @property
    def declared(self) -> Numerics:
        """Return the declaration of such a kernel."""
        names = {
            "gradient": self.gradient,
            "dnormalised": self.weighted,
            "normalised": self.normalised,
            "products": self.products,
            "partials": self.partials > 0,
        }
        return replace(
            PLAIN,
            casts=" ".join(name for name, is_cast in names.items() if is_cast),
            half_accumulators=self.accumulators,
        )

    def sum_over_rows(self, order: Sum, addends: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the sum of addends [m, ...] over the first dimension."""
        if self.accumulators:
            held = torch.zeros(self.accumulators, *addends.shape[1:])
            for row, addend in enumerate(addends):
                place = held[row % self.accumulators]
                place.copy_(cast(place + addend, dtype))
            return order(held)
        if self.partials:
            parts = addends.tensor_split(min(self.partials, len(addends)))
            return order(torch.stack([cast(order(part), dtype) for part in parts]))
        return order(addends)


def cast(wide: Tensor, dtype: torch.dtype, *, really: bool = True) -> Tensor:
    """Cast to `dtype` and back."""
    return wide.to(dtype).float() if really else wide


@dataclass(frozen=True)
class Arithmetic:
    """The parts of the closed form that a kernel is free to choose."""

    row_sum: Sum = any_order
    column_sum: Sum = any_order
    x_hat: Callable[[Tensor, Tensor, Tensor], Tensor] = centred
    combine: Combine = Combine(0)
    early: Early = Early()


SOUND = Arithmetic()


def emulate(case: Case, inputs: Inputs, how: Arithmetic) -> dict[str, Tensor]:
    """Return outputs of a kernel that computes in float32 and rounds once, at the end."""
    n = case.size("n")

    def wide(name: str, width: int) -> Tensor | None:
        value = inputs.get(name)
        return value.float().reshape(-1, width) if isinstance(value, Tensor) else None

    dy, x, rstd = wide("dy", n), wide("x", n), wide("rstd", 1)
    weight, mean, residual = wide("weight", n), wide("mean", 1), wide("dresidual", n)
    assert dy is not None and x is not None and rstd is not None
    x_hat = x * rstd if mean is None else how.x_hat(x, mean, rstd)
    if weight is not None and "zero_centred" in case.options:
        weight = 1 + weight
    early = how.early if weight is not None else Early()
    dy = cast(dy, case.weight_dtype, really=early.gradient)
    g = dy if weight is None else cast(dy * weight, case.dtype, really=early.weighted)
    sums = how.row_sum(torch.stack([g.T, (g * x_hat).T], 2).contiguous())  # [m, 2]
    if mean is None:
        sums[:, 0] = 0
    dx = how.combine(rstd, g, sums, x_hat)
    if residual is not None:
        dx = dx + residual
    products = dy * cast(x_hat, case.dtype, really=early.normalised)
    products = cast(products, case.dtype, really=early.products)
    addends = torch.stack([products, dy], 1)  # [m, 2, n]
    totals = early.sum_over_rows(how.column_sum, addends, case.dtype)
    made = {"dx": dx.to(case.dtype)}
    for name, total in zip(("dweight", "dbias"), totals, strict=True):
        if name in LAYER_NORM_BACKWARD.forms(case):
            earlier = wide(name, n)
            made[name] = (total if earlier is None else total + earlier[0]).to(case.weight_dtype)
    return made


def sound_ways() -> Iterator[tuple[Arithmetic, Numerics]]:
    """Yield all orders of summation with all forms of x^, and ways to combine dx in turn."""
    for index, order in enumerate((any_order, sequential, backwards, pairwise, blocks_of_16)):
        for turn, x_hat in enumerate((centred, distributed, distributed_fma)):
            combine = Combine((index + turn) % 4)
            declared = PLAIN if x_hat is centred else DISTRIBUTED
            yield Arithmetic(order, order, x_hat, combine), declared


def early_ways() -> Iterator[Arithmetic]:
    """Yield the casts of three known kernels, alone and together, in several orders of summation.

    Triton's tutorial: accumulators. Llama's RMS norm: x^, dy x^ and g. apex's mixed form: dy.
    """
    every = Early(gradient=True, weighted=True, normalised=True, products=True)
    each = (
        Early(accumulators=64),
        Early(accumulators=4),
        Early(accumulators=1),
        Early(partials=1),
        Early(partials=2),
        Early(partials=7),
        Early(partials=10**6),
        Early(weighted=True, normalised=True, products=True),
        Early(gradient=True),
        Early(normalised=True),
        Early(products=True),
        replace(every, partials=3),
        replace(every, accumulators=16),
    )
    orders = (any_order, sequential, backwards, pairwise, blocks_of_16)
    for turn, early in enumerate(each):
        order = orders[turn % len(orders)]
        yield Arithmetic(order, order, combine=Combine(turn % 4), early=early)
