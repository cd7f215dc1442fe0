"""How errors go through single operations, a rule for each aten operation.

A rule is given the arithmetic, the operation's result in float64 and its arguments, tensors as
`Quantity`, and says how far a kernel's result may be from it. In e, of arguments a and b with
errors ea and eb; r(e) = e + u (|result| + e) + eta is the rounding of the result:

    a + b, a - b    r(ea + eb)                       a b     r(|a| eb + |b| ea + ea eb), `product`
    a / b           (ea + |a / b| eb) / (|b| - eb)   2 units in the last place (div.full of PTX)
    sqrt a          ea / sqrt(a), or sqrt(a) + sqrt(ea)      likewise, as 1 / a and rsqrt a
    a^k             k ea (|a| + ea)^(k-1), (k - 1) roundings
    exp a           e^a (expm1(d) + eps e^d), d = ea + 2 u |a|: the factor log2 e and its product
    log a           -log1p(-ea / a) + eps max(1, |log a|)
    tanh a, erf a   f(|a|) - f(|a| - ea)             sigmoid a       v (1 - v) expm1(d + eps)

Errors are combinations of magnitudes (quantities.py): a rule adds to one, or reads it as a tensor.

Infinite where an argument that isn't exact may be at a pole. A truth value may be either where its
comparison may be decided either way; its error is True there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from kernel_workbench.oracles.analysis.arithmetic import LARGEST, Arithmetic
from kernel_workbench.oracles.analysis.quantities import (
    Coefficient,
    Combination,
    Quantity,
    added_up,
    constant_error,
    is_few,
    largest,
    magnitude,
    number,
    scalar,
)
from kernel_workbench.oracles.analysis.trace import ROUNDS
from kernel_workbench.oracles.rounding import EPS_EXP, EPS_LOG, EPS_TANH

_aten = torch.ops.aten
EPS_DIVISION = 2.0**-22  # relative: div.full, sqrt.approx and rsqrt.approx of PTX are within it
EPS_POWER = 2.0**-20  # relative: powf is within 8 units in the last place
_EPS_CIRCLE = 2.0**-20  # absolute: sin.approx and cos.approx of PTX
_EPS_ERF = 2.0**-21  # absolute: erff is within 2 units in the last place; one to spare
_LITTLE = 2.0**-10  # an error whose square is next to nothing
_SEVERAL = 2  # magnitudes, each of which is multiplied alone
_TINY = 2.0**-16  # one whose half is next to nothing beside 1
_HALF = 0.5  # the fraction of a power of two

Rule = Callable[..., Any]
_Rule = TypeVar("_Rule", bound=Rule)
RULES: dict[object, Rule] = {}
# Rules whose error isn't that of their arguments where they divide by zero.
POLES: set[object] = set()
# Rules that add up: they alone have a probable form.
SUMS: set[object] = set()


class UnknownError(Exception):
    """A rule can't bound an error; its message follows the operation's name."""


def overloads(*packets: Any) -> frozenset[object]:  # noqa: ANN401
    """Return all overloads of some of aten's operations."""
    return frozenset(getattr(packet, name) for packet in packets for name in packet.overloads())


def rule(*names: str, poles: bool = False, sums: bool = False) -> Callable[[_Rule], _Rule]:
    """Register a rule for every overload of these operations."""

    def register(function: _Rule) -> _Rule:
        for name in names:
            targets = overloads(getattr(_aten, name))
            RULES.update(dict.fromkeys(targets, function))
            POLES.update(targets if poles else ())
            SUMS.update(targets if sums else ())
        return function

    return register


def added(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """The sum of two errors, of which there may be none."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


def is_power_of_two(x: object) -> bool:
    """Ask if a product with it is exact, but for underflow."""
    return isinstance(x, int | float) and math.isfinite(x) and abs(math.frexp(x)[0]) == _HALF


_FAR_FROM_SUBNORMALS = 2.0**-100  # of fp32: a last place of it is 2^-123


def _is_exact_and_large(x: Quantity | float) -> bool:
    """Return whether a kernel has the same numbers, none of them near the subnormals but zeros."""
    if not isinstance(x, Quantity) or not x.exact or not x.value.is_floating_point():
        return False
    size = x.size
    return x.once_of_value(
        "far from subnormals",
        lambda: (
            x.least_size >= _FAR_FROM_SUBNORMALS
            or bool(((size >= _FAR_FROM_SUBNORMALS) | (size == 0)).all())
        ),
    )


@rule("add", "sub")
def _add(
    arithmetic: Arithmetic,
    out: Quantity,
    a: Quantity | float,
    b: Quantity | float,
    alpha: float = 1,
) -> Combination | Tensor | None:
    if out.value.dtype == torch.bool:
        return _or(arithmetic, out, a, b)
    scaled = abs(alpha) * (0 if is_power_of_two(alpha) else 2 * arithmetic.u)
    absolute = 0.0
    if not isinstance(a, Quantity):
        absolute += abs(a) * constant_error(a)
    if not isinstance(b, Quantity):
        absolute += abs(b) * (abs(alpha) * constant_error(b) + scaled)
    result = arithmetic.local(out, absolute=absolute)
    if not absolute and not scaled and all(map(_is_exact_and_large, (a, b))):
        result.rest = 0.0  # the sum is 0, exactly, or far from subnormals
    if isinstance(a, Quantity):
        result.plus(number(a).lazy_error, arithmetic.grown(1.0))
    if isinstance(b, Quantity):
        b = number(b)
        result.plus(b.lazy_error, arithmetic.grown(abs(alpha)))
        result.plus_term(arithmetic.grown(scaled), b)
    return result


ZEROS = "zeros that every kernel has"  # what a value is marked with that may have some


def _is_zero(x: Quantity) -> Tensor:
    """Return where every kernel has a 0."""
    return x.value == 0 if x.error is None else (x.value == 0) & (x.error == 0)


def _zeros_of_product(a: Quantity, b: Quantity) -> Tensor:
    zeros = _is_zero(a) | _is_zero(b)
    for x in (a, b):
        if not x.most < math.inf:  # 0 times an infinity is NaN
            zeros = zeros & (x.reach < math.inf)
    return zeros


def _zeros_of_quotient(a: Quantity, b: Quantity) -> Tensor:
    return _is_zero(a) & (b.size > (0.0 if b.error is None else b.error))


def _zeros_of_power(a: Quantity, k: Quantity) -> Tensor:
    return _is_zero(a) & (k.value > (0.0 if k.error is None else k.error))


_ZEROS_OF: dict[object, Callable[..., Tensor]] = {
    overload: where
    for packets, where in (
        ((_aten.add, _aten.sub), lambda a, b: _is_zero(a) & _is_zero(b)),
        ((_aten.mul,), _zeros_of_product),
        ((_aten.div,), _zeros_of_quotient),
        ((_aten.pow,), _zeros_of_power),
        ((_aten.sqrt,), _is_zero),
        ((_aten.mm, _aten.bmm, _aten.mv), lambda a, b: a.reach @ b.reach == 0),
    )
    for overload in overloads(*packets)
}
_ZEROS_OF[ROUNDS] = _is_zero


def keep_zeros(
    target: object, out: Quantity, error: Combination | Tensor | None, operands: Sequence[Any]
) -> Combination | Tensor | None:
    """Return the error of an operation, 0 where the result is 0 in every kernel.

    An absolute error, of what is flushed, would leave open what follows from such a 0, as its sign.
    """
    tensors = [x for x in operands if isinstance(x, Quantity)]
    if not any(ZEROS in x.of_value or x.value.dtype == torch.bool for x in tensors):
        return error
    out.of_value[ZEROS] = True
    if error is None or target not in _ZEROS_OF or out.least_size > 0:
        return error
    numbers = [number(x) for x in operands if isinstance(x, Quantity | int | float)]
    return added_up(error).masked_fill(_ZEROS_OF[target](*numbers[:2]), 0.0)


@rule("mul")
def _mul(
    arithmetic: Arithmetic, out: Quantity, a: Quantity | float, b: Quantity | float
) -> Combination | Tensor | None:
    if out.value.dtype == torch.bool:
        return _and(arithmetic, out, a, b)
    if not isinstance(a, Quantity):
        a, b = b, a
    assert isinstance(a, Quantity)
    a = number(a)
    if isinstance(b, Quantity):
        return product(arithmetic, out, a, number(b))
    if is_power_of_two(b):
        return None if a.lazy_error is None else _scaled(arithmetic, out, a.lazy_error, abs(b))
    off = constant_error(b)
    error = arithmetic.local(out, relative=off)
    return _plus_scaled(error, a, out, arithmetic.grown(1 + off), abs(b))


def times_number(arithmetic: Arithmetic, a: Quantity, factor: float) -> Quantity:
    """Multiply a by a number, with the error of that."""
    out = Quantity(a.value * factor)
    return replace(out, lazy_error=_mul(arithmetic, out, a, factor))


def _scaled(
    arithmetic: Arithmetic, out: Quantity, error: Combination | Tensor, times: float
) -> Combination:
    """The error of what is multiplied by a power of two."""
    return Combination(out, [], arithmetic.eta).plus(error, times)


def _plus_scaled(
    error: Combination, a: Quantity, out: Quantity, grown: float, times: float
) -> Combination:
    """Add a's error to that of `out`, a times a number; a's own magnitude becomes that of `out`."""
    own, remainder = apart(a)
    return error.plus_term(own * grown, out).plus(remainder, grown * times)


def apart(a: Quantity) -> tuple[Coefficient, Combination | None]:
    """The relative part of an error, and the other."""
    if isinstance(a.lazy_error, Combination) and a.lazy_error.of.value is a.value:
        return a.lazy_error.apart()
    return 0.0, None if a.lazy_error is None else Combination(a, [], 0.0).plus(a.lazy_error)


def product(arithmetic: Arithmetic, out: Quantity, a: Quantity, b: Quantity) -> Combination:
    """(ra + rb + ra rb) |out| + |a| (1 + ra) eb + |b| (1 + rb) ea + ea eb, and a rounding.

    r: the relative parts of errors, e: the others.
    """
    result, grown = arithmetic.local(out), arithmetic.grown(1.0)
    few, many = sorted((a, b), key=lambda operand: operand.value.numel())
    if is_few(many.value, few.value):
        return _by_few(result, out, many, few, grown)
    (ra, ea), (rb, eb) = apart(a), apart(b)
    if isinstance(ra, Tensor) and isinstance(rb, Tensor):  # of different axes, maybe
        ra, ea = 0.0, Combination(a, [], 0.0).plus(added_up(a.lazy_error))
    result.plus_term((ra + rb + ra * rb) * grown, out)
    if ea is not None and eb is not None and ea.terms and eb.terms:
        one, other = ea.tensor(), eb.tensor()
        through = Combination(b, [(1 + rb, b)], 0.0).plus(other).tensor() * one
        if isinstance(ra, Tensor):
            through.addcmul_(a.size * ra, other)
            ra = 0.0
        return result.plus_term(grown, magnitude(through.addcmul_(a.size, other, value=1 + ra)))
    if eb is not None:
        result.plus_product(a, eb, (1 + ra) * grown)
    if ea is not None:
        result.plus_product(b, ea, (1 + rb) * grown)
    if ea is not None and eb is not None:
        first, second = (ea, eb) if ea.terms else (eb, ea)
        result.plus(first, second.rest * grown)
    return result


def _by_few(
    error: Combination, out: Quantity, a: Quantity, b: Quantity, grown: float
) -> Combination:
    """Add b's error where b has far fewer numbers: a part of b where no element of b is 0."""
    (ra, ea), eb = apart(a), b.error
    if isinstance(ra, Tensor) and eb is not None and ra.shape != eb.shape:
        ra, ea = 0.0, Combination(a, [], 0.0).plus(added_up(a.lazy_error))
    rb: Coefficient = 0.0
    if eb is not None and largest(part := eb / b.size) < math.inf:
        rb = part
    elif eb is not None:
        error.plus_term(eb * (grown * (1 + ra)), a)
    error.plus_term((ra + rb + ra * rb) * grown, out)
    if ea is None:
        return error
    size = b.size if eb is None else b.size + eb
    for coefficient, term in ea.terms:
        if is_few(out.value, coefficient, size):
            error.plus_term(coefficient * size * grown, term)
        else:
            error.plus_term(coefficient * grown, magnitude(term.size * size))
    return error.plus_term(ea.rest * grown, magnitude(size))


def _quotient(
    arithmetic: Arithmetic, out: Quantity, a: Quantity | None, b: Quantity | float
) -> Combination | None:
    roundings = EPS_DIVISION / arithmetic.u
    if not isinstance(b, Quantity):
        off, times = constant_error(b), abs(1 / b) if b else math.inf
        if is_power_of_two(b):
            return (
                None
                if a is None or a.lazy_error is None
                else _scaled(arithmetic, out, a.lazy_error, times)
            )
        result = arithmetic.local(out, roundings, relative=off / (1 - off))
        grown = arithmetic.grown(1 / (1 - off), roundings)
        return result if a is None else _plus_scaled(result, a, out, grown, times)
    ea = None if a is None else a.error
    b = number(b)
    if a is not None and not b.most * arithmetic.eta <= arithmetic.u:
        # A kernel may multiply by 1 / b, which is flushed where b is near the largest number.
        ea = added(ea, a.size * (b.size * arithmetic.eta))
    if b.error is None:
        return arithmetic.rounded(out, None if ea is None else ea / b.size, roundings)
    least = b.size - b.error
    error = out.size * b.error
    error = (error if ea is None else error.add_(ea)) / least
    if least.numel() and not float(least.amin()) > 0:
        error = error.masked_fill_(~(least > 0), torch.inf)
    return arithmetic.rounded(out, error, roundings)


@rule("div", poles=True)
def _div(
    arithmetic: Arithmetic,
    out: Quantity,
    a: Quantity | float,
    b: Quantity | float,
    rounding_mode: str | None = None,
) -> Combination | Tensor | None:
    x = number(a)
    if rounding_mode is None:
        return _quotient(arithmetic, out, x, b)
    quotient = Quantity(x.value / number(b).value)
    quotient = replace(quotient, lazy_error=_quotient(arithmetic, quotient, x, b))
    whole = torch.floor if rounding_mode == "floor" else torch.trunc
    return monotone(Quantity(whole(quotient.value)), whole, quotient)


@rule("floor_divide", poles=True)
def _floor_divide(
    arithmetic: Arithmetic, out: Quantity, a: Quantity | float, b: Quantity | float
) -> Combination | Tensor | None:
    return _div(arithmetic, out, a, b, "floor")


def _rest(whole: Callable[[Tensor], Tensor]) -> Rule:
    """a - q b with q = a / b rounded to a whole number, which may be the next where a is near."""

    def rest(
        arithmetic: Arithmetic, out: Quantity, a: Quantity | float, b: Quantity | float
    ) -> Combination:
        x, y = number(a), number(b)
        quotient = Quantity(x.value / y.value)
        quotient = replace(quotient, lazy_error=_quotient(arithmetic, quotient, x, b))
        times = Quantity(whole(quotient.value))
        jump = monotone(times, whole, quotient)
        through = times.size * y.size * (2 * arithmetic.u)
        if jump is not None:
            through = through + jump * y.reach
        if y.error is not None:
            through = through + times.size * y.error
        if x.error is not None:
            through = through + x.error
        return arithmetic.rounded(out, through)

    return rest


rule("remainder", poles=True)(_rest(torch.floor))
rule("fmod", poles=True)(_rest(torch.trunc))


@rule("reciprocal", poles=True)
def _reciprocal(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Combination | None:
    return _quotient(arithmetic, out, None, a)


@rule("neg")
def _negative(_: Arithmetic, out: Quantity, a: Quantity) -> Combination | Tensor | None:
    return _handed_on(out, a)


def _handed_on(out: Quantity, a: Quantity) -> Combination | Tensor | None:
    """Return the error of a result that has the same magnitude as a."""
    if "size" in a.of_value:
        out.of_value["size"] = a.size
    if not isinstance(a.lazy_error, Combination):
        return a.lazy_error
    own, remainder = apart(a)
    return Combination(out, [], 0.0).plus_term(own, out).plus(remainder)


@rule("abs")
def _nonnegative(_: Arithmetic, out: Quantity, a: Quantity) -> Tensor | None:
    out.mark_nonnegative()
    return a.error


def monotone(out: Quantity, function: Callable[..., Tensor], *arguments: Quantity) -> Tensor | None:
    """Bound a function that falls nowhere by what it is at the ends of its arguments' intervals.

    Args:
        out: the result.
        function: of as many tensors as there are arguments.
        arguments: the numbers that it is of; a saturated one hands no error on.

    Returns:
        max(f(v + e) - f(v), f(v) - f(v - e)); None where all arguments are exact.

    """
    if all(x.error is None for x in arguments):
        return None
    high = function(*(x.value if x.error is None else x.value + x.error for x in arguments))
    low = function(*(x.value if x.error is None else x.value - x.error for x in arguments))
    error = torch.maximum(high - out.value, out.value - low)
    return error.nan_to_num_(nan=0.0, posinf=torch.inf)  # NaN where the result isn't finite


@rule("relu")
def _relu(_: Arithmetic, out: Quantity, a: Quantity) -> Tensor | None:
    out.mark_nonnegative()
    return monotone(out, torch.relu, a)


@rule("sqrt")
def square_root(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Combination:
    """The error of sqrt(a)."""
    out.mark_nonnegative()
    through = None
    if a.error is not None:  # a sum of squares is never below 0, whatever its error
        through = torch.where(a.error < a.value, a.error / out.value, out.value + a.error.sqrt())
    return arithmetic.rounded(out, through, EPS_DIVISION / arithmetic.u)


def log_shrunk(error: Tensor, value: Tensor) -> Tensor:
    """log(1 - error / value): how far the logarithm may be off, below 0; infinite at a pole."""
    return (error / value).clamp_(max=1).neg_().log1p_()


@rule("rsqrt", poles=True)
def _rsqrt(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Combination:
    out.mark_nonnegative()
    through, least = None, a.of_value.get("least", 0.0)
    if a.error is not None and least > 0:  # it falls everywhere, and a is no less
        low = (a.value - a.error).clamp_(min=least).minimum(a.value)
        through = low.rsqrt_().sub_(out.value)
        through = through.maximum(out.value - (a.value + a.error).rsqrt_())
    elif a.error is not None:
        through = log_shrunk(a.error, a.value).mul_(-_HALF).expm1_().mul_(out.value)
    return arithmetic.rounded(out, through, 1.5 * EPS_DIVISION / arithmetic.u)  # as 1 / sqrt(a)


@rule("pow", poles=True)
def _pow(
    arithmetic: Arithmetic, out: Quantity, a: Quantity | float, k: Quantity | float
) -> Combination | Tensor | None:
    if isinstance(a, Quantity) and isinstance(k, Quantity):
        return _power_of_tensors(arithmetic, out, number(a), number(k))
    if isinstance(k, Quantity):  # a^k = exp(k log a)
        assert not isinstance(a, Quantity)
        exponent = number(k)
        if not a:  # 0, or infinite, but 1 of an exponent of 0: all kernels have the same
            unsure = exponent.reach - exponent.size
            return torch.where(unsure > 0, math.inf, 0.0)
        steep = abs(math.log(abs(a)))
        off = exponent.size * (steep * 4 * arithmetic.u)
        off = off if exponent.error is None else off.add_(exponent.error, alpha=steep)
        return arithmetic.rounded(out, off.expm1_().mul_(out.size), EPS_POWER / arithmetic.u)
    assert isinstance(a, Quantity)
    if float(k).is_integer() and k >= 0:
        return _whole_power(arithmetic, out, a, int(k))
    if k in _ROOTS:
        return _ROOTS[k](arithmetic, out, a)
    off = out.size.log().abs_().mul_(4 * arithmetic.u)
    if a.error is not None:
        off.sub_(log_shrunk(a.error, a.size), alpha=abs(k))
    through = off.expm1_().mul_(out.size).masked_fill_(out.value == 0, 0.0)
    if k < 0:
        through = through.add_(_lost_by_inverse(arithmetic, out))
    return arithmetic.rounded(out, through, EPS_POWER / arithmetic.u)


def _lost_by_inverse(arithmetic: Arithmetic, out: Quantity) -> Tensor:
    """Return what 1 / a^k loses of a^-k: a^k may be flushed, or be past the largest number."""
    lost = out.size * arithmetic.eta
    lost = (lost * out.size / (1 - lost)).masked_fill_(lost >= 1, math.inf)
    return lost.add_(1 / LARGEST)


_ROOTS: dict[float, Callable[[Arithmetic, Quantity, Quantity], Combination | None]] = {
    0.5: square_root,
    -0.5: _rsqrt,
    -1.0: _reciprocal,
}


def _power_of_tensors(
    arithmetic: Arithmetic, out: Quantity, a: Quantity, k: Quantity
) -> Combination | Tensor:
    """exp(k log a) of two tensors; nothing is promised of one below 0 with a power that is off."""
    log = a.size.log().abs_()
    off = out.size.log().abs_().mul_(4 * arithmetic.u)
    if a.error is not None:
        shrunk = log_shrunk(a.error, a.size).neg_()
        off = off + shrunk * k.reach
    if k.error is not None:
        off = off + torch.where(k.error > 0, log * k.error, 0.0)
    through = off.expm1().mul_(out.size)
    zero = a.size == 0
    one = k.reach == 0  # the power 0 of any number, 0 as well
    through = torch.where(zero | one | (out.size == 0), 0.0, through)
    through = through + torch.where(k.value < 0, _lost_by_inverse(arithmetic, out), 0.0)
    open_ = torch.zeros_like(zero)
    if k.error is not None:
        open_ = (k.error > 0) & ((a.value < 0) | (zero & (k.size <= k.error)))
    if a.error is not None:
        open_ = open_ | ((a.error > 0) & (a.size <= a.error) & (k.size != 0))
    result = arithmetic.rounded(out, through, EPS_POWER / arithmetic.u)
    return result.tensor().masked_fill(open_, torch.inf) if bool(open_.any()) else result


def _whole_power(
    arithmetic: Arithmetic, out: Quantity, a: Quantity, k: int
) -> Combination | Tensor | None:
    if k <= 1:
        return a.lazy_error if k else None
    if k % 2 == 0:
        out.mark_nonnegative()
    error, grown = arithmetic.local(out, k - 1), arithmetic.grown(1.0, k - 1)
    if a.lazy_error is None:
        return error
    if k == 2:  # a square
        own, remainder = apart(a)
        assert remainder is not None
        error.plus_term((2 * own + own * own) * grown, out)
        error.plus_product(a, remainder, 2 * (1 + own) * grown)
        if not remainder.terms:
            return error.plus_rest(remainder.rest * remainder.rest * grown)
        return error.plus(remainder.tensor().square(), grown)
    e = added_up(a.lazy_error)
    assert e is not None
    return error.plus_term(k * grown, magnitude((a.size + e).pow_(k - 1).mul_(e)))


def grow(d: Tensor, most: float) -> Tensor:
    """expm1(d) of what is from 0 to `most`, in place.

    Where that is little it is d + d^2 / 2 and less than d / 2 times that square more.
    """
    return d.addcmul_(d, d, value=0.5 + most / 4) if most <= _LITTLE else d.expm1_()


def multiple(x: Quantity, factor: Quantity) -> Quantity:
    """A product of magnitudes of which one factor is remembered."""
    result = x.times(factor)
    result.of_value["factor"] = factor
    return result


def multiplied(
    d: Combination, x: Quantity
) -> tuple[list[tuple[Coefficient, Quantity]] | None, Coefficient, float]:
    """Return expm1(d) x of a magnitude x: multiples of magnitudes, of x, and the largest d.

    None where d isn't so small that it is as good as a multiple of d.
    """
    most = d.largest()
    if not most <= min(_TINY, _LITTLE) or len(d.terms) > _SEVERAL:
        return None, 0.0, most
    terms = []
    for coefficient, term in d.terms:
        terms.append((coefficient * (1 + most), multiple(x, term)))
    return terms, d.rest * (1 + most), most


def _exponent_growth(
    arithmetic: Arithmetic, a: Quantity, slope: float = 1.0
) -> tuple[Tensor, float]:
    """expm1(d) of how far, d, the exponent that a kernel takes exp of may be off; the largest d.

    In natural logarithms.
    """
    u = 2 * arithmetic.u * slope
    if a.exact and (most := u * a.most) <= min(_TINY, _LITTLE):  # without a look at d
        return a.size * (u * (1 + most)), most
    d = a.size * u
    d = d if a.error is None else d.add_(a.error, alpha=slope)
    most = float(d.amax()) if d.numel() else 0.0
    if not most < torch.inf:
        d.masked_fill_(a.value.isneginf(), 0)  # exp of it is 0, exactly
    return grow(d, most), most


@rule("exp")
def _exp(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Combination | Tensor:
    out.mark_nonnegative()
    return _zero_of_minus_inf(_exponential(arithmetic, out, a), a)


@rule("exp2")
def _exp2(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Combination | Tensor:
    out.mark_nonnegative()
    return _zero_of_minus_inf(_exponential(arithmetic, out, a, math.log(2)), a)


def _zero_of_minus_inf(error: Combination, a: Quantity) -> Combination | Tensor:
    """Return the error, 0 where every kernel has exp(-inf), which is 0 without a rounding."""
    if a.once_of_value("no -inf", lambda: not bool(a.value.isneginf().any())):
        return error
    sure = a.value.isneginf()
    if a.error is not None:
        sure = sure & (a.error < torch.inf)
    error.of.of_value[ZEROS] = True
    return error.tensor().masked_fill(sure, 0.0)


def _exponential(
    arithmetic: Arithmetic, out: Quantity, a: Quantity, slope: float = 1.0
) -> Combination:
    """Return out (expm1 d + eps_exp e^d) and what is flushed."""
    error = Combination(out, [], arithmetic.eta)
    d = Combination(a, [(2 * arithmetic.u * slope, a)], 0.0).plus(a.lazy_error, slope)
    terms, rest, _ = multiplied(d, out)
    if terms is not None:
        for coefficient, term in terms:
            error.plus_term(coefficient * (1 + EPS_EXP), term)
        return error.plus_term(rest * (1 + EPS_EXP) + EPS_EXP, out)
    growth, _ = _exponent_growth(arithmetic, a, slope)
    through = growth.mul_(1 + EPS_EXP).add_(EPS_EXP).mul_(out.value)
    return error.plus(through)


@rule("expm1")
def _expm1(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Combination:
    return arithmetic.rounded(out, _exponential(arithmetic, Quantity(out.value + 1), a).tensor())


@rule("log", poles=True)
def _log(
    arithmetic: Arithmetic, out: Quantity, a: Quantity, slope: float = 1.0, spare: float = 0.0
) -> Tensor:
    local = out.size.clamp(min=1).mul_(EPS_LOG + 2 * arithmetic.u).add_(spare)
    return local if a.error is None else local.sub_(log_shrunk(a.error, a.value), alpha=slope)


@rule("log2", poles=True)
def _log2(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Tensor:
    return _log(arithmetic, out, a, 1 / math.log(2))


@rule("log1p", poles=True)
def _log1p(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Tensor:
    return _log(arithmetic, out, Quantity(a.value + 1, a.error), spare=2 * arithmetic.u)


@rule("sigmoid")
def _sigmoid(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Combination:
    out.mark_nonnegative()
    d = torch.add(scalar(EPS_EXP), a.size, alpha=2 * arithmetic.u)
    d = d if a.error is None else d.add_(a.error)
    most = EPS_EXP + 2 * arithmetic.u * a.most
    if not (a.exact and most <= _LITTLE):
        most = float(d.amax()) if d.numel() else 0.0
    if most <= _LITTLE:
        slope = out.once("slope", lambda: torch.addcmul(out.value, out.value, out.value, value=-1))
        through = grow(d, most).mul_(slope)
        out.of_value["most"] = 2.0
    else:
        if not most < torch.inf:
            d.masked_fill_(a.value.isneginf(), 0)  # exp of it is 0, exactly
        ends = monotone(out, torch.sigmoid, replace(a, lazy_error=d, memory={}))
        assert ends is not None
        through = ends
    roundings = 1 + EPS_DIVISION / arithmetic.u
    through.mul_(arithmetic.grown(1.0, roundings)).add_(arithmetic.eta)
    return Combination(out, [(roundings * arithmetic.u, out)], 0.0).plus(through)


def _between(
    arithmetic: Arithmetic,
    out: Quantity,
    a: Quantity,
    rises: Callable[[Tensor], Tensor],
    local: float,
) -> Combination:
    """Return the error of an odd function that rises everywhere, less steeply the farther from 0.

    Its farther end is therefore the one towards 0. A kernel approximates it: absolute `local`.
    """
    error = arithmetic.local(out, absolute=local)
    farther = None if a.error is None else out.size - rises(a.size - a.error)
    return error.plus(farther, arithmetic.grown(1.0))


@rule("tanh")
def _tanh(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Combination:
    return _between(arithmetic, out, a, torch.tanh, EPS_TANH)


@rule("erf")
def _erf(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Combination:
    return _between(arithmetic, out, a, torch.erf, _EPS_ERF)


@rule("sin", "cos")
def _circle(arithmetic: Arithmetic, out: Quantity, a: Quantity) -> Combination:
    local = torch.add(scalar(_EPS_CIRCLE), a.size, alpha=arithmetic.u)
    through = local if a.error is None else local.add_(a.error.clamp(max=2))
    return arithmetic.rounded(out, through)


@rule("sign")
def _sign(_: Arithmetic, out: Quantity, a: Quantity) -> Tensor | None:
    del out
    if a.error is None:
        return None
    return ((a.size <= a.error) & (a.error > 0)).double().mul_(2)


@rule("signbit")
def _is_negative(_: Arithmetic, out: Quantity, a: Quantity) -> Tensor | None:
    del out
    return None if a.error is None else _if_any((a.size <= a.error) & (a.error > 0))


@rule("clamp")
def _clamp(
    _: Arithmetic,
    out: Quantity,
    a: Quantity,
    low: Quantity | float | None = None,
    high: Quantity | float | None = None,
) -> Tensor | None:
    """The least of the upper limit and the larger of a number and the lower limit."""
    limits = [None if limit is None else number(limit) for limit in (low, high)]

    def clamped(x: Tensor, *ends: Tensor) -> Tensor:
        rest = iter(ends)
        if limits[0] is not None:
            x = torch.maximum(x, next(rest).to(x.device))
        return x if limits[1] is None else torch.minimum(x, next(rest).to(x.device))

    return monotone(out, clamped, number(a), *(limit for limit in limits if limit is not None))


@rule("maximum", "clamp_min")
def _larger(_: Arithmetic, out: Quantity, a: Quantity, b: Quantity | float) -> Tensor | None:
    return monotone(out, _on_one_device(torch.maximum), number(a), number(b))


@rule("minimum", "clamp_max")
def _smaller(_: Arithmetic, out: Quantity, a: Quantity, b: Quantity | float) -> Tensor | None:
    return monotone(out, _on_one_device(torch.minimum), number(a), number(b))


@rule("fmax")
def _larger_number(_: Arithmetic, out: Quantity, a: Quantity, b: Quantity) -> Tensor | None:
    return monotone(out, torch.fmax, a, b)


@rule("fmin")
def _smaller_number(_: Arithmetic, out: Quantity, a: Quantity, b: Quantity) -> Tensor | None:
    return monotone(out, torch.fmin, a, b)


def _on_one_device(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Apply to a number of the CPU beside a tensor on a GPU."""
    return lambda x, y: function(x, y.to(x.device))


def _largest(*errors: Tensor | None) -> Tensor | None:
    tensors = [error for error in errors if error is not None]
    return functools.reduce(torch.maximum, tensors) if tensors else None


@rule("eq", "ne", "lt", "le", "gt", "ge")
def _compare(
    arithmetic: Arithmetic, out: Quantity, a: Quantity | float, b: Quantity | float
) -> Tensor | None:
    if all(not isinstance(operand, Quantity) or operand.exact for operand in (a, b)):
        return None  # a constant that fp32 hasn't is taken to be held as it is
    if a is b:  # only NaN differs from itself
        assert isinstance(a, Quantity)
        return _special(arithmetic, out, a)
    x, y = number(a), number(b)
    error, apart = added(x.error, y.error), x.value - y.value
    assert error is not None
    open_ = (apart.abs() <= error) & (error > 0)
    if _unbounded(error):
        open_ &= apart.isfinite()
    return open_ if bool(open_.any()) else None


def _unbounded(error: Tensor) -> bool:
    return error.numel() > 0 and not float(error.amax()) < torch.inf


def as_truth(x: Quantity | float) -> Quantity:
    """Return whether a number isn't 0; an exact 0 is one in every kernel."""
    if not isinstance(x, Quantity):
        return Quantity(torch.tensor(bool(x)))
    if x.value.dtype == torch.bool:
        return x
    if x.error is None:
        return Quantity(x.value != 0)
    return Quantity(x.value != 0, _if_any((x.size <= x.error) & (x.error > 0)))


def _if_any(open_: Tensor) -> Tensor | None:
    """Return where a truth value may be either; None where it may be nowhere."""
    return open_ if bool(open_.any()) else None


def _decided_by(
    decisive: bool | None,  # noqa: FBT001
) -> Callable[..., Tensor | None]:
    """Return the rule of a connective that a truth value decides alone: of "and" that is False."""

    def bound(
        _: Arithmetic, out: Quantity, a: Quantity | float, b: Quantity | float
    ) -> Tensor | None:
        exact = all(not isinstance(x, Quantity) or x.exact for x in (a, b))
        if exact or out.value.dtype != torch.bool:
            whole = torch.full_like(out.value, math.inf, dtype=torch.float64)
            return None if exact else whole  # bits of numbers that a kernel may have otherwise
        x, y = as_truth(a), as_truth(b)
        open_ = torch.zeros_like(out.value)
        for one, other in ((x, y), (y, x)):
            if one.error is None:
                continue
            counts = torch.ones_like(other.value) if decisive is None else other.value != decisive
            counts = counts if other.error is None else counts | other.error
            open_ = open_ | (one.error & counts)
        return _if_any(open_)

    return bound


_and, _or = _decided_by(False), _decided_by(True)  # noqa: FBT003
rule("logical_and", "bitwise_and")(_and)
rule("logical_or", "bitwise_or")(_or)
rule("logical_xor", "bitwise_xor")(_decided_by(None))


@rule("logical_not", "bitwise_not")
def _not(_: Arithmetic, out: Quantity, a: Quantity) -> Tensor | None:
    return as_truth(a).error if out.value.dtype == torch.bool else a.error


@rule("isinf", "isposinf", "isneginf", "isnan", "isfinite")
def _special(_: Arithmetic, out: Quantity, a: Quantity) -> Tensor | None:
    del out
    if a.error is None or not _unbounded(a.error):
        return None
    open_ = a.value.isfinite() & ~a.error.isfinite()
    return open_ if bool(open_.any()) else None


def _chosen(mask: Quantity, a: Quantity | float, b: Quantity | float) -> Tensor | None:
    """Return the error of a where mask, else b: their distance where the mask may be either."""
    x, y = number(a), number(b)
    if mask.exact and x.exact and y.exact:
        return None
    ea, eb = (
        0.0 if operand.error is None else operand.error.to(mask.value.device) for operand in (x, y)
    )
    error = torch.where(mask.value, ea, eb)
    if mask.error is not None:
        apart, larger = (x.value - y.value).abs_(), _largest(x.error, y.error)
        error = torch.where(mask.error, apart if larger is None else apart + larger, error)
    return error


def _of_kind(out: Quantity, error: Tensor | None) -> Tensor | None:
    """Return an error of numbers, as one of truth values where the result is some."""
    return error > 0 if error is not None and out.value.dtype == torch.bool else error


@rule("where")
def _where(
    _: Arithmetic, out: Quantity, mask: Quantity, a: Quantity | float, b: Quantity | float
) -> Tensor | None:
    return _of_kind(out, _chosen(mask, a, b))


@rule("masked_fill")
def _masked_fill(
    _: Arithmetic, out: Quantity, a: Quantity, mask: Quantity, b: Quantity | float
) -> Tensor | None:
    return _of_kind(out, _chosen(mask, b, a))


@rule("_to_copy")
def _to_copy(_: Arithmetic, out: Quantity, a: Quantity, **kwargs: object) -> Tensor | None:
    del kwargs
    if a.error is None or a.error.dtype == out.value.dtype:
        return _without_whole(out, a)
    if out.value.is_floating_point():
        return number(a).error
    if out.value.dtype == torch.bool:
        return as_truth(a).error
    if not a.value.is_floating_point():
        return a.error.double()
    jump = monotone(Quantity(a.value.trunc()), torch.trunc, a)
    unknown = _without_whole(out, a)
    if unknown is not None and jump is not None:
        return jump + unknown
    return jump if jump is not None and bool(jump.any()) else unknown


def _without_whole(out: Quantity, a: Quantity) -> Tensor | None:
    """Return the error of a cast: infinite where the whole-number type lacks the value, else 0.

    It is a's own error where the cast isn't from real numbers to whole ones.
    """
    if not a.value.is_floating_point() or out.value.dtype.is_floating_point:
        return a.error
    if out.value.dtype == torch.bool:
        return a.error
    info = torch.iinfo(out.value.dtype)
    lost = ~((a.value >= info.min) & (a.value <= info.max))
    if not bool(lost.any()):
        return None
    return torch.zeros_like(a.value).masked_fill_(lost, torch.inf)
