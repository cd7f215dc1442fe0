"""How errors go through single operations, a rule for each aten operation.

A rule is given the arithmetic, the operation's result in float64 and its arguments, tensors as
`Known`, and says how far a kernel's result may be from it. In e, of arguments a and b with errors
ea and eb; r(e) = e + u (|result| + e) + eta is the rounding of the result:

    a + b, a - b    r(ea + eb)                       a b     r(|a| eb + |b| ea + ea eb)
    a / b           (ea + |a / b| eb) / (|b| - eb)   2 units in the last place (div.full of PTX)
    sqrt a          ea / sqrt(a), or sqrt(a) + sqrt(ea)      likewise, as 1 / a and rsqrt a
    a^k             k ea (|a| + ea)^(k-1), (k - 1) roundings
    exp a           e^a (expm1(d) + eps e^d), d = ea + 2 u |a|: the factor log2 e and its product
    log a           -log1p(-ea / a) + eps max(1, |log a|)
    tanh a, erf a   the farther of f(a + ea) and f(a - ea)

Infinite where an argument that isn't exact may be at a pole. A truth value may be either where its
comparison may be decided either way; its error is True there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from oracles.analysis.arithmetic import Arithmetic
from oracles.rounding import EPS_EXP, EPS_LOG, EPS_TANH

_aten = torch.ops.aten
EPS_DIVISION = 2.0**-22  # relative: div.full, sqrt.approx and rsqrt.approx of PTX are within it
_EPS_POWER = 2.0**-20  # relative: powf is within 8 units in the last place
_EPS_CIRCLE = 2.0**-20  # absolute: sin.approx and cos.approx of PTX
_EPS_ERF = 2.0**-21  # absolute: erff is within 2 units in the last place; one to spare
_EXACT_INTEGERS = 2**24
_SINGLE = 2.0**-24
_HALF = 0.5  # the fraction of a power of two

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Known:
    """A tensor in float64 and how far a kernel's may be from it; None: it is exact.

    Of a bool tensor the error is bool: where it may be the other.
    """

    value: Tensor
    error: Tensor | None = None
    memory: dict[object, Any] = field(default_factory=dict)

    def once(self, key: object, make: Callable[[], _T]) -> _T:
        """What `make` returns, made once: both forms of a bound ask for it."""
        if key not in self.memory:
            self.memory[key] = make()
        made: _T = self.memory[key]
        return made

    @property
    def exact(self) -> bool:
        """Whether a kernel has the same numbers."""
        return self.error is None


Rule = Callable[..., Any]
_Rule = TypeVar("_Rule", bound=Rule)
RULES: dict[object, Rule] = {}
# Rules whose error isn't that of their arguments where they divide by zero.
POLES: set[object] = set()
# Rules that add up: they alone have a probable form.
SUMS: set[object] = set()


class UnknownError(Exception):
    """What a rule can't say anything about, in words that go after the operation's name."""


def rule(*names: str, poles: bool = False, sums: bool = False) -> Callable[[_Rule], _Rule]:
    """Register a rule for every overload of these operations."""

    def register(function: _Rule) -> _Rule:
        for name in names:
            packet = getattr(_aten, name)
            for overload in packet.overloads():
                target = getattr(packet, overload)
                RULES[target] = function
                if poles:
                    POLES.add(target)
                if sums:
                    SUMS.add(target)
        return function

    return register


def number(x: Known | float) -> tuple[Tensor, Tensor | None]:
    """An argument's value in float64 and its error; of a constant that which fp32 makes of it."""
    if not isinstance(x, Known):
        value = torch.tensor(x, dtype=torch.float64)
        held = value if isinstance(x, int) and abs(x) <= _EXACT_INTEGERS else value.float()
        return value, None if bool((held == value) | value.isnan()) else value.abs() * _SINGLE
    value, error = x.value, x.error
    if value.is_floating_point():
        return value, error
    if value.dtype == torch.bool:
        return value.double(), None if error is None else error.double()
    value = value.double()
    large = value.numel() > 0 and bool(value.abs().amax() > _EXACT_INTEGERS)
    return value, value.abs() * _SINGLE if large else error


def added(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """The sum of two errors, of which there may be none."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _power_of_two(x: object) -> bool:
    return isinstance(x, int | float) and math.isfinite(x) and abs(math.frexp(x)[0]) == _HALF


@rule("add", "sub")
def _add(
    arithmetic: Arithmetic, out: Tensor, a: Known | float, b: Known | float, alpha: float = 1
) -> Tensor:
    (_, ea), (value, eb) = number(a), number(b)
    eb = None if eb is None else eb * abs(alpha)
    if not _power_of_two(alpha):
        eb = added(eb, value.abs() * (abs(alpha) * 2 * arithmetic.u))
    return arithmetic.rounded(out, added(ea, eb))


def product(a: Tensor, ea: Tensor | None, b: Tensor, eb: Tensor | None) -> Tensor | None:
    """What errors of both factors do to a product."""
    if eb is None:
        return None if ea is None else (b * ea).abs_()
    through = (a * eb).abs_()
    return through if ea is None else through.addcmul_(b.abs().add_(eb), ea)


@rule("mul")
def _mul(arithmetic: Arithmetic, out: Tensor, a: Known | float, b: Known | float) -> Tensor | None:
    error = product(*number(a), *number(b))
    if _power_of_two(b):
        return None if error is None else error + arithmetic.eta
    return arithmetic.rounded(out, error)


def _quotient(
    arithmetic: Arithmetic, out: Tensor, ea: Tensor | None, b: Known | float
) -> Tensor | None:
    y, eb = number(b)
    if eb is None:
        error = None if ea is None else ea / y.abs()
        if _power_of_two(b):
            return None if error is None else error + arithmetic.eta
    else:
        least = y.abs() - eb
        error = out.abs() * eb if ea is None else torch.add(ea, out.abs() * eb)
        error = (error / least).masked_fill(~(least > 0), torch.inf)
    return arithmetic.rounded(out, error, EPS_DIVISION / arithmetic.u)


@rule("div", poles=True)
def _div(
    arithmetic: Arithmetic,
    out: Tensor,
    a: Known | float,
    b: Known | float,
    rounding_mode: str | None = None,
) -> Tensor | None:
    if rounding_mode is not None:
        raise UnknownError("rounds to whole numbers")
    return _quotient(arithmetic, out, number(a)[1], b)


@rule("reciprocal", poles=True)
def _reciprocal(arithmetic: Arithmetic, out: Tensor, a: Known) -> Tensor | None:
    return _quotient(arithmetic, out, None, a)


@rule("neg", "abs", "relu")
def _same(_: Arithmetic, out: Tensor, a: Known) -> Tensor | None:
    del out
    return a.error


@rule("sqrt")
def square_root(arithmetic: Arithmetic, out: Tensor, a: Known) -> Tensor:
    """The error of sqrt(a)."""
    through = None
    if a.error is not None:  # a sum of squares is never below 0, whatever its error
        through = torch.where(a.error < a.value, a.error / out, out + a.error.sqrt())
    return arithmetic.rounded(out, through, EPS_DIVISION / arithmetic.u)


def _shrunk(error: Tensor, value: Tensor) -> Tensor:
    """-log(1 - error / value): how far the logarithm may be off; infinite at a pole."""
    return -torch.log1p(-(error / value).clamp(max=1))


@rule("rsqrt", poles=True)
def _rsqrt(arithmetic: Arithmetic, out: Tensor, a: Known) -> Tensor:
    through = None if a.error is None else out * torch.expm1(_shrunk(a.error, a.value) / 2)
    return arithmetic.rounded(out, through, 1.5 * EPS_DIVISION / arithmetic.u)  # as 1 / sqrt(a)


@rule("pow", poles=True)
def _pow(arithmetic: Arithmetic, out: Tensor, a: Known | float, k: Known | float) -> Tensor | None:
    if isinstance(a, Known) and isinstance(k, Known):
        raise UnknownError("has a power that is a tensor")
    if isinstance(k, Known):  # a^k = exp(k log a)
        assert not isinstance(a, Known)
        exponent, error = number(k)
        steep = abs(math.log(a))
        off = exponent.abs() * (steep * 4 * arithmetic.u)
        off = off if error is None else off + error * steep
        return arithmetic.rounded(out, out * torch.expm1(off), _EPS_POWER / arithmetic.u)
    assert isinstance(a, Known)
    if float(k).is_integer() and k >= 0:
        return _whole_power(arithmetic, out, a, int(k))
    if k in _ROOTS:
        return _ROOTS[k](arithmetic, out, a)
    off = out.log().abs().mul_(4 * arithmetic.u)
    if a.error is not None:
        off = off + abs(k) * _shrunk(a.error, a.value.abs())
    return arithmetic.rounded(out, out.abs() * torch.expm1(off), _EPS_POWER / arithmetic.u)


_ROOTS: dict[float, Callable[[Arithmetic, Tensor, Known], Tensor | None]] = {
    0.5: square_root,
    -0.5: _rsqrt,
    -1.0: _reciprocal,
}


def _whole_power(arithmetic: Arithmetic, out: Tensor, a: Known, k: int) -> Tensor | None:
    if k <= 1:
        return a.error if k else None
    error = None
    if a.error is not None:
        error = a.value.abs().add_(a.error).pow_(k - 1).mul_(a.error).mul_(k)
    return arithmetic.rounded(out, error, k - 1)


def exponent_error(arithmetic: Arithmetic, a: Known, slope: float = 1.0) -> Tensor:
    """How far the exponent that a kernel takes exp of may be off, in natural logarithms."""
    d = a.value.abs() * (2 * arithmetic.u)
    d = (d if a.error is None else d.add_(a.error)).mul_(slope)
    return d.masked_fill_(a.value.isneginf(), 0)  # exp of it is 0, exactly


@rule("exp")
def _exp(arithmetic: Arithmetic, out: Tensor, a: Known) -> Tensor:
    return _exponential(arithmetic, out, exponent_error(arithmetic, a))


@rule("exp2")
def _exp2(arithmetic: Arithmetic, out: Tensor, a: Known) -> Tensor:
    return _exponential(arithmetic, out, exponent_error(arithmetic, a, math.log(2)))


def _exponential(arithmetic: Arithmetic, out: Tensor, d: Tensor) -> Tensor:
    return torch.expm1(d).add_(d.exp(), alpha=EPS_EXP).mul_(out).add_(arithmetic.eta)


@rule("expm1")
def _expm1(arithmetic: Arithmetic, out: Tensor, a: Known) -> Tensor:
    through = _exponential(arithmetic, out + 1, exponent_error(arithmetic, a))
    return arithmetic.rounded(out, through)


@rule("log", poles=True)
def _log(
    arithmetic: Arithmetic, out: Tensor, a: Known, slope: float = 1.0, spare: float = 0.0
) -> Tensor:
    local = out.abs().clamp_(min=1).mul_(EPS_LOG + 2 * arithmetic.u).add_(spare)
    return local if a.error is None else local.add_(_shrunk(a.error, a.value), alpha=slope)


@rule("log2", poles=True)
def _log2(arithmetic: Arithmetic, out: Tensor, a: Known) -> Tensor:
    return _log(arithmetic, out, a, 1 / math.log(2))


@rule("log1p", poles=True)
def _log1p(arithmetic: Arithmetic, out: Tensor, a: Known) -> Tensor:
    return _log(arithmetic, out, Known(a.value + 1, a.error), spare=2 * arithmetic.u)


@rule("sigmoid")
def _sigmoid(arithmetic: Arithmetic, out: Tensor, a: Known) -> Tensor:
    other = 1 - out
    grown = exponent_error(arithmetic, a).add_(EPS_EXP).expm1_().mul_(torch.minimum(out, other))
    through = grown.fmin(torch.maximum(out, other))
    return arithmetic.rounded(out, through, 1 + EPS_DIVISION / arithmetic.u)


def _between(
    arithmetic: Arithmetic, out: Tensor, a: Known, rises: Callable[[Tensor], Tensor], local: float
) -> Tensor:
    """Of a function that rises everywhere, and that a kernel approximates: absolute `local`."""
    error = torch.full_like(out, local)
    if a.error is not None:
        above, below = rises(a.value + a.error).sub_(out), rises(a.value - a.error).sub_(out).neg_()
        error += torch.maximum(above, below)
    return arithmetic.rounded(out, error)


@rule("tanh")
def _tanh(arithmetic: Arithmetic, out: Tensor, a: Known) -> Tensor:
    return _between(arithmetic, out, a, torch.tanh, EPS_TANH)


@rule("erf")
def _erf(arithmetic: Arithmetic, out: Tensor, a: Known) -> Tensor:
    return _between(arithmetic, out, a, torch.erf, _EPS_ERF)


@rule("sin", "cos")
def _circle(arithmetic: Arithmetic, out: Tensor, a: Known) -> Tensor:
    local = a.value.abs().mul_(arithmetic.u).add_(_EPS_CIRCLE)
    through = local if a.error is None else local.add_(a.error.clamp(max=2))
    return arithmetic.rounded(out, through)


@rule("sign")
def _sign(_: Arithmetic, out: Tensor, a: Known) -> Tensor | None:
    del out
    return None if a.error is None else (a.value.abs() <= a.error).double().mul_(2)


@rule("clamp", "clamp_min", "clamp_max")
def _clamp(
    _: Arithmetic, out: Tensor, a: Known, low: Known | float | None = None, *rest: Known | float
) -> Tensor | None:
    del out
    return _largest(*(number(each)[1] for each in (a, low, *rest) if each is not None))


@rule("maximum", "minimum")
def _larger(_: Arithmetic, out: Tensor, a: Known, b: Known) -> Tensor | None:
    del out
    return _largest(number(a)[1], number(b)[1])


def _largest(*errors: Tensor | None) -> Tensor | None:
    held = [each for each in errors if each is not None]
    return functools.reduce(torch.maximum, held) if held else None


@rule("eq", "ne", "lt", "le", "gt", "ge")
def _compare(_: Arithmetic, out: Tensor, a: Known | float, b: Known | float) -> Tensor | None:
    del out
    if all(not isinstance(each, Known) or each.exact for each in (a, b)):
        return None  # a constant that fp32 hasn't is taken to be held as it is
    (x, ea), (y, eb) = number(a), number(b)
    error, apart = added(ea, eb), x - y
    assert error is not None
    open_ = (apart.abs() <= error) & apart.isfinite()
    return open_ if bool(open_.any()) else None


@rule("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor")
def _either(_: Arithmetic, out: Tensor, a: Known | float, b: Known | float) -> Tensor | None:
    del out
    errors = [x.error for x in (a, b) if isinstance(x, Known) and x.error is not None]
    return None if not errors else errors[0] if len(errors) == 1 else errors[0] | errors[1]


@rule("logical_not", "bitwise_not")
def _not(_: Arithmetic, out: Tensor, a: Known) -> Tensor | None:
    del out
    return a.error


@rule("isinf", "isposinf", "isneginf", "isnan", "isfinite")
def _special(_: Arithmetic, out: Tensor, a: Known) -> Tensor | None:
    del out
    if a.error is None:
        return None
    open_ = a.value.isfinite() & ~a.error.isfinite()
    return open_ if bool(open_.any()) else None


def _chosen(mask: Known, a: Known | float, b: Known | float) -> Tensor | None:
    """a where mask, else b; where the mask may be either way, as far as they are apart."""
    (x, ea), (y, eb) = number(a), number(b)
    if mask.exact and ea is None and eb is None:
        return None
    zero = torch.zeros((), dtype=torch.float64, device=mask.value.device)
    ea, eb = (zero if each is None else each.to(zero.device) for each in (ea, eb))
    error = torch.where(mask.value, ea, eb)
    if mask.error is not None:
        error = torch.where(mask.error, (x - y).abs() + torch.maximum(ea, eb), error)
    return error


@rule("where")
def _where(
    _: Arithmetic, out: Tensor, mask: Known, a: Known | float, b: Known | float
) -> Tensor | None:
    del out
    return _chosen(mask, a, b)


@rule("masked_fill")
def _masked_fill(
    _: Arithmetic, out: Tensor, a: Known, mask: Known, b: Known | float
) -> Tensor | None:
    del out
    return _chosen(mask, b, a)


@rule("_to_copy")
def _to_copy(_: Arithmetic, out: Tensor, a: Known, **kwargs: object) -> Tensor | None:
    del kwargs
    if a.error is None or a.error.dtype == out.dtype:
        return a.error
    if out.is_floating_point():
        return number(a)[1]
    raise UnknownError("makes whole numbers of values that a kernel has with errors")
