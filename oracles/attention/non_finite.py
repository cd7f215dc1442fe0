"""Outputs without a promise where values aren't finite, and finite arguments for the bounds.

A NaN or an infinity in k or v at key j makes of rows that attend to j what the formulas say. Rows
of the same sequence and key head that don't attend to j, while others do, are promised nothing: a
tile's product multiplies their weight of 0 by it. Where the formulas still give a finite number in
a row whose scores aren't all finite (an infinite key with no weight), it isn't judged either. By
columns the same holds of a query: one with anything that isn't finite makes of the keys that it
attends to what the formulas say, and the other keys of its head are promised nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernel_workbench.oracles.attention.scores import Piece, Problem
from kernel_workbench.oracles.op import Case, Inputs, optional

_ONCE_MASKED = ("bias", "lse")  # in which -inf has a meaning
_TENSORS = ("q", "k", "v", "do", "out", "bias", "lse", "sink", "alibi_slopes")


@dataclass(frozen=True, slots=True)
class Unjudged:
    """Where a finite truth is promised nothing.

    queries  bool [b, h_q, s_q]: their out, lse, dq, dS; likewise dsink of their head
    keys     bool [b, s_kv, h_kv]: their dk and dv
    """

    queries: Tensor
    keys: Tensor


def _bad(name: str, tensor: Tensor) -> Tensor:
    """Which elements aren't finite, nor have a meaning."""
    bad = ~tensor.isfinite()
    return bad & ~tensor.isneginf() if name in _ONCE_MASKED else bad


def finite_part(inputs: Inputs) -> Inputs:
    """The same arguments, with 0 for what isn't finite: bounds are made of these."""
    result = dict(inputs)
    for name in _TENSORS:
        tensor = optional(inputs, name)
        if tensor is not None and bool((bad := _bad(name, tensor)).any()):
            result[name] = tensor.masked_fill(bad, 0)
    return result


def unjudged(case: Case, inputs: Inputs) -> Unjudged | None:
    """Return the places where nothing is promised; None where all of the arguments are finite."""
    tensors = {name: optional(inputs, name) for name in _TENSORS}
    if not any(
        bool(_bad(name, tensor).any()) for name, tensor in tensors.items() if tensor is not None
    ):
        return None
    problem = Problem.of(case, inputs)
    (b, s_q, h_q, _), (_, s_kv, h_kv, _) = problem.q.shape, problem.k.shape
    result = Unjudged(
        problem.q.new_zeros((b, h_q, s_q), dtype=torch.bool),
        problem.q.new_zeros((b, s_kv, h_kv), dtype=torch.bool),
    )
    for piece in problem.pieces(whole=True):
        queries, keys = _of_piece(piece)
        piece.write_statistic(result.queries, queries)
        piece.add_keys(result.keys, keys)
    return result


def _of_piece(piece: Piece) -> tuple[Tensor, Tensor]:
    """Unjudged queries [B, H, R, 1] and keys [B, H, K] of a piece that has all of its keys."""
    inputs, problem = piece.problem.inputs, piece.problem
    q, k = piece.rows_of(problem.q), piece.keys_of(problem.k)
    scores = piece.scores(q, k)
    bad_k, bad_q = ~k.isfinite().all(-1), ~q.isfinite().all(-1, keepdim=True)
    v = optional(inputs, "v")
    bad = bad_k if v is None else bad_k | ~piece.keys_of(v).isfinite().all(-1)
    bad &= problem.queries_of_keys(piece.span) > 0
    met = (scores.attends & bad[..., None, :]).sum(-1, keepdim=True)
    mixed = met < bad.sum(-1)[..., None, None]
    undefined = scores.attends & (bad_k[..., None, :] | ~scores.s.isfinite())
    wild = undefined.any(-1, keepdim=True) | bad_q
    for name in ("do", "out"):
        tensor = optional(inputs, name)
        if tensor is not None:
            wild = wild | ~piece.rows_of(tensor).isfinite().all(-1, keepdim=True)
    lse, sink = optional(inputs, "lse"), optional(inputs, "sink")
    if lse is not None:
        rows = piece.statistic_of(lse)
        wild = wild | rows.isnan() | rows.isposinf()
    if sink is not None:
        wild = wild | ~piece.per_head(sink).isfinite()
    scored = undefined.any(-1, keepdim=True) | mixed
    # A value that isn't finite makes a NaN of D, and D is of the whole row.
    keys = (scored | ((wild | (met > 0)) & ~piece.mask)).any(-2).expand(bad.shape)
    return wild | mixed, keys
