"""The bounds of delta, of a backward as an op of its own, and of the gradients end to end.

`bounds_backward` says how far dq, dk, dv, dbias and dsink may be off, given how far lse and D are.
As an op of its own a backward is judged by the out and lse that it is given: E_L = 0, and D is off
by its own sum alone. End to end the kernel's forward made them, within E_L and E_O.

With half_partials each query head's dk and dv are cast before they are summed over the group of G:
their errors E_g are those of keys with one query head each, and

    E = sum_g [(1 + u_o) E_g + u_o |dk_g| + eta_o], to which sum_g (|dk_g| + it) adds gamma_{G+1}
"""

from __future__ import annotations

import torch
from torch import Tensor

from oracles.attention.bounds import Terms, bound_of, terms_of
from oracles.attention.bounds_backward import backward_errors
from oracles.attention.bounds_forward import delta_error, forward_errors
from oracles.attention.chunks import chunks
from oracles.attention.closed_form import backward, forward, row_products
from oracles.attention.non_finite import Unjudged, finite_part, unjudged
from oracles.attention.power import unknown_shares
from oracles.attention.scores import Problem, required
from oracles.op import Bound, Case, Inputs, Numerics, Outputs


def bound_delta(case: Case, inputs: Inputs, truth: Outputs, numerics: Numerics) -> dict[str, Bound]:
    """The bound of delta."""
    made = finite_part(inputs)
    do, exact = required(made, "do"), required(truth, "delta")
    terms = terms_of(case, exact.numel(), numerics)
    errors = [delta_error(do, required(made, "out"), each) for each in terms]
    return {"delta": bound_of(exact, errors, None)}


def bound_backward(
    case: Case, inputs: Inputs, truth: Outputs, numerics: Numerics
) -> dict[str, Bound]:
    """The bounds of dq, dk, dv, dbias and dsink, out and lse given."""
    made, nothing = finite_part(inputs), unjudged(case, inputs)
    do, out = required(made, "do"), required(made, "out")
    terms = terms_of(case, Problem.of(case, made).results, numerics)
    rho = [delta_error(do, out, each) for each in terms]
    unknown = unknown_shares(Problem.of(case, made), terms[0], None)
    errors = _pre_errors(case, made, terms, rho, None)
    return _bounds(truth, terms, errors, nothing, unknown)


def bound_gradients(
    case: Case, inputs: Inputs, truth: Outputs, numerics: Numerics
) -> dict[str, Bound]:
    """The bounds of dq, dk, dv, dbias and dsink, with the kernel's own out and lse in between."""
    made, nothing = finite_part(inputs), unjudged(case, inputs)
    stored = forward(case, made)
    terms = terms_of(case, Problem.of(case, made).results, numerics)
    rho, e_lse = _own_errors(case, made, required(stored, "out"), terms)
    given: Inputs = {**made, **stored}
    # Before the errors: of each gradient it takes two float64 tensors, and leaves one.
    unknown = unknown_shares(Problem.of(case, given), terms[0], e_lse[0])
    errors = _pre_errors(case, given, terms, rho, e_lse)
    return _bounds(truth, terms, errors, nothing, unknown)


def _own_errors(
    case: Case, inputs: Inputs, out: Tensor, terms: tuple[Terms, ...]
) -> tuple[list[Tensor], list[Tensor]]:
    """rho and E_L [b, h_q, s_q] of a kernel's own forward, for each of `terms`."""
    do, rho, e_lse = required(inputs, "do"), [], []
    errors = forward_errors(Problem.of(case, inputs), terms)
    for each, (e_out, _, of_lse) in zip(terms, errors, strict=True):
        for chunk in chunks(tuple(out.shape)):
            chunk.of(e_out).copy_(each.rounded(chunk.of(e_out), chunk.of(out)))
        of_out = row_products(do, e_out, absolute=True)
        of_out = of_out.nan_to_num(nan=torch.inf, posinf=torch.inf)
        rho.append(delta_error(do, out, each) + (1 + each.gamma(do.shape[3])) * of_out)
        e_lse.append(of_lse)
    return rho, e_lse


def _pre_errors(
    case: Case,
    inputs: Inputs,
    terms: tuple[Terms, ...],
    rho: list[Tensor],
    e_lse: list[Tensor] | None,
) -> list[dict[str, Tensor]]:
    """The errors before the last cast; with half_partials those casts are in them."""
    problem = Problem.of(case, inputs)
    group = problem.group
    if not terms[0].numerics.half_partials or group == 1:
        return backward_errors(problem, terms, rho, e_lse)
    of_heads = dict(inputs)
    for name in ("k", "v"):
        of_heads[name] = required(inputs, name).repeat_interleave(group, 2)
    errors = backward_errors(Problem.of(case, of_heads), terms, rho, e_lse)
    exact = backward(case, of_heads)
    for made, each in zip(errors, terms, strict=True):
        for name in ("dk", "dv"):
            value = required(exact, name)
            cast = each.rounded(made[name], value)
            cast = cast.masked_fill(value.abs() + cast >= each.largest, torch.inf)
            error = cast + each.gamma(group + 1) * (value.abs() + cast)
            made[name] = error.unflatten(2, (-1, group)).sum(3)
    return errors


def _bounds(
    truth: Outputs,
    terms: tuple[Terms, ...],
    errors: list[dict[str, Tensor]],
    no: Unjudged | None,
    unknown: dict[str, Tensor] | None,
) -> dict[str, Bound]:
    """The bounds of the errors before the last cast, where the policy promises anything."""
    made = {}
    for name in errors[0]:
        value = required(truth, name)
        single = name == "dsink"  # which is in fp32, whatever the rest is
        made[name] = bound_of(
            value,
            [error[name] for error in errors],
            None if no is None else _unjudged(no, name, value),
            casts=tuple(each.in_single if single else each for each in terms),
            unknown=None if unknown is None else unknown[name],
        )
    return made


def _unjudged(no: Unjudged, name: str, value: Tensor) -> Tensor:
    """Where an output is promised nothing, bool, to be broadcast over it."""
    if name == "dq":
        return no.queries.transpose(1, 2)[..., None]
    if name == "dsink":
        return no.queries.any(2).any(0)
    if name == "dbias":
        reduced = no.queries.sum_to_size(value.shape[:3]) > 0
        return reduced[..., None]
    return no.keys[..., None]
