"""Where the bounds of attention hold and say nothing: weights that rounding leaves open.

A weight P_j may be as large as P+_j = P_j exp(d_j) (bounds.py; d as in bounds_backward.py). In
the bound of a sum of P_j a_j the share (P+_j - P_j)|a_j| comes from that; and where

    sum_j (P+_j - P_j)|a_j| > (exp(0.3) - 1) sum_j P_j |a_j|

and it is most of the bound, then a kernel whose weights are wrong by a third is within it: true,
and no evidence. For dq, dk and dbias a is dP - D, times what it meets; for dv it is w do, for dsink
D. For out it is w v - out, whose sum is taken as a third of the way to the farthest value, exp(0.3)
- 1 of it; and lse is unknown where E_L > 0.3.

It takes scores near 1e4, operands cut to 10 bits, or a bias as large as fp32 goes on every key of a
row. Where the norms of q and k allow no such score nothing is added up.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernel_workbench.oracles.attention.bounds import ScoreError, Terms, chunks
from kernel_workbench.oracles.attention.closed_form import row_products, sink_probabilities
from kernel_workbench.oracles.attention.scores import Piece, Problem
from kernel_workbench.oracles.op import optional, required
from kernel_workbench.oracles.rounding import EPS_EXP

SAYS_NOTHING = 0.3  # of the logarithm of a weight
UNKNOWN = math.expm1(SAYS_NOTHING)  # of the weight
_LARGEST_EXPONENT = 600.0  # exp of it is finite in float64, and so are sums of such


def _unknown(least_sums: Tensor, possible: Tensor) -> Tensor:
    """Return possible - least_sums where that is much of the latter, else -inf; in its memory.

    least_sums, possible: the sums of P_j |a_j| and of P+_j |a_j|.
    """
    for chunk in chunks(tuple(least_sums.shape)):
        least, most = chunk.of(least_sums), chunk.of(possible)
        most.sub_(least)
        most.masked_fill_(~(most > UNKNOWN * least), -torch.inf)
    return possible


class _Sums:
    """For each gradient the sums of P|a| and of P+|a|, of finite arguments with out and lse."""

    def __init__(self, problem: Problem, terms: Terms, e_lse: Tensor | None) -> None:
        inputs = problem.inputs
        self.problem, self.terms, self.e_lse = problem, terms, e_lse
        self.do, self.v = required(inputs, "do"), required(inputs, "v")
        self.d = row_products(self.do, required(inputs, "out"))
        stored = required(inputs, "lse").double()
        self.lse = stored.masked_fill(stored.isinf(), 0)
        self.subtracted = stored.masked_fill(stored.isneginf(), torch.inf)  # there P is 0
        of = {"dq": problem.q, "dk": problem.k, "dv": self.v}
        bias = optional(inputs, "bias")
        if bias is not None:
            of["dbias"] = bias
        zeros = {
            name: tensor.new_zeros(tensor.shape, dtype=torch.float64) for name, tensor in of.items()
        }
        self.sums = {name: (zero, zero.clone()) for name, zero in zeros.items()}

    def add(self, piece: Piece) -> None:
        """Add the share of a piece."""
        problem = self.problem
        q, k, do = (piece.rows_of(problem.q), piece.keys_of(problem.k), piece.rows_of(self.do))
        scores, lse = piece.scores(q, k), piece.statistic_of(self.lse)
        d = ScoreError(piece, scores, q, k)(self.terms, lse) + EPS_EXP
        if self.e_lse is not None:
            d += piece.statistic_of(self.e_lse)
        dp, keep = do @ piece.keys_of(self.v).mT, piece.keep()
        w = None if keep is None else keep.double().mul_(problem.keep_scale)
        dp = dp if w is None else dp * w
        factor = (dp - piece.statistic_of(self.d)).abs_()
        slope = abs(problem.scale)
        h = slope if scores.tanh is None else slope * (1 - scores.tanh.square())
        exponent = (scores.s - piece.statistic_of(self.subtracted)).masked_fill_(
            ~scores.attends, -torch.inf
        )
        for index, exponents in enumerate((exponent, exponent + d)):
            weights = exponents.clamp(max=_LARGEST_EXPONENT).exp_()
            pairs = weights * factor
            if "dbias" in self.sums:
                piece.add_bias(self.sums["dbias"][index], pairs)
            pairs = pairs * h
            piece.write_rows(self.sums["dq"][index], pairs @ k.abs())
            piece.add_keys(self.sums["dk"][index], pairs.mT @ q.abs())
            weights = weights if w is None else weights * w
            piece.add_keys(self.sums["dv"][index], weights.mT @ do.abs())

    def add_sink(self, sink: Tensor) -> None:
        """dsink's two sums [h_q], of the sink's own weight."""
        d = 4 * self.terms.u * (sink.double()[:, None].abs() + self.lse.abs()) + EPS_EXP
        d = d if self.e_lse is None else d + self.e_lse
        share = sink_probabilities(sink, self.subtracted) * self.d.abs()
        self.sums["dsink"] = share.sum((0, 2)), (share * d.exp()).sum((0, 2))


def unknown_shares(
    problem: Problem, terms: Terms, e_lse: Tensor | None
) -> dict[str, Tensor] | None:
    """Return the share of each gradient's bound from unknown weights, in the gradient's shape.

    None where d is below 0.3.

    Where that is most of a bound, the bound says nothing. -inf where the weights are known.
    terms: the deterministic ones. e_lse [b, h_q, s_q]: how far lse may be off, None where given.
    """
    if not _possible(problem, terms, e_lse):
        return None
    sums = _Sums(problem, terms, e_lse)
    for piece in problem.pieces():
        sums.add(piece)
    sink = optional(problem.inputs, "sink")
    if sink is not None:
        sums.add_sink(sink)
    # One by one, so that of each pair one is freed before the next is looked at.
    return {name: _unknown(*sums.sums.pop(name)) for name in tuple(sums.sums)}


def _longest(rows: Tensor) -> Tensor:
    """The largest norm of a row of [b, s, h, c], in float64."""
    parts = (chunk.of(rows) for chunk in chunks(tuple(rows.shape), 1))
    return torch.stack([part.double().norm(dim=-1).amax() for part in parts]).amax()


def _possible(problem: Problem, terms: Terms, e_lse: Tensor | None) -> bool:
    """Return True if some d can be above 0.3, by the largest score that norms allow."""
    q, k = problem.q, problem.k
    if not q.numel() or not k.numel():
        return False
    reach = abs(problem.scale) * _longest(q) * _longest(k)
    offset = torch.zeros_like(reach)
    for name in ("lse", "bias", "sink"):
        tensor = optional(problem.inputs, name)
        if tensor is not None and tensor.numel():
            offset = offset + tensor.double().masked_fill(tensor.isinf(), 0).abs().amax()
    slopes = optional(problem.inputs, "alibi_slopes")
    if slopes is not None:
        offset = offset + slopes.double().abs().amax() * (q.shape[1] + k.shape[1])
    relative = (1 + terms.gamma(q.shape[3] + 1)) * terms.operands - 1
    # |x| counts 7 times, |S| and |B| 4 each (bounds.py), and |S| is at most |x| + |B|.
    d = relative * reach + terms.u * (11 * reach + 8 * offset) + EPS_EXP
    if e_lse is not None:
        d = d + e_lse.amax()
    return bool(d > SAYS_NOTHING)
