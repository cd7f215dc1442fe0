"""The values that ops are tried on: what a distribution changes, and those that several ops have.

Values are drawn from N(0, 1) in float32 and then changed. The functions below make a distribution
of the tensors that they are named, by names with spaces between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernel_workbench.oracles.op import Case

# Multiples of 1/8, to which a number can be added without a rounding: what relations are tried on.
COARSE = "coarse"
# Values on which nothing is rounded: an exact probe of the op.
INTEGERS = "integers"
# One number of a row that decides it, at the places where kernels cut rows.
NEEDLES = "needles"
_CUTS = (64, 128, 256, 512, 1024, 2048)  # columns that a tile may begin at
_NEEDLE = 12.0  # times larger than N(0, 1), and added
_LARGEST = torch.finfo(torch.float32).max


@dataclass(slots=True)
class Values:
    """A case's floating-point arguments in float32, by name, to be changed by a distribution."""

    case: Case
    tensors: dict[str, Tensor]
    draw: torch.Generator

    def some(self, names: str) -> Iterator[Tensor]:
        """Yield the tensors of the case among `names`, which spaces separate."""
        return (self.tensors[name] for name in names.split() if name in self.tensors)


Distribution = Callable[[Values], None]


def generator(device: torch.device, *key: object) -> torch.Generator:
    """A generator whose stream depends on `key` alone (and on the kind of device)."""
    seed = 0
    for character in "|".join(map(str, key)):
        seed = (seed * 1_000_003 + ord(character)) % (2**63)
    return torch.Generator(device=device).manual_seed(seed)


def normal(_: Values) -> None:
    """Leave the values as they were drawn."""


def changed(names: str, change: Callable[[Tensor], object]) -> Distribution:
    """Return a distribution that changes tensors in place by `change`, which sees no case."""

    def distribution(values: Values) -> None:
        for tensor in values.some(names):
            change(tensor)

    return distribution


def scaled(names: str, factor: float) -> Distribution:
    """Return a distribution whose values are `factor` times as large."""
    return changed(names, lambda tensor: tensor.mul_(factor))


def shifted(names: str, offset: float) -> Distribution:
    """Return a distribution with a mean of `offset`."""
    return changed(names, lambda tensor: tensor.add_(offset))


def coarse(names: str) -> Distribution:
    """Return multiples of 1/8 up to 4: adding such a number to them is exact in every type."""
    return changed(names, lambda tensor: tensor.mul_(8).round_().clamp_(-32, 32).div_(8))


def negative_zero(names: str) -> Distribution:
    """Return a distribution with -0 in every other column."""
    return changed(names, lambda tensor: tensor[..., ::2].fill_(-0.0))


def uniform(names: str) -> Distribution:
    """Return a distribution over [0, 1): nothing cancels."""

    def distribution(values: Values) -> None:
        for tensor in values.some(names):
            tensor.uniform_(generator=values.draw)

    return distribution


def outliers(names: str) -> Distribution:
    """Return N(0, 1) + N(0, 100) Bernoulli(0.001), as in FlashAttention-3's tests."""

    def distribution(values: Values) -> None:
        for tensor in values.some(names):
            rare = torch.rand(tensor.shape, generator=values.draw, device=tensor.device) < 0.001
            tensor += rare * torch.empty_like(tensor).normal_(0, 10, generator=values.draw)

    return distribution


def subnormal(names: str) -> Distribution:
    """Return a distribution of subnormals: 0 to 15 times the dtype's smallest number."""

    def distribution(values: Values) -> None:
        info = torch.finfo(values.case.dtype)
        for tensor in values.some(names):
            tensor.mul_(4).round_().clamp_(-15, 15).mul_(info.smallest_normal * info.eps)

    return distribution


def scaled_rows(names: str, axis: int) -> Distribution:
    """Scale rows by 1, 1e-1, 1e-2, 1e-3 in turn: an error in a small row is small in any norm."""

    def scale(tensor: Tensor) -> None:
        steps = torch.arange(tensor.shape[axis], device=tensor.device) % 4
        tensor *= 10.0 ** -steps.view(-1, *[1] * (tensor.ndim - axis - 1)).float()

    return changed(names, scale)


def one(name: str, row: int, number: float) -> Distribution:
    """Set one element, in row `row` (counted round) and the middle of other axes, to `number`."""

    def place(target: Tensor) -> None:
        if target.numel():
            rows, *sizes = target.shape
            target[row % rows, *(other // 2 for other in sizes)] = number

    return changed(name, place)


def near(names: str, mean: float) -> Distribution:
    """Numbers about a mean, or its negative row by row, with a deviation of 0.01."""

    def shift(tensor: Tensor) -> None:
        signs = 1 - 2 * (torch.arange(tensor.shape[0], device=tensor.device) % 2)
        tensor.mul_(0.01).add_(mean).mul_(signs.view(-1, *[1] * (tensor.ndim - 1)))

    return changed(names, shift)


def huge_first(names: str) -> Distribution:
    """Make the first number of each row about 1e4 times the others."""

    def enlarge(tensor: Tensor) -> None:
        if tensor.numel():
            tensor[..., :1] = tensor[..., :1].sign() * (1e4 + 100 * tensor[..., :1].abs())

    return changed(names, enlarge)


def large_squares(names: str) -> Distribution:
    """Make squares of every third row add up to a sixteenth of fp32's largest number at most.

    In float16 the numbers themselves are an eighth of its largest at most.
    """

    def distribution(values: Values) -> None:
        largest = torch.finfo(values.case.dtype).max
        for tensor in values.some(names):
            squares = math.sqrt(_LARGEST / max(16 * tensor.shape[-1], 1))
            tensor[1::3].clamp_(-4, 4).mul_(min(squares, largest / 8) / 4)

    return distribution


def large(names: str) -> Distribution:
    """65,536 times as large, as a scaled loss makes gradients; in float16 1,024 times."""

    def distribution(values: Values) -> None:
        for tensor in values.some(names):
            tensor.mul_(1024 if values.case.dtype == torch.float16 else 65536)

    return distribution


def far_weights(names: str) -> Distribution:
    """About 9 in even columns, and about 0 in odd ones."""

    def move(tensor: Tensor) -> None:
        tensor[..., ::2].add_(8)
        tensor[..., 1::2].sub_(1)

    return changed(names, move)


def ties(names: str) -> Distribution:
    """Multiples of 1/2 of 2 at most: many are equal, in a row and in two arguments alike."""
    return changed(names, lambda tensor: tensor.mul_(2).round_().clamp_(-4, 4).div_(2))


def deciding_columns(columns: int, seed: int) -> list[int]:
    """Return the columns where kernels cut a row: its ends, and both sides of tiles' edges.

    Args:
        columns: the row's length.
        seed: rotates the order, so that a few rows meet all columns in several cases.

    Example:
        >>> deciding_columns(3, 0)
        [0, 2, 1]
    """
    cuts = [place for cut in _CUTS for place in (cut, cut - 1)]
    places = [0, columns - 1, columns // 2, columns - 2, 1, *cuts]
    places_inside = list(dict.fromkeys(place for place in places if 0 <= place < columns))
    turn = seed % max(len(places_inside), 1)
    return places_inside[turn:] + places_inside[:turn]


def needles(names: str) -> Distribution:
    """Make one number of each row stand out, now positive and now negative, at a deciding column.

    Two arguments have theirs at different columns of a row.
    """

    def distribution(values: Values) -> None:
        turn = values.case.seed + sum(size for _, size in values.case.sizes)
        for number, tensor in enumerate(values.some(names)):
            if not tensor.numel():
                continue
            rows = tensor.view(-1, tensor.shape[-1])
            columns = deciding_columns(tensor.shape[-1], turn + number)
            rows_ = torch.arange(len(rows), device=tensor.device)
            at = torch.tensor(columns, device=tensor.device)[rows_ % len(columns)]
            signs = 1.0 - 2.0 * (rows_ % 3 == 2)  # most are maxima
            rows[rows_, at] = signs * (_NEEDLE + rows[rows_, at].abs())

    return distribution


def minus_inf(name: str) -> Distribution:
    """-inf in the first three quarters of every fourth row, in all of the next, in its one number.

    Leading blocks of -inf are what a mask of values gives to an online softmax.
    """

    def place(tensor: Tensor) -> None:
        columns = tensor.shape[-1]
        if not tensor.numel():
            return
        rows = tensor.view(-1, columns)
        rows[1::4, : min(3 * columns // 4, columns - 1)] = -math.inf
        rows[2::8] = -math.inf
        rows[3::4, columns // 2] = -math.inf

    return changed(name, place)


def minus_inf_rows(names: Sequence[str]) -> Distribution:
    """-inf at every third place of all these vectors alike, and at others of each alone."""

    def distribution(values: Values) -> None:
        for number, name in enumerate(names):
            own = 3 * (number // 2) + 1 + number % 2  # no multiple of 3, and no other vector's
            values.tensors[name][::3] = -math.inf
            values.tensors[name][own :: 3 * len(names)] = -math.inf

    return distribution


def constant_rows(names: str) -> Distribution:
    """Make every row one number, from 1 to 2: all numbers of a sum are equal."""

    def flatten(tensor: Tensor) -> None:
        if tensor.numel():
            tensor.copy_((tensor[..., :1].abs() % 1 + 1).clone().expand_as(tensor))

    return changed(names, flatten)


def addends_vary(case: Case, equal: Collection[str]) -> bool:
    """Return True if the numbers summed differ, as the probabilistic bound needs.

    equal: the distributions in which equal numbers are summed, whose roundings repeat.
    """
    return case.distribution not in equal and not case.layout.is_expanded


def objection(case: Case, own: Collection[str]) -> str | None:
    """Return why a user's case can't have its distribution. own: those of the op's own cases."""
    drawn = case.distribution
    if drawn in own:
        return f"distribution {drawn} is for the op's own cases, whose sizes suit it; name another"
    if drawn == "near_overflow" and case.dtype != torch.float16:
        return "near_overflow is about float16's range; give dtype float16, or another distribution"
    return None
