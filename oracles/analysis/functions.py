"""How errors go through functions of a mathematical library, roundings to whole numbers and orders.

A kernel's library is within 8 units in the last place, 2^-20, which is relative, or is absolute
where a formula by other functions cancels. An argument's error is multiplied by the steepest slope,
or is bounded by the function's values at the ends of an interval on which it falls nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.oracles.analysis.arithmetic import LARGEST, Arithmetic
from kernel_workbench.oracles.analysis.quantities import (
    Combination,
    Quantity,
    constant_error,
    magnitude,
    number,
)
from kernel_workbench.oracles.analysis.rules import (
    EPS_DIVISION,
    EPS_POWER,
    log_shrunk,
    monotone,
    rule,
)
from kernel_workbench.oracles.rounding import EPS_EXP, EPS_LOG

_aten = torch.ops.aten
_LIBRARY = EPS_POWER  # within 8 units in the last place
_LOG10_E = math.log10(math.e)


def _at_ends(
    arithmetic: Arithmetic,
    out: Quantity,
    a: Quantity,
    function: Callable[[Tensor], Tensor],
    local: Tensor,
) -> Combination:
    """A function that rises everywhere, or falls everywhere, whose own error is `local`."""
    result = Combination(out, [(1.0, magnitude(local))], arithmetic.eta)
    if a.error is None:
        return result
    ends = (function(a.value + side * a.error) - out.value for side in (1, -1))
    through = torch.maximum(*(end.abs_() for end in ends)).nan_to_num_(nan=torch.inf)
    return result.plus(through, 1 + _LIBRARY)


def _outside(x: Quantity, low: float, high: float) -> Tensor | None:
    """Where a number that isn't exact may be outside of what a function is defined on."""
    if x.error is None:
        return None
    return (x.error > 0) & ((x.value - x.error < low) | (x.value + x.error > high))


def _promised(result: Combination, open_: Tensor | None) -> Combination | Tensor:
    """Infinite where nothing is promised."""
    if open_ is None or not bool(open_.any()):
        return result
    return result.tensor().masked_fill(open_, torch.inf)


def _relative(out: Quantity) -> Tensor:
    return out.size * _LIBRARY


def _absolute(out: Quantity) -> Tensor:
    return out.size.clamp(min=1).mul_(_LIBRARY)


def _rises(
    function: Callable[[Tensor], Tensor],
    own: Callable[[Quantity], Tensor],
    low: float = -math.inf,
    high: float = math.inf,
) -> None:
    """Register the rule of a function that rises, or falls, everywhere from `low` to `high`.

    own: the error of a library's own. Where the limits are finite, they are poles.
    """

    def bound(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Combination | Tensor:
        result = _at_ends(arithmetic, out, a, lambda x: function(x.clamp(low, high)), own(out))
        return _promised(result, _outside(a, low, high))

    rule(function.__name__, poles=math.isfinite(low))(bound)


for _function in (torch.asin, torch.acos, torch.atanh):
    _rises(_function, _absolute, -1, 1)
for _function in (torch.asinh, torch.erfc):
    _rises(_function, _absolute)
_rises(torch.atan, _relative)
_rises(torch.erfinv, _relative, -1, 1)
_rises(torch.special.ndtri, _absolute, 0, 1)


@rule("atan2")
def _atan2(arithmetic: Arithmetic, out: Quantity, y: Quantity, x: Quantity) -> Combination:
    """A point that moves by r of a distance turns by asin r, and by 2 pi over the cut."""
    result = Combination(out, [(1.0, magnitude(_relative(out)))], arithmetic.eta)
    if y.error is None and x.error is None:
        return result
    ey, ex = (torch.zeros_like(a.value) if a.error is None else a.error for a in (y, x))
    moved = torch.hypot(ey, ex) / torch.hypot(y.value, x.value)
    turned = torch.where(moved < 1, moved.clamp(max=1).asin(), math.pi)
    cut = (y.size <= ey) & (x.value - ex < 0)
    exact = (ey == 0) & (ex == 0)
    turned = torch.where(cut, 2 * math.pi, turned).masked_fill_(exact, 0)
    return result.plus(turned.nan_to_num_(nan=2 * math.pi))


@rule("sinh")
def _sinh(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Combination:
    local = a.size * (4 * arithmetic.u) + _LIBRARY
    return _at_ends(arithmetic, out, a, torch.sinh, local.mul_(a.value.cosh()))


def _even(function: Callable[[Tensor], Tensor]) -> Callable[..., Combination]:
    """Return the rule of a function that rises with the magnitude, as an exponential at most."""

    def bound(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Combination:
        local = (a.size * (4 * arithmetic.u) + _LIBRARY).mul_(out.value)
        result = Combination(out, [(1.0, magnitude(local))], arithmetic.eta)
        if a.error is None:
            return result
        return result.plus(function(a.size + a.error).sub_(out.value), 1 + _LIBRARY)

    return bound


rule("cosh")(_even(torch.cosh))
rule("i0")(_even(torch.special.i0))


@rule("special_i1")
def _bessel(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Combination:
    local = (a.size * (4 * arithmetic.u) + _LIBRARY).mul_(out.size)
    return _at_ends(arithmetic, out, a, torch.special.i1, local)


@rule("special_i0e")
def _scaled_bessel(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Combination:
    """It falls with the magnitude."""
    least = replace(a, value=a.size, lazy_error=a.error, memory={}, of_value={})
    return _at_ends(
        *(arithmetic, out, least, lambda x: torch.special.i0e(x.clamp(min=0)), _relative(out))
    )


@rule("acosh", poles=True)
def _acosh(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Combination | Tensor:
    """x^2 - 1 is off by a rounding of x^2, as if x were."""
    off = a.size * (2 * arithmetic.u)
    off = off if a.error is None else off.add_(a.error)
    moved = replace(a, lazy_error=off, memory={})
    result = _at_ends(arithmetic, out, moved, lambda x: x.clamp(min=1).acosh(), _absolute(out))
    return _promised(result, _outside(a, 1, math.inf))


@rule("tan", poles=True)
def _tan(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Tensor:
    """A quotient of a sine and a cosine that are both off by d."""
    d = a.size * arithmetic.u + _LIBRARY
    d = d if a.error is None else d.add_(a.error.clamp(max=2))
    cosine = a.value.cos().abs_()
    error = (1 + out.size) * d / (cosine - d)
    error = error.add_(out.size, alpha=_LIBRARY).add_(arithmetic.eta)
    return error.masked_fill_(cosine <= d, torch.inf)


@rule("log10", poles=True)
def _log10(_: Arithmetic, out: Quantity, a: Quantity) -> Tensor:
    local = _absolute(out)
    return local if a.error is None else local.sub_(log_shrunk(a.error, a.value), alpha=_LOG10_E)


@rule("lgamma", poles=True)
def _lgamma(_: Arithmetic, out: Quantity, a: Quantity) -> Tensor:
    """Bound lgamma by its slope, which rises above 0; nothing is promised below 0."""
    local = _absolute(out)
    if a.error is not None:
        ends = (torch.digamma((a.value + side * a.error).clamp(min=0)).abs() for side in (1, -1))
        local = local.add_(torch.where(a.error > 0, torch.maximum(*ends) * a.error, 0.0))
    open_ = a.value <= (0.0 if a.error is None else a.error)
    return local.masked_fill_(open_ & out.value.isfinite(), torch.inf)


@rule("digamma", poles=True)
def _digamma(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Combination | Tensor:
    """It rises above 0; nothing is promised below."""
    result = _at_ends(
        *(arithmetic, out, a, lambda x: torch.digamma(x.clamp(min=0)), _absolute(out))
    )
    return _promised(result, a.value <= (0.0 if a.error is None else a.error))


def _of_normal(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Tensor:
    """A rounded square in an exponent."""
    return a.size.square().mul_(4 * arithmetic.u).add_(_LIBRARY).mul_(out.size)


@rule("special_erfcx")
def _erfcx(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Combination:
    return _at_ends(arithmetic, out, a, torch.special.erfcx, _of_normal(arithmetic, out, a))


@rule("special_log_ndtr")
def _log_ndtr(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Combination:
    return _at_ends(arithmetic, out, a, torch.special.log_ndtr, _of_normal(arithmetic, out, a))


@rule("logcumsumexp")
def _logcumsumexp(arithmetic: Arithmetic, out: Quantity, a: Quantity, dim: int) -> Tensor:
    """n additions of logarithms, of each of which the slopes add up to 1."""
    if not a.value.dim():
        return arithmetic.local(out).plus(a.error).tensor()
    size = a.size.masked_fill(~a.value.isfinite(), 0)
    n = torch.ones_like(size).cumsum(dim)
    most = size.cummax(dim).values.add_(n.log())
    step = most.mul(8 * arithmetic.u + EPS_LOG).add_(EPS_EXP + EPS_LOG + 2 * arithmetic.u)
    local = step.mul_(n).add_(arithmetic.eta)
    return local if a.error is None else local.add_(a.error.cummax(dim).values)


@rule("hypot")
def _hypot(arithmetic: Arithmetic, out: Quantity, a: Quantity, b: Quantity) -> Combination | Tensor:
    """Bound hypot, whose squares overflow past the root of the largest number, or are lost."""
    lost = 2 * math.sqrt(arithmetic.eta)
    result = Combination(out, [(_LIBRARY, out)], lost)
    for x in (a, b):
        result.plus(x.error)
    return _promised(result, ~(out.size < math.sqrt(LARGEST) / 2) & out.size.isfinite())


@rule("logaddexp")
def _logaddexp(arithmetic: Arithmetic, out: Quantity, a: Quantity, b: Quantity) -> Tensor:
    return _log_of_two(arithmetic, out, a, b, 1.0)


@rule("logaddexp2")
def _logaddexp2(arithmetic: Arithmetic, out: Quantity, a: Quantity, b: Quantity) -> Tensor:
    return _log_of_two(arithmetic, out, a, b, 1 / math.log(2))


def _log_of_two(
    arithmetic: Arithmetic, out: Quantity, a: Quantity, b: Quantity, slope: float
) -> Tensor:
    """Bound logaddexp by the larger error: its two slopes add up to 1."""
    large = torch.maximum(a.size, b.size).masked_fill_(~out.value.isfinite(), 0)
    large = torch.where(large.isfinite(), large, out.size)
    local = large.mul_(4 * arithmetic.u).add_(out.size, alpha=4 * arithmetic.u + EPS_LOG)
    local.add_(slope * (EPS_EXP + EPS_LOG + 2 * arithmetic.u) + arithmetic.eta)
    errors = [x.error for x in (a, b) if x.error is not None]
    if not errors:
        return local
    return local.add_(errors[0] if len(errors) == 1 else torch.maximum(*errors))


def _to_decimals(arithmetic: Arithmetic, out: Quantity, a: Quantity, decimals: int) -> Tensor:
    """Round a multiple by a power of 10, and divide by that."""
    scale, off = 10.0**decimals, EPS_DIVISION + 2 * arithmetic.u
    large = Quantity(a.value * scale)
    error = large.size * off + arithmetic.eta
    error = error if a.error is None else error.add_(a.error, alpha=scale * (1 + off))
    jump = monotone(Quantity(large.value.round()), torch.round, replace(large, lazy_error=error))
    assert jump is not None
    return jump.mul_((1 + off) / scale).add_(out.size, alpha=off).add_(arithmetic.eta)


def _rounded_by(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor | None]:
    def whole(
        arithmetic: Arithmetic,
        out: Quantity,
        a: Quantity,
        **kwargs: Any,  # noqa: ANN401
    ) -> Tensor | None:
        if kwargs.get("decimals"):
            return _to_decimals(arithmetic, out, a, kwargs["decimals"])
        return monotone(out, function, a)

    return whole


for _name in ("round", "floor", "ceil", "trunc"):
    rule(_name)(_rounded_by(getattr(torch, _name)))


@rule("frac")
def _fraction(_: Arithmetic, out: Quantity, a: Quantity) -> Tensor | None:
    """The fraction may be off by 1 where the whole part may be another."""
    del out
    jump = monotone(Quantity(a.value.trunc()), torch.trunc, a)
    return None if jump is None or a.error is None else jump.add_(a.error)


@rule("copysign")
def _copysign(_: Arithmetic, out: Quantity, a: Quantity, b: Quantity | float) -> Tensor | None:
    del out
    sign = number(b)
    error = a.error
    if sign.error is None:
        return error
    either = 2 * a.size if error is None else 2 * a.size + error
    open_ = (sign.size <= sign.error) & (sign.error > 0)
    return torch.where(open_, either, 0.0 if error is None else error)


@rule("nan_to_num")
def _finite(
    _: Arithmetic,
    out: Quantity,
    a: Quantity,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor | None:
    """The number in the place of an infinity is by default the largest one, of whatever dtype."""
    special = ~a.value.isfinite()
    if not bool(special.any()):
        return a.error
    error = torch.zeros_like(out.value) if a.error is None else a.error
    above, below = (math.inf if x is None else _of_constant(x) for x in (posinf, neginf))
    own = torch.where(a.value > 0, above, torch.where(a.value < 0, below, _of_constant(nan or 0)))
    return torch.where(special, error.maximum(own), error)


def _of_constant(x: float) -> float:
    return abs(x) * constant_error(x)


def _ordered_by(operation: Any) -> Callable[..., object]:  # noqa: ANN401
    """The k-th of some numbers falls with none of them."""

    def ordered(
        _: Arithmetic,
        out: Quantity | Sequence[Quantity],
        a: Quantity,
        *rest: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> object:
        stable = kwargs.get("stable") is True or operation in {_aten.cummax, _aten.cummin}
        place = 1 if operation in {_aten.topk, _aten.kthvalue} else 0
        axis = kwargs.get("dim", rest[place] if len(rest) > place else -1)
        values = out if isinstance(out, Quantity) else out[0]

        def ordered_values(x: Tensor) -> Tensor:
            result = operation(x, *rest, **kwargs)
            return result if isinstance(result, Tensor) else result[0]

        error = monotone(values, ordered_values, a)
        if isinstance(out, Quantity):  # the median of all numbers
            return error
        first = rest[0] + 1 if operation is _aten.topk else None
        largest = kwargs.get("largest", rest[2] if len(rest) > 2 else True)
        if (a.error is None and stable) or not _is_open(a, axis, first, largest=largest):
            return error, None
        return error, torch.full_like(out[1].value, torch.inf, dtype=torch.float64)

    return ordered


def _is_open(a: Quantity, axis: int, first: int | None, *, largest: bool) -> bool:
    """Ask if some numbers of a row may be equal, or in another order.

    first: so many of the largest, or of the smallest, alone; None: all.
    """
    if not a.value.dim() or a.value.shape[axis] < 2:
        return False
    value, order = a.value.sort(axis)
    error = torch.zeros_like(value) if a.error is None else a.error.gather(axis, order)
    n = value.shape[axis]
    below = (value + error).narrow(axis, 0, n - 1).cummax(axis).values
    open_ = below >= (value - error).narrow(axis, 1, n - 1)
    if first is not None and first < n:
        open_ = open_.narrow(axis, n - first if largest else 0, first - 1)
    return bool(open_.any())


for _name in ("sort", "topk", "kthvalue", "median", "nanmedian", "cummax", "cummin"):
    rule(_name)(_ordered_by(getattr(_aten, _name)))


def _place_among(out: Quantity, edges: Quantity, a: Quantity, *, right: bool) -> Tensor | None:
    """Bound a count of edges that are less: it rises with a number, and falls with each edge."""
    if a.error is None and edges.error is None:
        return None

    def count(side: int) -> Tensor:
        x = a.value if a.error is None else a.value + side * a.error
        moved = edges.value if edges.error is None else edges.value - side * edges.error
        return torch.searchsorted(moved.sort(-1).values.contiguous(), x.contiguous(), right=right)

    error = torch.maximum(count(1) - out.value, out.value - count(-1)).double()
    return error if bool(error.any()) else None


@rule("bucketize")
def _bucketize(
    _: Arithmetic,
    out: Quantity,
    a: Quantity | float,
    edges: Quantity,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> Tensor | None:
    del out_int32
    return _place_among(out, edges, number(a), right=right)


@rule("searchsorted")
def _searchsorted(  # aten's own
    _: Arithmetic,
    out: Quantity,
    edges: Quantity,
    a: Quantity | float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Quantity | None = None,
) -> Tensor | None:
    del out_int32, sorter  # edges are sorted anew
    return _place_among(out, edges, number(a), right=right or side == "right")


@rule("prod", sums=True)
def _prod(
    arithmetic: Arithmetic,
    out: Quantity,
    a: Quantity,
    dim: int | None = None,
    keepdim: bool = False,  # noqa: FBT001,FBT002  # aten's own
    **_: object,
) -> Tensor:
    del out

    def whole(change: Callable[[Quantity], Tensor]) -> Tensor:
        x = change(a)
        return x.prod() if dim is None else x.prod(dim, keepdim=keepdim)

    n = a.value.numel() if dim is None else a.value.shape[dim] if a.value.dim() else 1
    return of_products(arithmetic, whole, n)


@rule("cumprod", sums=True)
def _cumprod(arithmetic: Arithmetic, out: Quantity, a: Quantity, dim: int, **_: object) -> Tensor:
    del out
    n = a.value.shape[dim] if a.value.dim() else 1
    return of_products(arithmetic, lambda change: change(a).cumprod(dim), n)


def of_products(
    arithmetic: Arithmetic, whole: Callable[[Callable[[Quantity], Tensor]], Tensor], n: int
) -> Tensor:
    """Bound n factors in any order by prod(|a| + e) - prod |a|, and n - 1 roundings.

    The other factors multiply what some of them lose by a flush, as far as they are above 1.

    Args:
        arithmetic: of the kernel.
        whole: the product, as a function of what is done to each tensor of factors first.
        n: how many factors a number has, at most.

    """
    most, above = whole(lambda x: x.reach), whole(lambda x: x.reach.clamp(min=1))
    result = most * arithmetic.sure.growth(max(n - 1, 0)) + (most - whole(lambda x: x.size))
    result.add_(above, alpha=n * arithmetic.eta)
    return result.masked_fill_(above >= LARGEST, torch.inf)
