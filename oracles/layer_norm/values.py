"""The values that layer-norm backward is tried on, and the arguments made of them.

Values are drawn in float32, rounded to the case's dtype and placed; mean and rstd are then
computed in float64 from what was placed, and rounded to fp32 once, as a careful forward would.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernel_workbench.oracles.cases import distributions
from kernel_workbench.oracles.cases.distributions import (
    COARSE,
    INTEGERS,
    NEEDLES,
    Distribution,
    Values,
    generator,
)
from kernel_workbench.oracles.cases.factors import NOT_FINITE
from kernel_workbench.oracles.cases.layouts import place_tensor, place_vector
from kernel_workbench.oracles.layer_norm.arguments import axes_of, rows_of
from kernel_workbench.oracles.layer_norm.probes import integers
from kernel_workbench.oracles.op import Case, Inputs

EPS = 1e-5
_STATISTICS_CHUNK = 2**24

# Families in which equal numbers are summed: 16384 equal terms in sequence come to 2.9 times the
# probabilistic bound.
_EQUAL_ADDENDS = frozenset({"constant_rows", "constant_dy", "constant_both", "zero_dy"})


# Arguments that aren't drawn with the others, of which one number is NaN.
_LATER = ("nan_mean", "nan_rstd", "nan_dresidual", "nan_dweight")


def _dy_subnormal(values: Values) -> None:
    """dy alone among the subnormals, and weights of 20: what flushing loses is not scaled away."""
    distributions.subnormal("dy")(values)
    values.tensors["weight"] *= 20


def _near_overflow(values: Values) -> None:
    """dx of a few times 1e4: in fp16 some of it is past the largest number."""
    values.tensors["dy"].mul_(2.5e4).clamp_(-6e4, 6e4)
    values.tensors["weight"].abs_().add_(0.5)


def _dy_parallel(values: Values) -> None:
    """dy along x^ with weight 1: dx is nearly 0, all of it cancellation."""
    x = values.tensors["x"]
    values.tensors["weight"].fill_(1)
    if x.numel():
        values.tensors["dy"].copy_(
            (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True, correction=0) + EPS)
        )


def _constant(names: str) -> Distribution:
    """Every row is one number: near 1e4 in x, 1 to 2 in dy."""

    def flatten(values: Values) -> None:
        for name in names.split():
            target = values.tensors[name]
            row = target[:, :1].clone()
            target.copy_((row * 10 + 1e4 if name == "x" else row.abs() % 1 + 1).expand_as(target))

    return flatten


def _outlier_channel(values: Values) -> None:
    """Every 61st column of x is 100 times the rest, as in trained models."""
    values.tensors["x"][:, ::61] *= 100


DISTRIBUTIONS: dict[str, Distribution] = {
    "normal": distributions.normal,
    "uniform": distributions.uniform("x dy weight"),
    "times3": distributions.scaled("x dy", 3),
    "outliers": distributions.outliers("x dy"),
    "mean100": distributions.shifted("x", 100),
    "mean1e4": distributions.shifted("x", 1e4),
    "constant_rows": _constant("x"),
    "constant_dy": _constant("dy"),
    "constant_both": _constant("x dy"),
    "tiny_variance": distributions.scaled("x", 1e-4),
    "outlier_channel": _outlier_channel,
    "dy_parallel": _dy_parallel,
    "scaled_rows": distributions.scaled_rows("dy", 0),
    "near_overflow": _near_overflow,
    "subnormals": distributions.subnormal("x dy"),
    "dy_subnormal": _dy_subnormal,
    "zero_dy": distributions.scaled("dy", 0),
    "negative_zero": distributions.negative_zero("dy"),
    "nan_x": distributions.one("x", 1, math.nan),
    "nan_dy": distributions.one("dy", -1, math.nan),
    "inf_dy": distributions.one("dy", 2, -math.inf),
    COARSE: distributions.coarse("x"),
    INTEGERS: integers,
    "near_5": distributions.near("x", 5),
    "huge_first": distributions.huge_first("x"),
    "large_dy": distributions.large("dy"),
    "far_weights": distributions.far_weights("weight"),
    "nan_weight": distributions.one("weight", 3, math.nan),
    # The values of these aren't drawn with the others: `inputs` sets one to NaN.
    **dict.fromkeys(_LATER, distributions.normal),
    NEEDLES: distributions.needles("x dy"),
}


KINDS_OF_VALUES: dict[str, tuple[str, ...]] = {
    "ordinary": ("normal", "uniform", "times3", "outliers", "outlier_channel", "scaled_rows"),
    "magnitudes": (
        *("mean100", "mean1e4", "near_5", "huge_first", "tiny_variance", "large_dy"),
        *("far_weights", "dy_parallel", "near_overflow", "subnormals", "dy_subnormal"),
    ),
    "alike": ("constant_rows", "constant_dy", "constant_both", "zero_dy", "negative_zero"),
    NEEDLES: (NEEDLES,),
    NOT_FINITE: ("nan_x", "nan_dy", "inf_dy", "nan_weight", *_LATER),
}


def addends_vary(case: Case) -> bool:
    """Return True if the numbers summed differ, as the probabilistic bound needs."""
    return distributions.addends_vary(case, _EQUAL_ADDENDS)


def _statistics(x: Tensor, *, rms_norm: bool) -> tuple[Tensor | None, Tensor]:
    """mean (None for RMS norm) and rstd of each row, [m], in float64 from the placed x [m, n]."""
    means, rstds = [], []
    for rows in x.split(max(1, _STATISTICS_CHUNK // x.shape[1])):
        wide = rows.double()
        mean = torch.zeros_like(wide[:, :1]) if rms_norm else wide.mean(1, keepdim=True)
        means.append(mean.squeeze(1))
        rstds.append(((wide - mean).square().mean(1) + EPS).rsqrt())
    return None if rms_norm else torch.cat(means), torch.cat(rstds)


def inputs(case: Case, device: torch.device) -> Inputs:  # noqa: C901  # an argument after another
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
    drawn = {"x": normal(m, n), "dy": normal(m, n), "weight": 1 + normal(n) / 2}
    DISTRIBUTIONS[case.distribution](Values(case, drawn, draw))

    def infect(name: str, values: Tensor) -> None:
        if case.distribution == f"nan_{name}" and case.distribution in _LATER and values.numel():
            values.view(-1)[values.numel() // 2] = math.nan

    def further(name: str, *shape: int) -> Tensor:
        more = normal(*shape)
        infect(name, more)
        return more.mul_(4).round_() if case.distribution == INTEGERS else more

    def matrix(name: str, values: Tensor) -> Tensor:
        shaped = values.view(*rows_of(case), n)
        return place_tensor(shaped, case.dtype, layout.of(name), axes_of(case))

    x, dy = matrix("x", drawn["x"]), matrix("dy", drawn["dy"])
    if "rstd" in drawn:
        mean, rstd = drawn.get("mean"), drawn["rstd"]
    else:
        mean, rstd = _statistics(x.reshape(-1, n), rms_norm="rms_norm" in options)

    def statistic(name: str, value: Tensor | None) -> Tensor | None:
        if value is None:
            return None
        infect(name, value)
        return place_vector(value.view(rows_of(case)), torch.float32, layout.of(name))

    result: Inputs = {"dy": dy, "x": x, "weight": None}
    result["mean"], result["rstd"] = statistic("mean", mean), statistic("rstd", rstd)
    if "no_weight" not in options:
        weight = drawn["weight"] - 1 if "zero_centred" in options else drawn["weight"]
        result["weight"] = place_vector(weight, case.weight_dtype, layout.of("weight"))
    if "residual" in options:
        result["dresidual"] = matrix("dresidual", further("dresidual", m, n))
    if "accumulate" in options:
        result["dweight"] = place_vector(
            further("dweight", n), case.weight_dtype, layout.of("dweight")
        )
        if "no_bias" not in options:
            result["dbias"] = place_vector(
                further("dbias", n), case.weight_dtype, layout.of("dbias")
            )
    for option, argument, flag in (
        ("no_bias", "has_bias", False),
        ("zero_centred", "zero_centred", True),
        ("device_independent", "device_independent", True),
    ):
        if option in options:
            result[argument] = flag
    return result
