"""The oracle of attention: the closed forms of `oracles.attention`, in float64, piece by piece.

For a row of scores S with maximum m, l = sum_j exp(S_j - m) (and exp(sink - m)), lse = m + log l
and P_j = exp(S_j - m) / l. Differentiating out = sum_j w_j P_j v_j by S_j, with dP_j = do.v_j:

    dP/dS: d(out.do)/dS_j = P_j (w_j dP_j - sum_i w_i P_i dP_i) = P_j (w_j dP_j - D),  D = do.out

(Dao et al. 2022, appendix B; a sink has w = 0 and no value, so that its gradient is -P D). As an
op of its own a backward is the closed form in the lse and out that it is given: P = exp(S - lse)
isn't renormalised and D is do.out, whatever they came from. The gradients are the same form in
the exact lse and out. D is constant along a row, and everything else belongs to a pair (query,
key), so that pieces of rows are independent but for the sums over queries.

Rows with lse = -inf attend to nothing: out and dq are 0, and no key gets anything from them.
"""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import Tensor

from kernel_workbench.oracles.attention.scores import Piece, Problem, Scores, attended_sum
from kernel_workbench.oracles.op import Case, Inputs, Outputs, optional, required

OPTIONS = MappingProxyType(
    {
        "causal": "causal=True is passed: query i attends to keys j <= i + shift",
        "bottom_right": 'corner="bottom_right" is passed: shift = s_kv - s_q, not 0',
        "window": "window=(left, right) is passed: i + shift - left <= j <= i + shift + right",
        "bias": "bias is passed, added to the scores after the softcap, and has a gradient dbias",
        "bias_over_batch": "the bias has size 1 along the batch, dbias is summed over it",
        "bias_over_heads": "the bias has size 1 along the query heads, dbias is summed over them",
        "bias_over_queries": "the bias has size 1 along the queries, dbias is summed over them",
        "alibi": "alibi_slopes is passed: slope_h |i + shift - j| is taken off the scores",
        "softcap": "softcap=c is passed: scale q.k becomes c tanh(scale q.k / c)",
        "sink": "sink is passed: each head has one more score, with no value, and dsink",
        "dropout": "dropout_p and dropout_seed are passed: weights are dropped as dropout.py says",
        "torch_dropout": "likewise, by the mask of torch's memory-efficient CUDA kernels",
        "varlen": "cu_seqlens and max_seqlens are passed: sequences lie one after the other",
        "scale": "scale is passed: it takes the place of 1 / sqrt(d)",
        "gqa": "h_q is a multiple of h_kv: query head h has the key head h // (h_q / h_kv)",
        "unequal_d": "values have a width d_v of their own",
    }
)

_DELTA_ELEMENTS = 2**24  # 128 MiB for each float64 temporary


def weights_of(piece: Piece, p: Tensor) -> tuple[Tensor, Tensor | None]:
    """w P, and w (None without dropout), both [B, H, R, K]."""
    keep = piece.keep()
    if keep is None:
        return p, None
    w = keep.double().mul_(piece.problem.keep_scale)
    return p * w, w


def softmax(piece: Piece, scores: Scores) -> tuple[Tensor, Tensor, Tensor]:
    """P [B, H, R, K], lse and the largest score, the sink's among them, [B, H, R, 1]."""
    largest = scores.s.amax(-1, keepdim=True)
    sink = optional(piece.problem.inputs, "sink")
    z = None if sink is None else piece.per_head(sink)
    if z is not None:
        largest = torch.maximum(largest, z)
    m = largest.masked_fill(largest == -torch.inf, 0)
    p = torch.exp(scores.s - m)
    total = p.sum(-1, keepdim=True)
    if z is not None:
        total = total + torch.exp(z - m)
    lse = torch.where(largest.isposinf(), largest, m + total.log())
    return p.div_(total.masked_fill(total == 0, 1)), lse, m


def forward(case: Case, inputs: Inputs) -> Outputs:
    """out [b, s_q, h_q, d_v] and lse [b, h_q, s_q], in float64."""
    problem = Problem.of(case, inputs)
    v, sink = required(inputs, "v"), optional(inputs, "sink")
    b, s_q, h_q, _ = problem.q.shape
    out = problem.q.new_zeros((b, s_q, h_q, v.shape[3]), dtype=torch.float64)
    lse = problem.q.new_full((b, h_q, s_q), -torch.inf, dtype=torch.float64)
    if sink is not None:
        lse[:] = sink[:, None]
    for piece in problem.pieces():
        scores = piece.scores(piece.rows_of(problem.q), piece.keys_of(problem.k))
        p, total, _ = softmax(piece, scores)
        weights, _ = weights_of(piece, p)
        rows = attended_sum(weights, piece.mask, piece.keys_of(v))
        dead = ~scores.attends.any(-1, keepdim=True)
        piece.write_rows(out, rows.masked_fill(dead, 0))
        piece.write_statistic(lse, total)
    return {"out": out, "lse": lse}


def delta(case: Case, inputs: Inputs) -> Outputs:
    """delta [b, h_q, s_q] in float64."""
    del case
    return {"delta": row_products(required(inputs, "do"), required(inputs, "out"))}


def row_products(one: Tensor, other: Tensor, *, absolute: bool = False) -> Tensor:
    """sum_c one other, or of absolute values, of [b, s, h, c] tensors: [b, h, s] in float64."""
    b, s, h, width = one.shape
    result = one.new_zeros((b, h, s), dtype=torch.float64)
    step = max(1, _DELTA_ELEMENTS // max(b * h * width, 1))
    for start in range(0, s, step):
        rows = slice(start, start + step)
        product = one[:, rows].double() * other[:, rows].double()
        result[..., rows] = (product.abs() if absolute else product).sum(-1).transpose(1, 2)
    return result


def backward(case: Case, inputs: Inputs) -> Outputs:
    """Return the gradients of attention in float64, for stored out and lse.

    Args:
        case: its options choose masks, scale, softcap and dropout.
        inputs: q [b, s_q, h_q, d], k [b, s_kv, h_kv, d], v [b, s_kv, h_kv, d_v], do and out
            [b, s_q, h_q, d_v], lse [b, h_q, s_q], perhaps a bias and a sink [h_q].

    Returns:
        dq, dk and dv in the shapes of q, k and v; dbias and dsink, or None without a bias, a sink.
    """
    problem = Problem.of(case, inputs)
    q, k, v, do = (required(inputs, name) for name in ("q", "k", "v", "do"))
    bias, sink = optional(inputs, "bias"), optional(inputs, "sink")
    lse, rows_d = required(inputs, "lse").double(), row_products(do, required(inputs, "out"))
    dq, dk, dv = (
        torch.zeros(operand.shape, dtype=torch.float64, device=q.device) for operand in (q, k, v)
    )
    dbias = None if bias is None else dq.new_zeros(bias.shape)
    for piece in problem.pieces():
        rows, keys = piece.rows_of(q), piece.keys_of(k)
        scores = piece.scores(rows, keys)
        p = probabilities(scores, piece.statistic_of(lse))
        weights, w = weights_of(piece, p)
        rows_do = piece.rows_of(do)
        dp = rows_do @ piece.keys_of(v).mT
        ds = p * ((dp if w is None else w * dp) - piece.statistic_of(rows_d))
        ds.masked_fill_(~scores.attends, 0)
        if dbias is not None:
            piece.add_bias(dbias, ds)
        if scores.tanh is not None:
            ds = (ds * (1 - scores.tanh.square())).masked_fill_(~scores.attends, 0)
        piece.write_rows(dq, attended_sum(ds, scores.attends, keys) * problem.scale)
        across = scores.attends.mT
        piece.add_keys(dk, attended_sum(ds.mT, across, rows) * problem.scale)
        piece.add_keys(dv, attended_sum(weights.mT, across, rows_do))
    dsink = None
    if sink is not None:
        dsink = -(sink_probabilities(sink, lse) * rows_d).sum((0, 2))
    return {"dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "dsink": dsink}


def probabilities(scores: Scores, lse: Tensor) -> Tensor:
    """P = exp(S - lse) [B, H, R, K]; 0 where a pair doesn't attend, or lse is -inf."""
    p = torch.exp(scores.s - lse.masked_fill(lse == -torch.inf, torch.inf))
    return p.masked_fill_(~scores.attends, 0)


def sink_probabilities(sink: Tensor, lse: Tensor) -> Tensor:
    """Return exp(sink - lse) [b, h_q, s_q] for a sink [h_q]; 0 in a row of nothing but -inf."""
    return torch.exp(sink.double()[:, None] - lse).masked_fill(lse == -torch.inf, 0)


def gradients(case: Case, inputs: Inputs) -> Outputs:
    """Return the result of `backward` for the exact out and lse of the same arguments."""
    return backward(case, {**inputs, **forward(case, inputs)})
