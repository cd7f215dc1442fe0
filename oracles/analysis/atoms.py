"""Softmax, its logarithm and log-sum-exp, whose maximum cancels: an error of it does nothing.

Let s be scores with errors e, p = softmax, m the maximum, L = log sum exp s, n scores in T tiles:

    d   = e + 4 u (|s| + |m|) + eps_exp         what is wrong with the exponent, and the exponential
    P+  = log sum p e^d                         the sum of exponentials may be off by that, up
    Z   = -log sum p e^-d <= P+                 and down (Jensen)
    R   = G(n + 1) + T (2 u + eps_exp)          its additions, and rescalings of a running one

    softmax      p max(expm1(d + Z), 1 - exp(-d - P+)), then R and a division; at most all there is
    logsumexp    P+ - log(1 - R) + 4 u (|L| + |m|) + eps_log (1 + L - m)
    log softmax  the same, d, and two roundings

Where P+ is small, p expm1(d + P+) stands for both sides: with q = p expm1 d and A = sum q, that is
q + A (p + q), and P+ = log(1 + A).

The gradient, p (dy - S), S = sum p dy: an error e_p is the same in both places, so that it is in
e_p |dy - S|, which is what is known of |out|, times what e_p is over p.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.oracles.analysis.arithmetic import LARGEST, Arithmetic
from kernel_workbench.oracles.analysis.quantities import (
    Coefficient,
    Combination,
    Quantity,
    largest,
    magnitude,
    scalar,
)
from kernel_workbench.oracles.analysis.rules import (
    EPS_DIVISION,
    apart,
    grow,
    multiple,
    multiplied,
    product,
    rule,
)
from kernel_workbench.oracles.analysis.sums import axes_of, sum_error
from kernel_workbench.oracles.rounding import EPS_EXP, EPS_LOG

_HIDDEN = -1e30  # what masks add: fp32's lowest number, or -inf
_SMALL = 2.0**-7  # of P+: what stands for both sides is then wider by less than that


@dataclass(frozen=True, slots=True)
class _Small:
    """q = rest p + a combination of magnitudes, its sum, and a bound of q + A (p + q) over p."""

    total: Tensor
    rest: Coefficient
    terms: list[tuple[Coefficient, Quantity]]
    relative: float


@dataclass(frozen=True, slots=True)
class _Scores:
    """The quantities that the rules share: d, m, P+, and the errors that d causes in the softmax.

    The axes stay, of size 1.
    """

    d: Callable[[], Tensor]
    m: Tensor
    above: Tensor
    through: Callable[[], Tensor | _Small]  # asked for once
    n: int

    @classmethod
    def of(cls, u: float, a: Quantity, axes: tuple[int, ...], p: Tensor) -> _Scores:
        """Return the quantities of scores; p is the softmax, where it is finite."""
        s, n = a.value, math.prod(a.value.shape[axis] for axis in axes)
        m = s.amax(axes, keepdim=True).nan_to_num_(nan=0, posinf=0, neginf=0)

        def d() -> Tensor:
            exponents = torch.add(m.abs().mul_(4 * u).add_(EPS_EXP), a.size, alpha=4 * u)
            if a.error is not None:
                exponents += a.error
            # Its exponential is 0, whatever is added to it.
            hides = not a.most < -_HIDDEN
            return exponents.masked_fill_(s <= _HIDDEN, 0) if hides else exponents

        rows = m.abs().mul_(4 * u).add_(EPS_EXP)
        exact = Combination(a, [(4 * u, a)], rows).plus(a.lazy_error)
        terms, rest, most = multiplied(exact, magnitude(p))
        if terms is None:
            grown = d()
            most = float(grown.amax())
            terms = [(1.0, multiple(magnitude(p), magnitude(grow(grown, most))))]
        total = torch.as_tensor(
            sum(coefficient * term.total(axes) for coefficient, term in terms) + rest
        )
        largest_total = float(total.amax())
        if math.log1p(largest_total) < _SMALL:
            relative = largest_total + (1 + largest_total) * 2 * most
            return cls(d, m, total.log1p(), lambda: _Small(total, rest, terms, relative), n)
        lse = s.logsumexp(axes, keepdim=True)
        log_p = s - lse.masked_fill(~lse.isfinite(), 0)
        above = torch.logsumexp(log_p + d(), axes, keepdim=True)
        return cls(d, m, above, lambda: _wide(d(), log_p.exp(), above, axes), n)

    def relative(self, arithmetic: Arithmetic) -> float:
        """R / (1 - R)."""
        tiles = -(-self.n // arithmetic.numerics.key_tile)
        r = arithmetic.growth(self.n + 1) + tiles * (2 * arithmetic.u + EPS_EXP)
        return r / (1 - r) if r < 1 else math.inf

    def total(self, arithmetic: Arithmetic, lse: Tensor) -> Tensor:
        """Return the error of L."""
        error = self.above + self.relative(arithmetic)
        error += (lse.abs() + self.m.abs()).mul_(4 * arithmetic.u)
        return error.add_((lse - self.m).abs_().add_(1), alpha=EPS_LOG)


def _wide(d: Tensor, p: Tensor, above: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the error of the softmax for errors d of the exponents, the larger of both sides."""
    log_p = p.log()
    below = -torch.logsumexp(log_p - d, axes, keepdim=True)
    high = (log_p + d + below).exp_().sub_(p)
    low = torch.expm1(-(d + above)).neg_().mul_(p)
    return torch.maximum(high, low).fmin(torch.maximum(p, 1 - p))


def _scores(
    arithmetic: Arithmetic, a: Quantity, axes: tuple[int, ...], p: Callable[[], Tensor]
) -> _Scores:
    return a.once(("scores", axes), lambda: _Scores.of(arithmetic.u, a, axes, p()))


@rule("_softmax", sums=True)
def _softmax(
    arithmetic: Arithmetic, out: Quantity, a: Quantity, dim: int, *_: object
) -> Combination:
    out.mark_nonnegative()
    if not out.value.numel():
        return arithmetic.local(out)
    axes = axes_of(a.value, dim)
    scores = _scores(arithmetic, a, axes, lambda: out.value)
    through = a.once(("through", axes), scores.through)
    roundings = (scores.relative(arithmetic) + EPS_DIVISION) / arithmetic.u + 1
    result, grown = arithmetic.local(out, roundings), arithmetic.grown(1, roundings)
    if isinstance(through, Tensor):
        return result.plus(through, grown)
    if grown <= 1.5:  # anything that isn't large
        out.of_value["most"] = 2.0
    out.of_value["relative"] = roundings * arithmetic.u + through.relative * grown
    grows = (1 + through.total) * grown
    result.plus_term(through.total * grown + grows * through.rest, out)
    for coefficient, term in through.terms:
        result.plus_term(grows * coefficient, term)
    return result


@rule("_softmax_backward_data", sums=True)
def _softmax_gradient(
    arithmetic: Arithmetic, out: Quantity, dy: Quantity, p: Quantity, dim: int, *_: object
) -> Combination:
    """p (dy - S), or p dy - p S, of S = sum p dy; p is the same number in both places."""
    if not out.value.numel():
        return arithmetic.local(out)
    u, grown, axes = arithmetic.u, arithmetic.grown(1.0), axes_of(p.value, dim)
    products = dy.times(p)
    (own, rest_of_p), relative = apart(p), p.of_value.get("relative", math.inf)
    terms, rest = (rest_of_p.terms, rest_of_p.rest) if rest_of_p else ([], 0.0)
    factors: list[Any] = [term.of_value.get("factor") for _, term in terms]
    simple = dy.exact and dy.most < LARGEST and relative < 1 and terms and None not in factors
    if simple:
        error = arithmetic.local(products).plus_term(own * grown, products)
        error.plus_rest(rest * (dy.most * grown))
        for coefficient, term in terms:
            error.plus_term(coefficient * grown, dy.times(term))
    else:
        error = product(arithmetic, products, dy, p)
    e_total = sum_error(arithmetic, replace(products, lazy_error=error), axes, keep=True)
    assert e_total is not None
    rows = e_total * (1 + u) + products.total(axes) * (u * (2 + relative))
    most = (dy.most + float((products.total(axes) + rows).amax())) * (1 + 4 * u)
    if not (simple and most < LARGEST):
        total = (dy.value * p.value).sum(axes, keepdim=True)
        other = out.once("other", lambda: Quantity(p.value * total))
        result = arithmetic.local(out).plus(error, grown)
        return result.plus(product(arithmetic, other, p, Quantity(total, e_total)), grown)
    out.once_of_value("most", lambda: 4 * p.most * most)

    def through() -> Tensor:  # of the first form, which is the larger by next to nothing
        result = scalar(3 * arithmetic.eta * grown + largest(rest) * most * grown)
        result = result.to(out.value.device)
        for (coefficient, _), factor in zip(terms, factors, strict=True):
            times = largest(coefficient) * grown
            result = torch.addcmul(result, out.size, factor.size, value=times)
        share = own * grown + u * (2 + relative)
        share = share if isinstance(share, Tensor) else scalar(share)
        return result.addcmul_(share.to(result.device), out.size)

    result = Combination(out, [(1.0, magnitude(out.once("through", through)))], 0.0)
    result.plus_term(rows * ((1 + relative) * grown), p)
    return result


@rule("_log_softmax", sums=True)
def _log_softmax(
    arithmetic: Arithmetic, out: Quantity, a: Quantity, dim: int, *_: object
) -> Combination:
    if not out.value.numel():
        return arithmetic.local(out)
    axes = axes_of(a.value, dim)
    scores = _scores(arithmetic, a, axes, out.value.exp)
    lse = a.once_of_value(("lse", axes), lambda: a.value.logsumexp(axes, keepdim=True))
    return arithmetic.rounded(out, scores.d().add_(scores.total(arithmetic, lse)), 2)


@rule("logsumexp", sums=True)
def _logsumexp(
    arithmetic: Arithmetic,
    out: Quantity,
    a: Quantity,
    dim: int | list[int],
    keepdim: bool = False,  # noqa: FBT001,FBT002  # aten's own
) -> Combination:
    if not a.value.numel():
        return arithmetic.local(out)
    axes = axes_of(a.value, dim)
    lse = out.value
    if not keepdim:
        for axis in sorted(axes):
            lse = lse.unsqueeze(axis)

    def p() -> Tensor:
        return (a.value - lse).exp_()

    scores = _scores(arithmetic, a, axes, p)
    error = scores.total(arithmetic, lse)
    return arithmetic.rounded(out, error if keepdim else error.squeeze(axes))
