"""How far a correct attention backward may be from the closed form.

For a pair (i, j) that attends, with s_c as in bounds.py, lse given or off by E_L, D off by rho:

    d    = s_c + 4 u_a (|B| + |S| + |lse|) + E_L + eps_exp        P+ = P exp(d)
    pi   = w [((1 + gamma_{d_v+1})(1 + u_op)^2 (1 + 2 u_a if dropped) - 1) |do||v|
              + 2 (d_v + 1) eta_a + (eta_a + eta_op)(sum|do| + sum|v|)] + eta_a          of w dP
    rho  = E_D (+ (1 + gamma_{d_v}) sum_c |do| E_O where out is the kernel's own)        of D
    E_0  = (P+ - P) |dP - D| + P+ [pi + 2 u_a (|dP| + |D|)] + eta_a (2 + P+ + |dP - D| + pi + rho)
           factors: (1 + u_p)^2 E_0 + (2 u_p + u_p^2) |dS| + eta_p (P+ + |dP - D| + pi + rho)
    E_h  = 2 |t| e + e^2 + 4 u_a, e = s_c / c      0 and h = 1 without softcap; h+ = h + E_h
    E_in = (1 + u_p) [h E_0 + E_h (|dS| + E_0)] + u_p |dX|         without rho
    E_S  = E_in + r P+ h+ rho            r = 1 + u_p, (1 + u_p)^3 with factors
    g_n  = (1 + gamma_n + 3 u_a)(1 + u_op)^2 - 1
    tau  = scale, t' = max(1, tau), eta' = eta_p + eta_a + eta_op

    dq  tau {[E_in + rho (r P+ h+ - P h) + g_N (|dX| + E_S)] |k| + rho |sum_j P h k|}
        + t' [eta' sum|k| + eta_op' sum_j (|dX| + E_S) + 5 N eta_a]
    dk  tau [E_S + g_M (|dX| + E_S)]^T |q| + t' [...] the same by columns
    dv  {w [P+ ((1 + g_M)(1 + u_p)(1 + 2 u_a if dropped)) - P]}^T |do|
        + ks [eta' sum|do| + eta_op' sum_i P+ + 5 M eta_a]
    db  sum E_b + gamma_{red+2} sum (|dS| + E_b) + 2 eta_a,     E_b = E_0 + P+ rho
        (bias_gradient: E_b + u_p (|dS| + E_b) + eta_p)
    dz  sum_i Ps [(exp d_z - 1) |D| + exp(d_z) rho] + gamma_{n+3} sum_i Ps exp(d_z) (|D| + rho)
        + eta_a (4 n + sum_i (|D| + rho + Ps)),     d_z = 4 u_a (|z| + |lse|) + E_L + eps_exp

each with (1 + u_o) and + u_o |.| + eta_o at the end; eta_op' = eta_a + eta_op. N counts a row's
keys, M a key's rows of all heads of its group. rho is common to a row, so that it meets the sum
of P h k, not of |P h k|: rounding out breaks sum_j dS_ij = 0 and shifts dq coherently.

As an op of its own a backward is judged by the out and lse that it is given: E_L = 0, and D is off
by its own sum alone. End to end the kernel's forward made them, within E_L and E_O. With
partials each query head's dk and dv are cast before they are summed over the group of G: their
errors E_g are those of keys with one query head each, and

    E = sum_g [(1 + u_o) E_g + u_o |dk_g| + eta_o], to which sum_g (|dk_g| + it) adds gamma_{G+1}

Where exp(S - lse + d) may overflow in fp32, or a cast dS in fp16, the row's dq, the key's dk and
dv and that dbias are promised nothing: infinite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernel_workbench.oracles.attention.bounds import (
    SINGLE_LARGEST,
    ScoreError,
    Terms,
    bound_of,
    chunks,
    terms_of,
)
from kernel_workbench.oracles.attention.bounds_forward import delta_error, forward_errors
from kernel_workbench.oracles.attention.closed_form import (
    backward,
    forward,
    probabilities,
    row_products,
    sink_probabilities,
    weights_of,
)
from kernel_workbench.oracles.attention.non_finite import Unjudged, finite_part, unjudged
from kernel_workbench.oracles.attention.power import unknown_shares
from kernel_workbench.oracles.attention.scores import Piece, Problem
from kernel_workbench.oracles.op import Bound, Case, Inputs, Numerics, Outputs, optional, required
from kernel_workbench.oracles.rounding import EPS_EXP

_LARGEST_EXPONENT = 88.0  # exp of it is finite in fp32


class Pairs:
    """The quantities of one piece that all terms share: every pair's closed form, in float64."""

    def __init__(self, piece: Piece, statistics: dict[str, Tensor]) -> None:
        """Compute the quantities; statistics: "lse" and "delta", float64 [b, h_q, s_q]."""
        inputs, problem = piece.problem.inputs, piece.problem
        self.piece = piece
        q, k = piece.rows_of(problem.q), piece.keys_of(problem.k)
        v, do = piece.keys_of(required(inputs, "v")), piece.rows_of(required(inputs, "do"))
        self.scores = piece.scores(q, k)
        self.error = ScoreError(piece, self.scores, q, k)
        self.attends = self.scores.attends.double().expand(self.scores.s.shape)
        self.lse, self.d = (
            piece.statistic_of(statistics["lse"]),
            piece.statistic_of(statistics["delta"]),
        )
        self.p = probabilities(self.scores, self.lse)
        self.lse = self.lse.masked_fill(self.lse.isinf(), 0)
        self.weights, self.w = weights_of(piece, self.p)
        self.q, self.k, self.do = q.abs(), k.abs(), do.abs()
        self.products = self.do @ v.abs().mT
        self.operands = self.do.sum(-1, keepdim=True) + v.abs().sum(-1)[..., None, :]
        dp = do @ v.mT
        dp = dp if self.w is None else dp * self.w
        self.both = (dp.abs() + self.d.abs()).mul_(self.attends)
        self.factor = (dp - self.d).mul_(self.attends)
        self.ds = (self.p * self.factor).abs_()
        self.factor.abs_()
        tanh = self.scores.tanh
        self.h = None if tanh is None else 1 - tanh.square()
        self.dx = self.ds if self.h is None else self.ds * self.h
        self.p_h = self.p if self.h is None else self.p * self.h
        self.of_keys = (self.p_h @ k).abs_()
        span, heads = piece.span, problem.group
        rows = slice(piece.queries.start, piece.queries.stop)
        self.n = problem.keys_of_queries(span)[rows].repeat(heads)[:, None]
        self.m = problem.queries_of_keys(span)[piece.keys.start : piece.keys.stop] * heads
        self.rows = self.attends.sum(-1, keepdim=True)
        self.columns = self.attends.sum(-2)[..., None]
        self.widths = k.shape[-1], v.shape[-1]


class _Errors:
    """The errors of one kind of gamma, of all outputs, before their last cast."""

    def __init__(self, problem: Problem, terms: Terms, rho: Tensor, e_lse: Tensor | None) -> None:
        """rho and e_lse [b, h_q, s_q]; e_lse None where lse is given."""
        inputs = problem.inputs
        self.problem, self.terms, self.e_lse = problem, terms, e_lse
        # Infinite where nothing is promised of the row's out: a flag, and 0 in what is summed.
        self.lost, self.rho = rho.isinf(), rho.masked_fill(rho.isinf(), 0)
        names = {name: required(inputs, name[1:]) for name in ("dq", "dk", "dv")}
        bias = optional(inputs, "bias")
        if bias is not None:
            names["dbias"] = bias
        self.of = {
            name: tensor.new_zeros(tensor.shape, dtype=torch.float64)
            for name, tensor in names.items()
        }
        self.reduced = 1
        if bias is not None:
            b, s_q, h_q, _ = problem.q.shape
            for size, own in zip((b, h_q, s_q), bias.shape, strict=False):
                self.reduced *= size if own == 1 else 1

    def add(self, pairs: Pairs) -> None:
        """Add the share of a piece."""
        terms, piece, attends = self.terms, pairs.piece, pairs.attends
        u_p, eta, tau = terms.u_p, terms.eta, abs(self.problem.scale)
        factors = terms.numerics.makes("factors")
        rho = piece.statistic_of(self.rho)
        s_c = pairs.error.before_offset(terms)
        upper, overflows = self._upper(pairs, s_c)
        pi = self._pi(pairs)
        lost = (pairs.factor + pi + rho) * attends
        e_0 = (upper - pairs.p) * pairs.factor + upper * (pi + 2 * terms.u * pairs.both)
        e_0 += eta * (2 * attends + upper + lost)
        if factors:
            e_0 = e_0 * (1 + u_p) ** 2 + (2 * u_p + u_p**2) * pairs.ds
            e_0 += terms.eta_p * (upper + lost)
            overflows |= lost >= terms.largest
        once = (1 + u_p) ** 2 if factors else 1.0
        if "dbias" in self.of:
            self._add_bias(pairs, e_0 + upper * (once * rho), overflows)
        if pairs.h is None or pairs.scores.tanh is None:
            e_in, upper_h = e_0, upper
        else:
            e = s_c / (self.problem.softcap or 1.0)
            e_h = 2 * pairs.scores.tanh.abs() * e + e.square() + 4 * terms.u
            e_in, upper_h = pairs.h * e_0 + e_h * (pairs.ds + e_0), upper * (pairs.h + e_h)
        e_in = (1 + u_p) * e_in + u_p * pairs.dx
        upper_h = upper_h * (rho * (1 + u_p) * once)
        e_s = e_in + upper_h
        size = pairs.dx + e_s
        overflows |= (size * max(tau, 1.0) >= terms.largest) & pairs.scores.attends
        self._add_dq(pairs, e_in + upper_h - pairs.p_h * rho, size, overflows)
        self._add_dk(pairs, e_s, size, overflows)
        self._add_dv(pairs, upper, overflows)

    def _upper(self, pairs: Pairs, s_c: Tensor) -> tuple[Tensor, Tensor]:
        """P+, and where a pair may overflow, [B, H, R, K]."""
        terms, attends = self.terms, pairs.scores.attends
        d = s_c + 4 * terms.u * (pairs.error.local + pairs.lse.abs()) + EPS_EXP
        if self.e_lse is not None:
            d += pairs.piece.statistic_of(self.e_lse)
        exponent = (pairs.scores.s - pairs.lse + d).masked_fill_(~attends, -torch.inf)
        overflows = exponent > _LARGEST_EXPONENT
        beyond = (pairs.products >= SINGLE_LARGEST) | pairs.error.overflows()
        beyond |= pairs.piece.statistic_of(self.lost) > 0
        upper = exponent.clamp_(max=_LARGEST_EXPONENT).exp_()
        return upper.maximum(pairs.p), overflows | (beyond & attends)

    def _dropped(self, pairs: Pairs) -> float:
        """The two roundings of keep_scale, and of a product with it."""
        return 1.0 if pairs.w is None else 1 + 2 * self.terms.u

    def _pi(self, pairs: Pairs) -> Tensor:
        """The error of w dP, [B, H, R, K]."""
        terms, d_v = self.terms, pairs.widths[1]
        relative = (1 + terms.gamma(d_v + 1)) * terms.operands * self._dropped(pairs) - 1
        pi = relative * pairs.products + 2 * (d_v + 1) * terms.eta
        pi += (terms.eta + terms.eta_op) * pairs.operands
        return (pi if pairs.w is None else pi * pairs.w) + terms.eta

    def _sums(self, n: Tensor) -> Tensor:
        """g_n."""
        return (1 + self.terms.gamma.elementwise(n) + 3 * self.terms.u) * self.terms.operands - 1

    def _add_bias(self, pairs: Pairs, e_b: Tensor, overflows: Tensor) -> None:
        """dS as it is summed over what the bias was broadcast over."""
        terms = self.terms
        if terms.numerics.makes("bias_gradient"):
            overflows = overflows | (pairs.ds + e_b >= terms.largest)
            e_b = e_b + terms.u_p * (pairs.ds + e_b) + terms.eta_p * pairs.attends
        e_b = e_b + terms.gamma(self.reduced + 2) * (pairs.ds + e_b) + 2 * terms.eta * pairs.attends
        pairs.piece.add_bias(self.of["dbias"], e_b.masked_fill(overflows, torch.inf))

    def _add_dq(self, pairs: Pairs, own: Tensor, size: Tensor, overflows: Tensor) -> None:
        """own: the error of dS but for the part of rho that the whole row shares."""
        terms, piece = self.terms, pairs.piece
        tau = abs(self.problem.scale)
        larger, flushed = max(tau, 1.0), terms.eta + terms.eta_op
        pair = tau * (own + self._sums(pairs.n) * size)
        pair += larger * (terms.eta_p + flushed) * pairs.attends
        error = pair @ pairs.k + tau * piece.statistic_of(self.rho) * pairs.of_keys
        per_row = flushed * size.sum(-1, keepdim=True) + 5 * terms.eta * pairs.rows
        error += larger * per_row
        piece.write_rows(
            self.of["dq"], error.masked_fill(overflows.any(-1, keepdim=True), torch.inf)
        )

    def _add_dk(self, pairs: Pairs, e_s: Tensor, size: Tensor, overflows: Tensor) -> None:
        terms, tau = self.terms, abs(self.problem.scale)
        larger, flushed = max(tau, 1.0), terms.eta + terms.eta_op
        pair = tau * (e_s + self._sums(pairs.m) * size)
        pair += larger * (terms.eta_p + flushed) * pairs.attends
        per_key = flushed * size.sum(-2)[..., None] + 5 * terms.eta * pairs.columns
        error = pair.mT @ pairs.q + larger * per_key
        lost = overflows.any(-2)[..., None]
        pairs.piece.add_keys(self.of["dk"], error.masked_fill(lost, torch.inf))

    def _add_dv(self, pairs: Pairs, upper: Tensor, overflows: Tensor) -> None:
        terms, ks = self.terms, self.problem.keep_scale
        flushed = terms.eta + terms.eta_op
        relative = (1 + self._sums(pairs.m)) * ((1 + terms.u_p) * self._dropped(pairs))
        pair = relative * upper - pairs.p
        if pairs.w is not None:
            pair = pair * pairs.w
        pair += ks * (terms.eta_p + flushed) * pairs.attends
        per_key = flushed * upper.sum(-2)[..., None] + 5 * terms.eta * pairs.columns
        error = pair.mT @ pairs.do + ks * per_key
        lost = overflows.any(-2)[..., None]
        pairs.piece.add_keys(self.of["dv"], error.masked_fill(lost, torch.inf))

    def add_sink(self, sink: Tensor, lse: Tensor, d: Tensor) -> None:
        """Set the error of dsink [h_q], from lse and D [b, h_q, s_q]."""
        terms, rho, d = self.terms, self.rho, d.abs()
        z, n = sink.double()[:, None].abs(), d.shape[0] * d.shape[2]
        exponent = 4 * terms.u * (z + lse.abs()) + EPS_EXP
        if self.e_lse is not None:
            exponent = exponent + self.e_lse
        p = sink_probabilities(sink, lse)
        upper = (p * exponent.exp()).masked_fill(p == 0, 0)  # 0 also where the sink is -inf
        error = (upper - p) * d + upper * (rho + terms.gamma(n + 3) * (d + rho))
        error += terms.eta * (4 + d + rho + p)
        self.of["dsink"] = error.masked_fill(self.lost, torch.inf).sum((0, 2))


def backward_errors(
    problem: Problem,
    terms: tuple[Terms, ...],
    rho: list[Tensor],
    e_lse: list[Tensor] | None,
) -> list[dict[str, Tensor]]:
    """Return the errors of dq, dk, dv, dbias and dsink before their last cast, for each of `terms`.

    The problem's tensors are finite and hold out and lse. 0 in gradients of what meets nothing.
    """
    inputs = problem.inputs
    lse, sink = required(inputs, "lse").double(), optional(inputs, "sink")
    statistics = {
        "lse": lse,
        "delta": row_products(required(inputs, "do"), required(inputs, "out")),
    }
    accumulators = [
        _Errors(problem, forms, rho[index], None if e_lse is None else e_lse[index])
        for index, forms in enumerate(terms)
    ]
    for piece in problem.pieces():
        pairs = Pairs(piece, statistics)
        for errors in accumulators:
            errors.add(pairs)
    if sink is not None:
        for errors in accumulators:
            errors.add_sink(sink, lse, statistics["delta"])
    return [errors.of for errors in accumulators]


def bound_backward(
    case: Case, inputs: Inputs, truth: Outputs, numerics: Numerics
) -> dict[str, Bound]:
    """Return the bounds of dq, dk, dv, dbias and dsink, out and lse being arguments."""
    finite, nothing = finite_part(inputs), unjudged(case, inputs)
    do, out = required(finite, "do"), required(finite, "out")
    terms = terms_of(case, Problem.of(case, finite).results, numerics)
    rho = [delta_error(do, out, term) for term in terms]
    unknown = unknown_shares(Problem.of(case, finite), terms[0], None)
    errors = _pre_errors(case, finite, terms, rho, None)
    return _bounds(truth, terms, errors, nothing, unknown)


def bound_gradients(
    case: Case, inputs: Inputs, truth: Outputs, numerics: Numerics
) -> dict[str, Bound]:
    """Return the bounds of dq, dk, dv, dbias and dsink, with a kernel's own out and lse."""
    finite, nothing = finite_part(inputs), unjudged(case, inputs)
    stored = forward(case, finite)
    terms = terms_of(case, Problem.of(case, finite).results, numerics)
    rho, e_lse = _own_errors(case, finite, required(stored, "out"), terms)
    arguments: Inputs = {**finite, **stored}
    # Before the errors: of each gradient it takes two float64 tensors, and leaves one.
    unknown = unknown_shares(Problem.of(case, arguments), terms[0], e_lse[0])
    errors = _pre_errors(case, arguments, terms, rho, e_lse)
    return _bounds(truth, terms, errors, nothing, unknown)


def _own_errors(
    case: Case, inputs: Inputs, out: Tensor, terms: tuple[Terms, ...]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return rho and E_L [b, h_q, s_q] of a kernel's own forward, for each of `terms`."""
    do, rho, e_lse = required(inputs, "do"), [], []
    errors = forward_errors(Problem.of(case, inputs), terms)
    for constants, (e_out, _, of_lse) in zip(terms, errors, strict=True):
        for chunk in chunks(tuple(out.shape)):
            chunk.of(e_out).copy_(constants.rounded(chunk.of(e_out), chunk.of(out)))
        of_out = row_products(do, e_out, absolute=True)
        of_out = of_out.nan_to_num(nan=torch.inf, posinf=torch.inf)
        rho.append(delta_error(do, out, constants) + (1 + constants.gamma(do.shape[3])) * of_out)
        e_lse.append(of_lse)
    return rho, e_lse


def _pre_errors(
    case: Case,
    inputs: Inputs,
    terms: tuple[Terms, ...],
    rho: list[Tensor],
    e_lse: list[Tensor] | None,
) -> list[dict[str, Tensor]]:
    """Return the errors before the last cast; with partials those casts are in them."""
    problem = Problem.of(case, inputs)
    group = problem.group
    if not terms[0].numerics.makes("partials") or group == 1:
        return backward_errors(problem, terms, rho, e_lse)
    of_heads = dict(inputs)
    for name in ("k", "v"):
        of_heads[name] = required(inputs, name).repeat_interleave(group, 2)
    errors = backward_errors(Problem.of(case, of_heads), terms, rho, e_lse)
    exact = backward(case, of_heads)
    for head_errors, constants in zip(errors, terms, strict=True):
        for name in ("dk", "dv"):
            value = required(exact, name)
            cast = constants.rounded(head_errors[name], value)
            cast = cast.masked_fill(value.abs() + cast >= constants.largest, torch.inf)
            error = cast + constants.gamma(group + 1) * (value.abs() + cast)
            head_errors[name] = error.unflatten(2, (-1, group)).sum(3)
    return errors


def _bounds(
    truth: Outputs,
    terms: tuple[Terms, ...],
    errors: list[dict[str, Tensor]],
    no: Unjudged | None,
    unknown: dict[str, Tensor] | None,
) -> dict[str, Bound]:
    """The bounds of the errors before the last cast, where the policy promises anything."""
    result = {}
    for name in errors[0]:
        value = required(truth, name)
        single = name == "dsink"  # which is in fp32, whatever the rest is
        result[name] = bound_of(
            value,
            [error[name] for error in errors],
            None if no is None else _unjudged(no, name, value),
            casts=tuple(term.in_single if single else term for term in terms),
            unknown=None if unknown is None else unknown[name],
        )
    return result


def _unjudged(no: Unjudged, name: str, value: Tensor) -> Tensor:
    """Return a bool mask, to broadcast over an output, of where nothing is promised."""
    if name == "dq":
        return no.queries.transpose(1, 2)[..., None]
    if name == "dsink":
        return no.queries.any(2).any(0)
    if name == "dbias":
        reduced = no.queries.sum_to_size(value.shape[:3]) > 0
        return reduced[..., None]
    return no.keys[..., None]
