"""`torch_eager`: attention's closed form in fp32, one PyTorch operation after the other.

All scores are in memory, [b, h_q, s_q, s_kv]; halves are widened first, so that nothing is cast
before a product. With m_i the row's largest score (the sink among them),

    p_ij = exp(S_ij - m_i)             l_i = sum_j p_ij [+ exp(sink - m_i)]
    out = (w p) v / l                  lse = m + log l

and the backward of the contract's formulas, with P = exp(S - lse). Keys that no query of a sequence
may attend to, and queries without keys, are read as zeros: 0 times what they hold could be NaN.
Sequences of different lengths are taken one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernel_workbench.kernels.baselines.attention_call import (
    Gradients,
    PeerOptions,
    reduced_like,
    spans,
)
from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import (
    ATTENTION_BACKWARD,
    ATTENTION_DELTA,
    ATTENTION_FORWARD,
    ATTENTION_GRADIENTS,
)
from kernel_workbench.oracles.attention.dropout import keep_mask
from kernel_workbench.oracles.op import Case

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_FEATURES = frozenset(ATTENTION_FORWARD.options) - {"torch_dropout"}
_MOST_SCORES = 2**28  # 1 GiB in fp32, and there are about ten tensors of them
_MOST_ELEMENTS = 2**28
_DROPOUT_FACTOR = 8  # the mask is drawn in int64, several words at a time


@dataclass(frozen=True, slots=True)
class _EagerScores:
    """Scores of one batch of equally long sequences, heads first, in fp32.

    q, do [b, h_q, s_q, .] and k, v [b, h_q, s_kv, .] widened; scores [b, h_q, s_q, s_kv], -inf
    where masked; slope, the derivative of the softcap; weights w, None without dropout; live [s_q,
    1], True if a query may attend to any key, None if all may.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scores: Tensor
    slope: Tensor | None
    weights: Tensor | None
    live: Tensor | None
    scale: float

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, options: PeerOptions, batch: int) -> _EagerScores:
        """Compute the scores of q, k, v [b, s, h, d].

        batch: the number of the first one, for dropout.
        """
        group = q.shape[2] // k.shape[2]
        wide_q, wide_k, wide_v = (tensor.float().transpose(1, 2) for tensor in (q, k, v))
        s_q, s_kv = q.shape[1], k.shape[1]
        pairs = options.mask.pairs(s_q, s_kv, q.device)
        live = None
        if pairs is not None:
            live = pairs.any(1)[:, None]
            attended = pairs.any(0)[:, None]
            wide_q = wide_q.masked_fill(~live, 0.0)
            wide_k, wide_v = (tensor.masked_fill(~attended, 0.0) for tensor in (wide_k, wide_v))
        wide_k, wide_v = (tensor.repeat_interleave(group, 1) for tensor in (wide_k, wide_v))
        scale = 1 / math.sqrt(q.shape[3]) if options.scale is None else options.scale
        scores = wide_q @ wide_k.mT * scale
        slope = None
        if options.softcap is not None:
            bent = torch.tanh(scores / options.softcap)
            scores, slope = options.softcap * bent, 1 - bent.square()
        if options.bias is not None:
            scores = scores + options.bias.float()
        if options.alibi_slopes is not None:
            shift = options.mask.shift(s_q, s_kv)
            position = torch.arange(s_q, device=q.device) + shift
            distance = (position[:, None] - torch.arange(s_kv, device=q.device)).abs()
            scores = scores - options.alibi_slopes[:, None, None] * distance
        if pairs is not None:
            scores = scores.masked_fill(~pairs, -math.inf)
        weights = None
        if options.dropout_p > 0:
            weights = _kept(scores, options, batch) / (1 - options.dropout_p)
        return cls(wide_q, wide_k, wide_v, scores, slope, weights, live, scale)

    def weighted(self, probabilities: Tensor) -> Tensor:
        """Return w P, or P without dropout."""
        return probabilities if self.weights is None else probabilities * self.weights


def _kept(scores: Tensor, options: PeerOptions, batch: int) -> Tensor:
    """Return the mask of kept weights, by the contract's own function."""
    b, h_q, s_q, s_kv = scores.shape
    heads = torch.arange(b * h_q, device=scores.device).view(b, h_q) + batch * h_q
    queries = torch.arange(s_q, device=scores.device)
    return keep_mask(options.dropout_seed, options.dropout_p, heads, queries, range(s_kv))


def _forward(
    q: Tensor, k: Tensor, v: Tensor, options: PeerOptions, batch: int = 0
) -> tuple[Tensor, Tensor]:
    """Compute out [b, s_q, h_q, d_v] in q's dtype and lse [b, h_q, s_q]."""
    scored = _EagerScores.of(q, k, v, options, batch)
    largest = scored.scores.new_full((*scored.scores.shape[:3], 1), -math.inf)
    if scored.scores.shape[3]:
        largest = scored.scores.amax(3, keepdim=True)
    sink = None if options.sink is None else options.sink[:, None, None]
    if sink is not None:
        largest = largest.maximum(sink)
    nothing = largest == -math.inf
    largest = largest.masked_fill(nothing, 0.0)
    exponentials = torch.exp(scored.scores - largest)
    total = exponentials.sum(3, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink - largest)
    out = scored.weighted(exponentials) @ scored.v / total.masked_fill(nothing, 1.0)
    lse = (largest + torch.log(total)).masked_fill(nothing, -math.inf)
    return out.transpose(1, 2).to(q.dtype), lse.squeeze(3)


def _backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    options: PeerOptions,
    batch: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Compute dq, dk, dv like q, k, v; dS [b, h_q, s_q, s_kv]; and dsink, None without a sink."""
    scored = _EagerScores.of(q, k, v, options, batch)
    wide_do, wide_out = do.float().transpose(1, 2), out.float().transpose(1, 2)
    statistics = lse[..., None]
    finite = statistics.masked_fill(statistics == -math.inf, 0.0)
    delta = (wide_do * wide_out).sum(3, keepdim=True)
    dsink = None
    if options.sink is not None:
        share = torch.exp(options.sink[:, None, None] - finite)
        dsink = -(share * delta).sum((0, 2, 3))
    if scored.live is not None:
        wide_do, delta = (gradient.masked_fill(~scored.live, 0.0) for gradient in (wide_do, delta))
    probabilities = torch.exp(scored.scores - finite)
    along_value = wide_do @ scored.v.mT
    ds = probabilities * (scored.weighted(along_value) - delta)
    dx = ds if scored.slope is None else ds * scored.slope
    dq = dx @ scored.k * scored.scale
    dk = dx.mT @ scored.q * scored.scale
    dv = scored.weighted(probabilities).mT @ wide_do
    heads = k.shape[2]
    dk, dv = (gradient.unflatten(1, (heads, -1)).sum(2) for gradient in (dk, dv))
    dq, dk, dv = (gradient.transpose(1, 2).to(q.dtype) for gradient in (dq, dk, dv))
    return dq, dk, dv, ds, dsink


def _reject(case: Case) -> str | None:
    """Return the refusal of more scores, or larger tensors, than fit into memory, or None."""
    sizes = dict(case.sizes)
    together = 1 if "varlen" in case.options else sizes["b"]
    scores = together * sizes["h_q"] * sizes["s_q"] * sizes["s_kv"]
    if "dropout" in case.options:
        scores *= _DROPOUT_FACTOR
    if scores > _MOST_SCORES:
        return f"holds all scores at once, at most {_MOST_SCORES}, got {scores}"
    rows = max(sizes["s_q"] * sizes["h_q"], sizes["s_kv"] * sizes["h_kv"])
    elements = sizes["b"] * rows * max(sizes["d"], sizes["d_v"])
    if elements > _MOST_ELEMENTS:
        return f"widens its operands, of at most {_MOST_ELEMENTS} elements, got {elements}"
    return None


_DOMAIN = Domain(dtypes=_DTYPES, features=_FEATURES, also=_reject)


@kernel(ATTENTION_FORWARD, _DOMAIN, priority=-20)
def torch_eager(q: Tensor, k: Tensor, v: Tensor, **given: object) -> tuple[Tensor, Tensor]:
    """Compute out and lse, sequence by sequence under varlen."""
    options = PeerOptions.of(given)
    if options.cu_seqlens_q is None or options.cu_seqlens_k is None:
        return _forward(q, k, v, options)
    out = q.new_empty((*q.shape[:3], v.shape[3]))
    lse = q.new_empty((1, q.shape[2], q.shape[1]), dtype=torch.float32)
    for index, (rows, keys) in enumerate(spans(options.cu_seqlens_q, options.cu_seqlens_k)):
        out[:, rows], lse[:, :, rows] = _forward(q[:, rows], k[:, keys], v[:, keys], options, index)
    return out, lse


@kernel(
    ATTENTION_DELTA,
    Domain(dtypes=_DTYPES, features=frozenset(ATTENTION_DELTA.options)),
    priority=-20,
    name="torch_eager",
)
def eager_delta(out: Tensor, do: Tensor) -> tuple[Tensor]:
    """Compute the row sums of out times do, [b, h_q, s_q]."""
    return ((out.float() * do.float()).sum(3).transpose(1, 2),)


@kernel(ATTENTION_BACKWARD, _DOMAIN, priority=-20, name="torch_eager")
def eager_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, **given: object
) -> Gradients:
    """Compute all gradients, sequence by sequence under varlen."""
    options = PeerOptions.of(given)
    if options.cu_seqlens_q is None or options.cu_seqlens_k is None:
        dq, dk, dv, ds, dsink = _backward(do, q, k, v, out, lse, options)
        dbias = None if options.bias is None else _bias_gradient(ds, options.bias)
        return dq, dk, dv, dbias, dsink
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    dsink = None if options.sink is None else torch.zeros_like(options.sink)
    for index, (rows, keys) in enumerate(spans(options.cu_seqlens_q, options.cu_seqlens_k)):
        dq[:, rows], dk[:, keys], dv[:, keys], _, share = _backward(
            do[:, rows],
            q[:, rows],
            k[:, keys],
            v[:, keys],
            out[:, rows],
            lse[:, :, rows],
            options,
            index,
        )
        if dsink is not None and share is not None:
            dsink += share
    return dq, dk, dv, None, dsink


@kernel(ATTENTION_GRADIENTS, _DOMAIN, priority=-20, name="torch_eager")
def eager_gradients(do: Tensor, q: Tensor, k: Tensor, v: Tensor, **given: object) -> Gradients:
    """Compute the backward, on the out and lse of the forward."""
    out, lse = torch_eager(q, k, v, **given)
    return eager_backward(do, q, k, v, out, lse, **given)


def _bias_gradient(ds: Tensor, bias: Tensor) -> Tensor:
    """Return dS summed in fp32 over the bias's broadcast axes, then rounded once."""
    return reduced_like(ds, bias).to(bias.dtype)
