"""GELU by tanh of an argument, v = x (1 + t) / 2, t = tanh z, z = beta (x + kappa x^3), in one.

With p = v / x, t is 2 p - 1, and 1 - t^2 is 4 p (1 - p). Errors are those of the operations that
it is made of, by their rules, to first order, times `spare` for what isn't.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernel_workbench.oracles.analysis.arithmetic import Arithmetic
from kernel_workbench.oracles.analysis.quantities import (
    Combination,
    Quantity,
    constant_error,
    magnitude,
    scalar,
)
from kernel_workbench.oracles.analysis.rules import product, rule
from kernel_workbench.oracles.rounding import EPS_TANH

BETA, KAPPA = math.sqrt(2 / math.pi), 0.044715
_LARGEST = 2.0**42  # its cube is below fp32's largest number


def _errors(arithmetic: Arithmetic) -> tuple[float, float, float]:
    """Relative ones of the addends of z, and `spare`: e^(2 z r) is in 1 - t^2, which ends by 10."""
    one = 2 * arithmetic.u + constant_error(BETA)
    cube = one + 3 * arithmetic.u + constant_error(KAPPA)
    return one, cube, math.exp(25 * cube)


def _plus(least: float, a: Tensor, b: Tensor, times: float) -> Tensor:
    return torch.addcmul(scalar(least).to(a.device), a, b, value=times)


def cumulative(x: Tensor, v: Tensor | None = None) -> Tensor:
    """P = (1 + t) / 2; v: GELU of x, where it is known."""
    v = torch.nn.functional.gelu(x, approximate="tanh") if v is None else v
    return (v / x).nan_to_num_(nan=0.5)


def _quantity_below(a: Quantity, error: Tensor) -> Quantity:
    """Infinite where x^3 overflows."""
    over = not a.most < _LARGEST
    return magnitude(error.masked_fill_(~(a.size < _LARGEST), torch.inf) if over else error)


@rule("gelu")
def _gelu(arithmetic: Arithmetic, out: Quantity, a: Quantity, **_: object) -> Combination:
    x, v, (one, cube, spare) = a.value, out.value, _errors(arithmetic)
    a.of_value["gelu"] = v
    error = (x - v).mul_(v).mul_(_plus(2 * BETA * one, x, x, 2 * BETA * KAPPA * cube))
    error.add_(torch.sub(v, x, alpha=0.5).abs_(), alpha=arithmetic.u)
    error.add_(a.size, alpha=EPS_TANH / 2)
    flushed = arithmetic.eta * spare * (1 if a.exact else 2)
    error_after = Combination(out, [(spare, _quantity_below(a, error))], flushed)
    if a.most < _LARGEST:
        out.of_value["most"] = 2 * (a.most + arithmetic.eta)
    return error_after.plus_term(2 * arithmetic.u * spare, out).plus(a.lazy_error, spare / 2)


@rule("gelu_backward")
def _gradient(
    arithmetic: Arithmetic, out: Quantity, dy: Quantity, a: Quantity, **_: object
) -> Combination:
    return product(arithmetic, out, dy, a.once("slope", lambda: _slope(arithmetic, a)))


def _slope(arithmetic: Arithmetic, a: Quantity) -> Quantity:
    """Return P + x (1 - t^2) z' / 2, and its error."""
    u, x, (one, cube, spare) = arithmetic.u, a.value, _errors(arithmetic)
    steep = 5 * u + one + constant_error(3 * KAPPA)
    p = cumulative(x, a.of_value.get("gelu"))
    half = p - 0.5
    bell = _plus(0.25, half, half, -1)  # (1 - t^2) / 4
    xz = _plus(BETA, x, x, 3 * BETA * KAPPA).mul_(x)
    slope = Quantity(torch.addcmul(p, xz, bell, value=2))
    of_tanh = _plus(0.5, xz, half, 2)
    # Its three addends, 1 / 2, t / 2 and the product, in any order: two roundings of each.
    addends = torch.mul(xz, bell).abs_().mul_(2).add_(half.abs()).add_(0.5)
    bell.mul_(a.size)
    error = torch.add(scalar(EPS_TANH), half.abs_(), alpha=3 * u)
    error.addcmul_(_plus(one, x, x, KAPPA * cube), bell, value=4 * BETA).mul_(of_tanh)
    error.addcmul_(_plus(3 * u + one, x, x, 3 * KAPPA * steep), bell, value=2 * BETA)
    error.add_(addends, alpha=2 * u).add_(half, alpha=-u / 2)
    local = Combination(slope, [(spare, _quantity_below(a, error))], 0.0)
    return Quantity(slope.value, local.plus(a.lazy_error, BETA * spare), of_value=slope.of_value)
