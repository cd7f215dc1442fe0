"""Common parts of the attention bounds: constants, the error of a score, the last rounding.

A computed score differs from S by at most sigma, and its exponential is taken of S - m (forward,
m the row's maximum) or S - lse (backward). With x = scale q.k, B the bias and the slope's part:

    s_x   = scale (gamma_{d+1} + 2 u_op) |q||k| + 4 u_a |x|       the sum; scale and log2 e
    s_c   = s_x, or with a softcap c, t = tanh(x / c), h = 1 - t^2, s_x having 7 u_a |x|:
            min(s_x, h s_x + 0.39 s_x^2 / c) + c eps_tanh + 3 u_a |c t|          max |tanh''| = 0.77
    sigma = s_c + 4 u_a (|B| + |S| + |m|)                         |lse| for |m| in a backward

docs/derivations/attention.md counts the roundings, form by form of the exponential, and derives
every term of the bounds. Elementary operations are taken to be within u_a, the approximate
functions of a GPU within the eps of oracles/rounding.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernel_workbench.oracles.attention.scores import Piece, Scores
from kernel_workbench.oracles.attention.values import addends_vary
from kernel_workbench.oracles.op import Bound, Case, Numerics
from kernel_workbench.oracles.rounding import (
    EPS_TANH,
    FLUSHED,
    GRADUAL,
    HALF_SUBNORMAL_SPACING,
    NEAREST,
    TF32,
    UNIT_ROUNDOFF,
    Gamma,
)

SINGLE_LARGEST = torch.finfo(torch.float32).max
_CHUNK_ELEMENTS = 2**24  # 128 MiB for each float64 temporary


@dataclass(frozen=True, slots=True)
class Terms:
    """The constants of the formulas, beside the values.

    gamma     of sums, in one of its forms; u, eta: any fp32 operation, relative and absolute
    u_op, eta_op    an operand as a product reads it: tf32's lost bits, flushed subnormals
    u_p, eta_p      P and dS cast to their own type before a product, 0 where they stay fp32
    u_o, eta_o      the rounding of an output; largest: of the type that it and the casts have
    """

    gamma: Gamma
    u: float
    eta: float
    u_op: float
    eta_op: float
    u_p: float
    eta_p: float
    u_o: float
    eta_o: float
    largest: float
    numerics: Numerics

    @classmethod
    def of(cls, dtype: torch.dtype, numerics: Numerics, compared: int | None) -> Terms:
        """The terms of a kernel; compared as in Gamma."""
        eta = GRADUAL if numerics.gradual_underflow else FLUSHED
        u_op, eta_op = TF32 if numerics.tf32_operands else (0.0, 0.0)
        u, spacing = UNIT_ROUNDOFF[dtype], HALF_SUBNORMAL_SPACING[dtype]
        casts = dtype != torch.float32
        return cls(
            gamma=Gamma(numerics.accumulation_roundoff, compared),
            u=numerics.accumulation_roundoff,
            eta=eta,
            u_op=u_op,
            eta_op=eta_op if numerics.gradual_underflow else FLUSHED,
            u_p=u if casts else 0.0,
            eta_p=spacing if casts else 0.0,
            u_o=u,
            eta_o=spacing,
            largest=torch.finfo(dtype).max,
            numerics=numerics,
        )

    @property
    def operands(self) -> float:
        """(1 + u_op)^2: both operands of a product, as a factor."""
        return (1 + self.u_op) ** 2

    @property
    def in_single(self) -> Terms:
        """The same, with an output in fp32."""
        single = torch.float32
        return replace(self, u_o=UNIT_ROUNDOFF[single], eta_o=HALF_SUBNORMAL_SPACING[single])

    def rounded(self, before: Tensor, value: Tensor) -> Tensor:
        """The bound after the last cast; 0 where the error before is 0: nothing is summed there."""
        after = before * (1 + self.u_o) + self.u_o * value.abs() + self.eta_o
        return after.masked_fill(before == 0, 0)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Places start to start + length - 1 of one axis of a shape.

    The largest cases have a truth of an eighth of a GPU's memory, and bounds as large: there is no
    room for temporaries of that size too.
    """

    shape: tuple[int, ...]
    axis: int
    start: int
    length: int

    def of(self, tensor: Tensor) -> Tensor:
        """A view of them in a tensor of the shape, or in one that is broadcast to it."""
        if self.length == self.shape[self.axis]:
            return tensor
        return tensor.expand(self.shape).narrow(self.axis, self.start, self.length)


def chunks(shape: tuple[int, ...], axis: int | None = None) -> Iterator[Chunk]:
    """Yield the chunks of a shape, cut along `axis`, or else along its longest axis."""
    if axis is None:
        axis = max(range(len(shape)), key=lambda index: shape[index])
    step = max(1, _CHUNK_ELEMENTS * shape[axis] // max(math.prod(shape), 1))
    for start in range(0, shape[axis], step):
        yield Chunk(shape, axis, start, min(step, shape[axis] - start))


def terms_of(case: Case, results: int, numerics: Numerics) -> tuple[Terms, ...]:
    """Return the deterministic terms, and the probabilistic ones of n results where they are valid.

    They need roundings to nearest of addends that vary: not a truncating accumulation, whose
    errors all have one sign, nor truncated operands.
    """
    result = [Terms.of(case.dtype, numerics, None)]
    nearest = numerics.accumulation_roundoff <= NEAREST and not numerics.tf32_operands
    if nearest and addends_vary(case):
        result.append(Terms.of(case.dtype, numerics, results))
    return tuple(result)


def bound_of(
    truth: Tensor,
    errors: list[Tensor],
    unjudged: Tensor | None,
    powerless: Tensor | None = None,
    *,
    casts: tuple[Terms, ...] = (),
    unknown: Tensor | None = None,
) -> Bound:
    """Return the bound of the deterministic and perhaps the probabilistic errors, in their memory.

    NaN where the truth isn't finite, but for the 0 of a value that is known exactly; infinite
    where nothing is promised; powerless where it says nothing, to be broadcast over the truth.
    casts: the terms of each error's last cast, where they don't have it yet. unknown: the
    output's share of `unknown_shares`; powerless is then where it is most of the first bound.
    """
    if unknown is not None:
        powerless = torch.empty_like(truth, dtype=torch.bool)
    for chunk in chunks(tuple(truth.shape)):
        exact = chunk.of(truth)
        for index, error in enumerate(chunk.of(error_) for error_ in errors):
            limit = casts[index].rounded(error, exact) if casts else error
            if unknown is not None and powerless is not None and index == 0:
                torch.gt(2 * chunk.of(unknown), limit, out=chunk.of(powerless))
            undefined = exact.isnan() | (exact.isinf() & (limit != 0))
            limit = limit.nan_to_num(nan=torch.inf, posinf=torch.inf)
            limit.masked_fill_(undefined, torch.nan)
            if unjudged is not None:
                limit.masked_fill_(chunk.of(unjudged) & exact.isfinite(), torch.inf)
            error.copy_(limit)
    return Bound(errors[0], errors[1] if len(errors) > 1 else None, powerless)


class ScoreError:
    """sigma of one piece, for terms and a row's statistic (m or lse) [B, H, R, 1]."""

    def __init__(self, piece: Piece, scores: Scores, q: Tensor, k: Tensor) -> None:
        """q [B, H, R, d] and k [B, H, K, d] are those that the scores were made of."""
        problem = piece.problem
        self.scores, self.width, self.softcap = scores, q.shape[-1], problem.softcap
        self.scale = abs(problem.scale)
        self.products = (q.abs() @ k.abs().mT).mul_(self.scale)
        self.s = scores.s.masked_fill(~scores.attends, 0).abs()
        self.local = self.s if scores.offset is None else self.s + scores.offset
        self.operands = float(q.abs().sum(-1).amax() + k.abs().sum(-1).amax())

    def overflows(self) -> Tensor:
        """Rows in which q.k may overflow in fp32, bool [B, H, R, 1]."""
        return (self.products >= SINGLE_LARGEST * min(self.scale, 1.0)).any(-1, keepdim=True)

    def __call__(self, terms: Terms, statistic: Tensor) -> Tensor:
        """sigma, [B, H, R, K]."""
        error = self.before_offset(terms)
        return error.add_((self.local + statistic.abs()).mul_(4 * terms.u))

    def before_offset(self, terms: Terms) -> Tensor:
        """s_c, [B, H, R, K]."""
        u, c = terms.u, self.softcap
        relative = (1 + terms.gamma(self.width + 1)) * terms.operands - 1
        lost = 2 * (self.width + 1) * terms.eta + (terms.eta_op + terms.eta) * self.operands
        absolute = self.scale * lost + terms.eta * (4 + (c or 0.0))
        error = self.products * relative + absolute
        error += self.scores.x.abs() * ((4 if c is None else 7) * u)
        if c is None or self.scores.tanh is None:
            return error
        t = self.scores.tanh.abs()
        through = (1 - t.square()) * error + (0.39 / c) * error.square()
        return error.minimum(through).add_(t, alpha=3 * u * c).add_(c * EPS_TANH)
