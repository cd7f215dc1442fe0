"""The values that ops are tried on: what a distribution changes, and those that several ops have.

Values are drawn from N(0, 1) in float32 and then changed. The functions below make a distribution
of the tensors that they are named, by names with spaces between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernel_workbench.oracles.op import Case

# Multiples of 1/8, to which a number can be added without a rounding: what relations are tried on.
COARSE = "coarse"
# Values on which nothing is rounded: an exact probe of the op.
INTEGERS = "integers"


@dataclass(slots=True)
class Values:
    """A case's floating-point arguments in float32, by name, to be changed by a distribution."""

    case: Case
    tensors: dict[str, Tensor]
    draw: torch.Generator

    def some(self, names: str) -> Iterator[Tensor]:
        """Those of `names`, separated by spaces, that the case has."""
        return (self.tensors[name] for name in names.split() if name in self.tensors)


Distribution = Callable[[Values], None]


def generator(device: torch.device, *key: object) -> torch.Generator:
    """A generator whose stream depends on `key` alone (and on the kind of device)."""
    seed = 0
    for character in "|".join(map(str, key)):
        seed = (seed * 1_000_003 + ord(character)) % (2**63)
    return torch.Generator(device=device).manual_seed(seed)


def normal(_: Values) -> None:
    """As drawn."""


def changed(names: str, change: Callable[[Tensor], object]) -> Distribution:
    """Each tensor changed in place by `change`, which knows nothing of the case."""

    def distribution(values: Values) -> None:
        for each in values.some(names):
            change(each)

    return distribution


def scaled(names: str, factor: float) -> Distribution:
    """`factor` times as large."""
    return changed(names, lambda each: each.mul_(factor))


def shifted(names: str, offset: float) -> Distribution:
    """With a mean of `offset`."""
    return changed(names, lambda each: each.add_(offset))


def coarse(names: str) -> Distribution:
    """Multiples of 1/8 of 4 at most: adding such a number to them is exact in every type."""
    return changed(names, lambda each: each.mul_(8).round_().clamp_(-32, 32).div_(8))


def negative_zero(names: str) -> Distribution:
    """Every other column is -0."""
    return changed(names, lambda each: each[..., ::2].fill_(-0.0))


def uniform(names: str) -> Distribution:
    """[0, 1): nothing cancels."""

    def distribution(values: Values) -> None:
        for each in values.some(names):
            each.uniform_(generator=values.draw)

    return distribution


def outliers(names: str) -> Distribution:
    """N(0, 1) + N(0, 100) Bernoulli(0.001), as FlashAttention-3's tests have it."""

    def distribution(values: Values) -> None:
        for each in values.some(names):
            rare = torch.rand(each.shape, generator=values.draw, device=each.device) < 0.001
            each += rare * torch.empty_like(each).normal_(0, 10, generator=values.draw)

    return distribution


def subnormal(names: str) -> Distribution:
    """Among the dtype's subnormals: 1 to 15 of its smallest number, and 0."""

    def distribution(values: Values) -> None:
        info = torch.finfo(values.case.dtype)
        for each in values.some(names):
            each.mul_(4).round_().clamp_(-15, 15).mul_(info.smallest_normal * info.eps)

    return distribution


def scaled_rows(names: str, axis: int) -> Distribution:
    """Rows 1, 1e-1, 1e-2, 1e-3 times as large: an error in a small row is small in any norm."""

    def scale(each: Tensor) -> None:
        steps = torch.arange(each.shape[axis], device=each.device) % 4
        each *= 10.0 ** -steps.view(-1, *[1] * (each.ndim - axis - 1)).float()

    return changed(names, scale)


def one(name: str, row: int, number: float) -> Distribution:
    """One element, in row `row` (counted round) and the middle of each other axis, is `number`."""

    def place(target: Tensor) -> None:
        if target.numel():
            rows, *others = target.shape
            target[row % rows, *(each // 2 for each in others)] = number

    return changed(name, place)


def constant_rows(names: str) -> Distribution:
    """Every row is one number, from 1 to 2: all that is summed is equal."""

    def flatten(each: Tensor) -> None:
        if each.numel():
            each.copy_((each[..., :1].abs() % 1 + 1).clone().expand_as(each))

    return changed(names, flatten)


def addends_vary(case: Case, equal: Collection[str]) -> bool:
    """Whether the numbers summed differ, as the probabilistic bound needs.

    equal: the distributions in which equal numbers are summed, whose roundings repeat.
    """
    expanded = any(each.expanded for _, each in case.layout.tensors)
    return case.distribution not in equal and not expanded


def objection(case: Case, own: Collection[str]) -> str | None:
    """Why a user's case can't have its distribution; own: those for the op's own cases alone."""
    drawn = case.distribution
    if drawn in own:
        return f"distribution {drawn} is for the op's own cases, whose sizes suit it; name another"
    if drawn == "near_overflow" and case.dtype != torch.float16:
        return "near_overflow is about float16's range; give dtype float16, or another distribution"
    return None
