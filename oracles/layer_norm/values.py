"""The values that layer-norm backward is tried on, and the arguments made of them.

Values are drawn in float32, rounded to the case's dtype and placed; mean and rstd are then
computed in float64 from what was placed, and rounded to fp32 once, as a careful forward would.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.inputs import generator, place_matrix, place_vector
from oracles.layer_norm.probes import INTEGERS, integers
from oracles.op import Case, Inputs

EPS = 1e-5
COARSE = "coarse"
_STATISTICS_CHUNK = 2**24

# Families in which equal numbers are summed: their roundings repeat, and the probabilistic bound
# says nothing (16384 equal terms in sequence come to 2.9 times it).
_EQUAL_ADDENDS = frozenset({"constant_rows", "constant_dy", "constant_both", "zero_dy"})


@dataclass(slots=True)
class Values:
    """x, dy [m, n] and weight [n] in float32, to be changed by a distribution.

    weight is the one that acts, 1 added where it is zero-centred. A distribution may give mean and
    rstd [m]; they are computed from x where it doesn't.
    """

    x: Tensor
    dy: Tensor
    weight: Tensor
    dtype: torch.dtype
    draw: torch.Generator
    options: frozenset[str]
    mean: Tensor | None = None
    rstd: Tensor | None = None


Distribution = Callable[[Values], None]


def _uniform(values: Values) -> None:
    """[0, 1): nothing cancels in the means."""
    for each in (values.x, values.dy, values.weight):
        each.uniform_(generator=values.draw)


def _outliers(values: Values) -> None:
    """N(0, 1) + N(0, 100) Bernoulli(0.001), as FlashAttention-3's tests have it."""
    for each in (values.x, values.dy):
        rare = torch.rand(each.shape, generator=values.draw, device=each.device) < 0.001
        large = torch.empty_like(each).normal_(0, 10, generator=values.draw)
        each += rare * large


def _subnormals(values: Values) -> None:
    """x and dy among the dtype's subnormals: 1 to 15 of its smallest number."""
    tiny = torch.finfo(values.dtype).smallest_normal * torch.finfo(values.dtype).eps
    for each in (values.x, values.dy):
        each.copy_(each.mul_(4).round_().clamp_(-15, 15) * tiny)


def _dy_subnormal(values: Values) -> None:
    """dy alone among the subnormals, and weights of 20: what flushing loses is not scaled away."""
    tiny = torch.finfo(values.dtype).smallest_normal * torch.finfo(values.dtype).eps
    values.dy.copy_(values.dy.mul_(4).round_().clamp_(-15, 15) * tiny)
    values.weight *= 20


def _near_overflow(values: Values) -> None:
    """dx of a few times 1e4: in fp16 some of it is past the largest number."""
    values.dy.mul_(2.5e4).clamp_(-6e4, 6e4)
    values.weight.abs_().add_(0.5)


def _dy_parallel(values: Values) -> None:
    """dy along x^ with weight 1: dx is nearly 0, all of it cancellation."""
    x = values.x
    values.weight.fill_(1)
    if x.numel():
        values.dy.copy_(
            (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True, correction=0) + EPS)
        )


def _scaled_rows(values: Values) -> None:
    """Rows 1, 1e-1, 1e-2, 1e-3 times as large: an error in a small row is small in any norm."""
    steps = torch.arange(values.dy.shape[0], device=values.dy.device) % 4
    values.dy *= 10.0 ** -steps[:, None].float()


def _set(name: str, row: int, number: float) -> Distribution:
    """One element of `name`, in row `row` (counted round) and the middle column, is `number`."""

    def place(values: Values) -> None:
        target: Tensor = getattr(values, name)
        if target.numel():
            target[row % target.shape[0], target.shape[1] // 2] = number

    return place


def _mean(offset: float) -> Distribution:
    def shift(values: Values) -> None:
        values.x += offset

    return shift


def _scale(name: str, factor: float) -> Distribution:
    def multiply(values: Values) -> None:
        getattr(values, name).mul_(factor)

    return multiply


def _constant(*names: str) -> Distribution:
    """Every row of `names` is one number: near 1e4 in x, 1 to 2 in dy."""

    def flatten(values: Values) -> None:
        for name in names:
            target: Tensor = getattr(values, name)
            row = target[:, :1].clone()
            target.copy_((row * 10 + 1e4 if name == "x" else row.abs() % 1 + 1).expand_as(target))

    return flatten


def _outlier_channel(values: Values) -> None:
    """Every 61st column of x is 100 times the rest, as in trained models."""
    values.x[:, ::61] *= 100


def _coarse(values: Values) -> None:
    """x of multiples of 1/8 of 4 at most: adding such a number to them is exact in every type."""
    values.x.mul_(8).round_().clamp_(-32, 32).div_(8)


def _negative_zero(values: Values) -> None:
    """Half of dy is -0."""
    values.dy[:, ::2] = -0.0


DISTRIBUTIONS: dict[str, Distribution] = {
    "normal": lambda _: None,
    "uniform": _uniform,
    "times3": lambda values: (_scale("x", 3)(values), _scale("dy", 3)(values))[0],
    "outliers": _outliers,
    "mean100": _mean(100),
    "mean1e4": _mean(1e4),
    "constant_rows": _constant("x"),
    "constant_dy": _constant("dy"),
    "constant_both": _constant("x", "dy"),
    "tiny_variance": _scale("x", 1e-4),
    "outlier_channel": _outlier_channel,
    "dy_parallel": _dy_parallel,
    "scaled_rows": _scaled_rows,
    "near_overflow": _near_overflow,
    "subnormals": _subnormals,
    "dy_subnormal": _dy_subnormal,
    "zero_dy": _scale("dy", 0),
    "negative_zero": _negative_zero,
    "nan_x": _set("x", 1, math.nan),
    "nan_dy": _set("dy", -1, math.nan),
    "inf_dy": _set("dy", 2, -math.inf),
    COARSE: _coarse,
    INTEGERS: integers,
}


def addends_vary(case: Case) -> bool:
    """Whether the numbers summed differ, as the probabilistic bound needs."""
    expanded = any(each.expanded for _, each in case.layout.tensors)
    return case.distribution not in _EQUAL_ADDENDS and not expanded


def _statistics(x: Tensor, *, rms_norm: bool) -> tuple[Tensor | None, Tensor]:
    """mean (None for RMS norm) and rstd of each row, [m], in float64 from the placed x [m, n]."""
    means, rstds = [], []
    for rows in x.split(max(1, _STATISTICS_CHUNK // x.shape[1])):
        wide = rows.double()
        mean = torch.zeros_like(wide[:, :1]) if rms_norm else wide.mean(1, keepdim=True)
        means.append(mean.squeeze(1))
        rstds.append(((wide - mean).square().mean(1) + EPS).rsqrt())
    return None if rms_norm else torch.cat(means), torch.cat(rstds)


def inputs(case: Case, device: torch.device) -> Inputs:
    """The keyword arguments of a kernel for `case`, on `device`, the same at every call.

    dy, x [m, n] (or [batches, m / batches, n]) in the case's dtype, weight [n] in its weight
    dtype, mean and rstd [m] (or [batches, m / batches]) in fp32; options add theirs.
    """
    m, n = case.size("m"), case.size("n")
    key = (case.op, case.sizes, case.dtype_label, case.distribution, case.seed)
    draw = generator(device, *key)

    def normal(*shape: int) -> Tensor:
        return torch.empty(shape, device=device).normal_(generator=draw)

    layout, options = case.layout, case.options
    values = Values(normal(m, n), normal(m, n), 1 + normal(n) / 2, case.dtype, draw, options)
    DISTRIBUTIONS[case.distribution](values)

    def further(*shape: int) -> Tensor:
        drawn = normal(*shape)
        return drawn.mul_(4).round_() if case.distribution == INTEGERS else drawn

    x = place_matrix(values.x, case.dtype, "x", layout)
    dy = place_matrix(values.dy, case.dtype, "dy", layout)
    if values.rstd is None:
        mean, rstd = _statistics(x.reshape(-1, n), rms_norm="rms_norm" in options)
    else:
        mean, rstd = values.mean, values.rstd
    rows = x.shape[:-1]

    def statistic(name: str, value: Tensor | None) -> Tensor | None:
        if value is None:
            return None
        return place_vector(value.view(rows), torch.float32, layout.of(name))

    made: Inputs = {"dy": dy, "x": x, "weight": None}
    made["mean"], made["rstd"] = statistic("mean", mean), statistic("rstd", rstd)
    if "no_weight" not in options:
        weight = values.weight - 1 if "zero_centred" in options else values.weight
        made["weight"] = place_vector(weight, case.weight_dtype, layout.of("weight"))
    if "residual" in options:
        made["dresidual"] = place_matrix(further(m, n), case.dtype, "dresidual", layout)
    if "accumulate" in options:
        made["dweight"] = place_vector(further(n), case.weight_dtype, layout.of("dweight"))
        if "no_bias" not in options:
            made["dbias"] = place_vector(further(n), case.weight_dtype, layout.of("dbias"))
    for option, argument, flag in (
        ("no_bias", "has_bias", False),
        ("zero_centred", "zero_centred", True),
        ("device_independent", "device_independent", True),
    ):
        if option in options:
            made[argument] = flag
    return made
