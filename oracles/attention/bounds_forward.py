"""How far a correct attention forward, or delta pass, may be from the closed form.

For a row, with sigma the error of its scores (bounds.py), P+ = P exp(sigma), a = P+ - P,
Z = sum_j P_j exp(-sigma_j), n attended keys in T tiles, A = w P, ks = 1 / (1 - p):

    E_1 = sum_j a_j |w_j v_j - O| / Z                          softmax's condition
    R   = gamma_{n+1} + T (2 u_a + eps_exp) + eps_exp (+ 2 u_a with dropout)
    G   = sum_j w_j P+_j |v_j| / Z                             >= the sum of what is added up
    f   = (1 + R)(1 + u_p)(1 + u_op)^2 - 1
    S_1 = min(1/8, u_a (2 |lse| + log l) + eps_log (1 + log l))    0 of a row with one weight alone
    E_O = {E_1 + [f G + R (|O| + E_1) + U] / (1 - R) + S_1 (|O| + E_1)} (1 + u_o) + u_o |O| + eta_o
    U   = ks [(eta_p + eta_a + eta_op) sum_j |v_j| / l + eta_op + 5 n eta_a]    underflow
    E_L = max(log sum P+, -log Z) - log(1 - R) + 4 u_a (|lse| + |m|) + eps_log (1 + log l) + n eta_a

S_1 is how far the weights' sum may be from 1 where a kernel takes exp(S - lse) by a rounded lse of
an earlier pass. A softmax whose weights' sum is off by more than an eighth isn't one.

A sink z is one more P, of value 0, with sigma_z = 4 u_a (|z| + |m|). E_1 is bounded by Cauchy and
Schwarz, sqrt(sum a) sqrt(sum a (w v - O)^2), or by the triangle, whichever is less: products of
matrices. Computed weights are a softmax of some scores, so that E_1 is at most max_j |w_j v_j - O|
and G at most ks max |v| whatever sigma is: where scores can't be known (sigma > 0.3) the bound
says nothing, and is still finite and true.

    E_D = gamma_{d_v} sum_c |do||out| + 2 d_v eta_a + eta_a sum_c (|do| + |out|)
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernel_workbench.oracles.attention.bounds import (
    ScoreError,
    Terms,
    bound_of,
    terms_of,
)
from kernel_workbench.oracles.attention.closed_form import row_products, softmax, weights_of
from kernel_workbench.oracles.attention.non_finite import finite_part, unjudged
from kernel_workbench.oracles.attention.power import SAYS_NOTHING, UNKNOWN
from kernel_workbench.oracles.attention.scores import Piece, Problem
from kernel_workbench.oracles.op import Bound, Case, Inputs, Numerics, Outputs, optional, required
from kernel_workbench.oracles.rounding import EPS_EXP, EPS_LOG

_OF_SUM = 1 / 8  # the most by which the sum of a softmax's weights may be off
_LARGEST_EXPONENT = 600.0  # exp of it, squared and times a value's square, is finite in float64


class _Row:
    """The quantities of one piece that all terms of the forward's bound share."""

    def __init__(self, piece: Piece) -> None:
        problem = piece.problem
        q, k, v = (
            piece.rows_of(problem.q),
            piece.keys_of(problem.k),
            piece.keys_of(required(problem.inputs, "v")),
        )
        self.piece, self.scores = piece, piece.scores(q, k)
        self.error = ScoreError(piece, self.scores, q, k)
        self.p, lse, self.m = softmax(piece, self.scores)
        self.lse = lse.masked_fill(lse.isinf(), 0)
        self.s = self.scores.s - self.lse
        weights, self.w = weights_of(piece, self.p)
        self.out, self.weighted = weights @ v, weights @ v.abs()
        attends = self.scores.attends.double().expand(self.p.shape)
        self.keys = attends.sum(-1, keepdim=True)
        self.values = attends @ v.abs()
        self.stacked = torch.cat([v, v.square(), v.abs()], -1)
        self.keep_scale = problem.keep_scale
        sink = optional(problem.inputs, "sink")
        self.sink = None if sink is None else piece.per_head(sink)
        # out averages the values, and 0 where weights are dropped or a sink has a share.
        high, low = v.amax(-2, keepdim=True), v.amin(-2, keepdim=True)
        if self.w is not None or self.sink is not None:
            high, low = high.clamp(min=0) * self.keep_scale, low.clamp(max=0) * self.keep_scale
        self.farthest = torch.maximum(high - self.out, self.out - low)
        self.largest = torch.maximum(high.abs(), low.abs())

    def tiles(self, key_tile: int) -> Tensor:
        """The most key tiles that hold an attended key of a row, [B, H, R, 1]."""
        between = self.piece.mask.sum(-1, keepdim=True)  # with those whose bias is -inf
        overlapped = ((between - 1) / key_tile).ceil() + 1
        return self.keys.minimum(overlapped).clamp(max=-(-self.piece.span.s_kv // key_tile))

    def errors(self, terms: Terms) -> tuple[Tensor, Tensor, Tensor]:
        """E_O before the last cast [B, H, R, d_v], where it says nothing, and E_L [B, H, R, 1]."""
        sigma = self.error(terms, self.m).masked_fill_(~self.scores.attends, 0)
        upper = self.s + sigma
        highest = upper.amax(-1, keepdim=True)
        upper = upper.clamp_(max=_LARGEST_EXPONENT).exp_()
        a = upper - self.p
        total, lowest = upper.sum(-1, keepdim=True), self.s - sigma
        z, nearest = lowest.exp().sum(-1, keepdim=True), lowest.amax(-1, keepdim=True)
        of_sink: Tensor | float = 0.0
        if self.sink is not None:
            e_z, s_z = self.sink - self.lse, 4 * terms.u * (self.sink.abs() + self.m.abs())
            total, z = total + (e_z + s_z).exp(), z + (e_z - s_z).exp()
            of_sink = ((e_z + s_z).exp() - e_z.exp()) * self.out.abs()
            highest, nearest = highest.maximum(e_z + s_z), nearest.maximum(e_z - s_z)
        r = self.relative(terms)
        width = self.out.shape[-1]
        sums = (a if self.w is None else a * self.w) @ self.stacked
        first, second, absolute = sums.split(width, -1)
        all_a = a.sum(-1, keepdim=True)
        size = self.out.abs()
        square = second * self.keep_scale - 2 * self.out * first + self.out.square() * all_a
        spread = (all_a * square.clamp(min=0)).sqrt().fmin(absolute + size * all_a)
        condition = ((spread + of_sink) / z).fmin(self.farthest)
        added = ((self.weighted + absolute) / z).fmin(self.largest)
        f = (1 + r) * (1 + terms.u_p) * terms.operands - 1
        under = self.underflow(terms, sigma)
        e_out = condition + (f * added + r * (size + condition) + under) / (1 - r)
        e_out += self.of_sum(terms) * (size + condition)
        above = torch.where(
            highest < _LARGEST_EXPONENT, total.log(), highest + (self.keys + 1).log()
        )
        below = torch.where(z > 0, -z.log(), -nearest)
        log_l = (self.lse - self.m).clamp(min=0)
        e_lse = torch.maximum(above, below) - torch.log1p(-r) + EPS_LOG * (1 + log_l)
        e_lse += 4 * terms.u * (self.lse.abs() + self.m.abs()) + self.keys * terms.eta
        lost, dead = self.error.overflows(), self.keys == 0
        # A third of the way to the farthest value, and not because of roundings.
        silent = (condition > UNKNOWN * self.farthest) & (2 * condition > e_out) & ~dead
        e_out, e_lse = e_out.masked_fill(lost, torch.inf), e_lse.masked_fill(lost, torch.inf)
        e_lse = torch.where(dead, _error_alone(self.lse, terms), e_lse)
        return e_out.masked_fill(dead, 0), silent, e_lse

    def relative(self, terms: Terms) -> Tensor:
        """R, [B, H, R, 1]."""
        tiles = self.tiles(terms.numerics.key_tile)
        r = terms.gamma.elementwise(self.keys + 1) + tiles * (2 * terms.u + EPS_EXP) + EPS_EXP
        return r if self.w is None else r + 2 * terms.u

    def of_sum(self, terms: Terms) -> Tensor:
        """S_1, [B, H, R, 1]."""
        log_l = (self.lse - self.m).clamp(min=0)
        error = terms.u * (2 * self.lse.abs() + log_l) + EPS_LOG * (1 + log_l)
        alone = self.keys <= (1 if self.sink is None else 0)
        return error.clamp(max=_OF_SUM).masked_fill(alone, 0)

    def underflow(self, terms: Terms, sigma: Tensor) -> Tensor:
        """U: l is at least 1, and at least its own value less what the scores' errors change."""
        least = (self.lse - self.m - 2 * sigma.amax(-1, keepdim=True)).clamp(min=0).exp()
        weight = (terms.eta_p + terms.eta + terms.eta_op) / least
        return self.keep_scale * (weight * self.values + terms.eta_op + 5 * terms.eta * self.keys)


def _error_alone(lse: Tensor, terms: Terms) -> Tensor:
    """Return E_L of rows that attend to nothing but a sink, which is rounded in powers of two."""
    return 8 * terms.u * lse.abs()


def forward_errors(
    problem: Problem, terms: tuple[Terms, ...]
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return E_O [b, s_q, h_q, d_v] uncast, where it says nothing, and E_L [b, h_q, s_q].

    For each of `terms`. The problem's tensors are finite. E_O is 0 in rows that attend to nothing,
    and E_L that of a sink alone, if there is one.
    """
    v, sink = required(problem.inputs, "v"), optional(problem.inputs, "sink")
    b, s_q, h_q, _ = problem.q.shape
    alone = v.new_zeros((b, h_q, s_q), dtype=torch.float64)
    if sink is not None:
        alone[:] = sink.double()[:, None]
    result = [
        (
            v.new_zeros((b, s_q, h_q, v.shape[3]), dtype=torch.float64),
            v.new_zeros((b, s_q, h_q, v.shape[3]), dtype=torch.bool),
            _error_alone(alone, constants),
        )
        for constants in terms
    ]
    for piece in problem.pieces():
        row = _Row(piece)
        for (e_out, silent, e_lse), constants in zip(result, terms, strict=True):
            of_out, of_silent, of_lse = row.errors(constants)
            piece.write_rows(e_out, of_out)
            piece.write_rows(silent, of_silent)
            piece.write_statistic(e_lse, of_lse)
    return result


def bound_forward(
    case: Case, inputs: Inputs, truth: Outputs, numerics: Numerics
) -> dict[str, Bound]:
    """The bounds of out and lse."""
    problem, nothing = Problem.of(case, finite_part(inputs)), unjudged(case, inputs)
    terms = terms_of(case, problem.results, numerics)
    errors = forward_errors(problem, terms)
    out, lse = truth["out"], truth["lse"]
    assert out is not None and lse is not None
    rows = None if nothing is None else nothing.queries
    e_out = [e for e, _, _ in errors]
    _, silent, e_lse = errors[0]
    unknown = e_lse > SAYS_NOTHING
    of_out = None if rows is None else rows.transpose(1, 2)[..., None]
    return {
        "out": bound_of(out, e_out, of_out, silent if bool(silent.any()) else None, casts=terms),
        "lse": bound_of(
            lse, [e for _, _, e in errors], rows, unknown if bool(unknown.any()) else None
        ),
    }


def delta_error(do: Tensor, out: Tensor, terms: Terms) -> Tensor:
    """Return E_D [b, h_q, s_q] in float64, of stored do and out [b, s_q, h_q, d_v]."""
    width = do.shape[3]
    operands = sum(
        row_products(tensor, torch.ones_like(tensor), absolute=True) for tensor in (do, out)
    )
    products = row_products(do, out, absolute=True)
    return terms.gamma(width) * products + terms.eta * (2 * width + operands)


def bound_delta(case: Case, inputs: Inputs, truth: Outputs, numerics: Numerics) -> dict[str, Bound]:
    """Return the bound of delta [b, h_q, s_q]."""
    finite = finite_part(inputs)
    do, exact = required(finite, "do"), required(truth, "delta")
    terms = terms_of(case, exact.numel(), numerics)
    errors = [delta_error(do, required(finite, "out"), term) for term in terms]
    return {"delta": bound_of(exact, errors, None)}
