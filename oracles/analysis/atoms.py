"""Softmax, its logarithm and log-sum-exp, whose maximum cancels: an error of it does nothing.

Of scores s with errors e, p = softmax, m the maximum, L = log sum exp s, n scores in T tiles:

    d   = e + 4 u (|s| + |m|) + eps_exp         what is wrong with the exponent, and the exponential
    P+  = sum p e^d,  Z = sum p e^-d            the sum of exponentials, over the true one
    R   = G(n + 1) + T (2 u + eps_exp)          its additions, and rescalings of a running one

    softmax      p max(e^d / Z - 1, 1 - e^-d / P+), then R and a division; at most all there is
    logsumexp    max(log P+, -log Z) - log(1 - R) + 4 u (|L| + |m|) + eps_log (1 + log(L - m))
    log softmax  the same, d, and a rounding
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.analysis.arithmetic import Arithmetic
from oracles.analysis.rules import EPS_DIVISION, Known, rule
from oracles.analysis.sums import _axes
from oracles.rounding import EPS_EXP, EPS_LOG


@dataclass(frozen=True, slots=True)
class _Scores:
    """What the rules share: d, log p, m, L, log P+, -log Z, R; the axes stay, of size 1."""

    d: Tensor
    log_p: Tensor
    m: Tensor
    lse: Tensor
    above: Tensor
    below: Tensor
    r: float

    @classmethod
    def of(cls, arithmetic: Arithmetic, a: Known, axes: tuple[int, ...]) -> _Scores:
        s, u = a.value, arithmetic.u
        m = s.amax(axes, keepdim=True)
        m = m.masked_fill(~m.isfinite(), 0)
        lse = s.logsumexp(axes, keepdim=True)
        d = (s.abs() + m.abs()).mul_(4 * u).add_(EPS_EXP)
        if a.error is not None:
            d += a.error
        d = d.masked_fill_(s.isneginf(), 0)
        log_p = s - lse.masked_fill(~lse.isfinite(), 0)
        above = torch.logsumexp(log_p + d, axes, keepdim=True)
        below = -torch.logsumexp(log_p - d, axes, keepdim=True)
        n = 1
        for axis in axes:
            n *= s.shape[axis]
        tiles = -(-n // arithmetic.numerics.key_tile)
        r = arithmetic.growth(n + 1) + tiles * (2 * u + EPS_EXP)
        return cls(d, log_p, m, lse, above, below, r)

    def total(self, arithmetic: Arithmetic) -> Tensor:
        """The error of L."""
        apart = (self.lse - self.m).abs_()
        made = torch.maximum(self.above, self.below).add_(self.r / (1 - self.r))
        made += 4 * arithmetic.u * (self.lse.abs() + self.m.abs())
        return made.add_(EPS_LOG * (1 + apart))


@rule("_softmax", sums=True)
def _softmax(arithmetic: Arithmetic, out: Tensor, a: Known, dim: int, *_: object) -> Tensor:
    scores = _Scores.of(arithmetic, a, _axes(a.value, dim))
    high = torch.expm1(scores.d + scores.below)
    low = torch.expm1(-(scores.d + scores.above)).neg_()
    through = torch.maximum(high, low).mul_(out).fmin(torch.maximum(out, 1 - out))
    local = (scores.r / (1 - scores.r) + EPS_DIVISION) / arithmetic.u
    return arithmetic.rounded(out, through, local + 1)


@rule("_log_softmax", sums=True)
def _log_softmax(arithmetic: Arithmetic, out: Tensor, a: Known, dim: int, *_: object) -> Tensor:
    scores = _Scores.of(arithmetic, a, _axes(a.value, dim))
    return arithmetic.rounded(out, scores.total(arithmetic) + scores.d, 2)


@rule("logsumexp", sums=True)
def _logsumexp(
    arithmetic: Arithmetic,
    out: Tensor,
    a: Known,
    dim: int | list[int],
    keepdim: bool = False,  # noqa: FBT001,FBT002  # aten's own
) -> Tensor:
    axes = _axes(a.value, dim)
    error = _Scores.of(arithmetic, a, axes).total(arithmetic)
    return arithmetic.rounded(out, error if keepdim else error.squeeze(axes))
