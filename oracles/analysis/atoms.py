"""Softmax, its logarithm and log-sum-exp, whose maximum cancels: an error of it does nothing.

Of scores s with errors e, p = softmax, m the maximum, L = log sum exp s, n scores in T tiles:

    d   = e + 4 u (|s| + |m|) + eps_exp         what is wrong with the exponent, and the exponential
    P+  = log sum p e^d                         the sum of exponentials may be off by that, up
    Z   = -log sum p e^-d <= P+                 and down (Jensen)
    R   = G(n + 1) + T (2 u + eps_exp)          its additions, and rescalings of a running one

    softmax      p max(expm1(d + Z), 1 - exp(-d - P+)), then R and a division; at most all there is
    logsumexp    P+ - log(1 - R) + 4 u (|L| + |m|) + eps_log (1 + L - m)
    log softmax  the same, d, and two roundings

Where P+ is small, p expm1(d + P+) stands for both sides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.analysis.arithmetic import Arithmetic
from oracles.analysis.rules import EPS_DIVISION, Known, rule
from oracles.analysis.sums import _axes
from oracles.rounding import EPS_EXP, EPS_LOG

_HIDDEN = -1e30  # what masks add: fp32's lowest number, or -inf
_SMALL = 2.0**-7  # of P+: what stands for both sides is then wider by less than that


@dataclass(frozen=True, slots=True)
class _Scores:
    """What the rules share: d, p, m, L and P+; the axes stay, of size 1."""

    d: Tensor
    p: Tensor
    m: Tensor
    lse: Tensor
    above: Tensor
    n: int

    @classmethod
    def of(cls, u: float, a: Known, axes: tuple[int, ...]) -> _Scores:
        s = a.value
        lse = s.logsumexp(axes, keepdim=True)
        m = s.amax(axes, keepdim=True)
        m = m.masked_fill(~m.isfinite(), 0)
        d = s.abs().add_(m.abs()).mul_(4 * u).add_(EPS_EXP)
        if a.error is not None:
            d += a.error
        if not float(s.amin()) > _HIDDEN:  # its exponential is 0, whatever is added to it
            d = d.masked_fill_(s <= _HIDDEN, 0)
        log_p = s - lse.masked_fill(~lse.isfinite(), 0)
        p = log_p.exp()
        above = torch.expm1(d).mul_(p).sum(axes, keepdim=True).log1p_()
        if not float(above.amax()) < _SMALL:
            above = torch.logsumexp(log_p + d, axes, keepdim=True)
        return cls(d, p, m, lse, above, math.prod(s.shape[axis] for axis in axes))

    def relative(self, arithmetic: Arithmetic) -> float:
        """R / (1 - R)."""
        tiles = -(-self.n // arithmetic.numerics.key_tile)
        r = arithmetic.growth(self.n + 1) + tiles * (2 * arithmetic.u + EPS_EXP)
        return r / (1 - r) if r < 1 else math.inf

    def total(self, arithmetic: Arithmetic) -> Tensor:
        """The error of L."""
        apart = (self.lse - self.m).abs_()
        made = self.above + self.relative(arithmetic)
        made += 4 * arithmetic.u * (self.lse.abs() + self.m.abs())
        return made.add_(EPS_LOG * (1 + apart))

    def through(self, axes: tuple[int, ...]) -> Tensor:
        """What errors of the exponents do to the softmax."""
        if float(self.above.amax()) < _SMALL:
            return (self.d + self.above).expm1_().mul_(self.p)
        log_p = self.p.log()
        below = -torch.logsumexp(log_p - self.d, axes, keepdim=True)
        high = (log_p + self.d + below).exp_().sub_(self.p)
        low = torch.expm1(-(self.d + self.above)).neg_().mul_(self.p)
        return torch.maximum(high, low).fmin(torch.maximum(self.p, 1 - self.p))


def _scores(arithmetic: Arithmetic, a: Known, axes: tuple[int, ...]) -> _Scores:
    return a.once(("scores", axes), lambda: _Scores.of(arithmetic.u, a, axes))


@rule("_softmax", sums=True)
def _softmax(arithmetic: Arithmetic, out: Tensor, a: Known, dim: int, *_: object) -> Tensor:
    if not out.numel():
        return torch.zeros_like(out)
    axes = _axes(a.value, dim)
    scores = _scores(arithmetic, a, axes)
    through = a.once(("through", axes), lambda: scores.through(axes))
    local = (scores.relative(arithmetic) + EPS_DIVISION) / arithmetic.u
    return arithmetic.rounded(out, through, local + 1)


@rule("_log_softmax", sums=True)
def _log_softmax(arithmetic: Arithmetic, out: Tensor, a: Known, dim: int, *_: object) -> Tensor:
    if not out.numel():
        return torch.zeros_like(out)
    scores = _scores(arithmetic, a, _axes(a.value, dim))
    return arithmetic.rounded(out, scores.total(arithmetic) + scores.d, 2)


@rule("logsumexp", sums=True)
def _logsumexp(
    arithmetic: Arithmetic,
    out: Tensor,
    a: Known,
    dim: int | list[int],
    keepdim: bool = False,  # noqa: FBT001,FBT002  # aten's own
) -> Tensor:
    if not a.value.numel():
        return torch.zeros_like(out)
    axes = _axes(a.value, dim)
    error = _scores(arithmetic, a, axes).total(arithmetic)
    return arithmetic.rounded(out, error if keepdim else error.squeeze(axes))
