"""A sound attention in plain torch, in fp32, whose parts can be replaced one by one.

Its forward takes the keys in tiles, with a running softmax, as a kernel does; its backward is the
closed form on whole rows. `tests/builders/wrong_attentions.py` overrides one method for each
defect.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from kernel_workbench.oracles.attention.dropout import keep_mask


class Given(TypedDict, total=False):
    """The optional keyword arguments of a call, which are present if the case has their options."""

    causal: bool
    window: tuple[int | None, int | None]
    corner: str
    bias: Tensor
    alibi_slopes: Tensor
    softcap: float
    sink: Tensor
    dropout_p: float
    dropout_seed: int
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    scale: float


@dataclass(slots=True)
class Part:
    """Queries and their keys: all batches, or one sequence of a varlen call, in fp32.

    q [B, h_q, M, d], k [B, h_q, N, d] and v [B, h_q, N, d_v], expanded over each group
    mask    [M, N], which pairs are attended to
    """

    given: Given
    number: int  # of the sequence
    rows: slice  # in the packed tensors
    keys: slice
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor
    backward: bool

    @property
    def scale(self) -> float:
        """Return the factor of the scores."""
        given = self.given.get("scale")
        return 1 / math.sqrt(self.q.shape[3]) if given is None else given


def heads_first(tensor: Tensor) -> Tensor:
    """Turn [b, s, h, c] into [b, h, s, c], and back."""
    return tensor.transpose(1, 2)


class Attention:
    """The four ops, as methods."""

    tile = 32

    # Reads, and pairs of queries and keys.

    def read(self, name: str, tensor: Tensor, *, backward: bool) -> Tensor:
        """Return a tensor argument in fp32."""
        del name, backward
        return tensor.float()

    def shift(self, given: Given, m: int, n: int, *, backward: bool) -> int:
        """Return the summand of a query's index for comparisons with a key's."""
        del backward
        return n - m if given.get("corner") == "bottom_right" else 0

    def mask(self, given: Given, m: int, n: int, *, backward: bool) -> Tensor:
        """Return the attended pairs of m queries and n keys."""
        shift = self.shift(given, m, n, backward=backward)
        ahead = torch.arange(n) - torch.arange(m)[:, None] - shift
        left, right = given.get("window", (None, None))
        mask = torch.ones_like(ahead, dtype=torch.bool)
        if given.get("causal"):
            mask &= ahead <= 0
        if left is not None:
            mask &= ahead >= -left
        if right is not None:
            mask &= ahead <= right
        return mask

    def sequences(self, given: Given, m: int, n: int) -> Iterator[tuple[int, slice, slice]]:
        """Return the number, queries and keys of each sequence; a dense batch is one."""
        if "cu_seqlens_q" not in given:
            yield 0, slice(0, m), slice(0, n)
            return
        q, k = given["cu_seqlens_q"].tolist(), given["cu_seqlens_k"].tolist()
        for i in range(len(q) - 1):
            yield i, slice(q[i], q[i + 1]), slice(k[i], k[i + 1])

    def parts(
        self, q: Tensor, k: Tensor, v: Tensor, given: Given, *, backward: bool = False
    ) -> Iterator[Part]:
        """Yield the call's sequences."""
        group = q.shape[2] // k.shape[2]
        wide_q, wide_k, wide_v = (
            heads_first(self.read(name, each, backward=backward))
            for name, each in (("q", q), ("k", k), ("v", v))
        )
        for number, rows, keys in self.sequences(given, q.shape[1], k.shape[1]):
            m, n = rows.stop - rows.start, keys.stop - keys.start
            mask = self.mask(given, m, n, backward=backward).to(q.device)
            unseen = ~mask.any(0)[:, None]
            k_part = self.hide(wide_k[:, :, keys], unseen).repeat_interleave(group, 1)
            v_part = self.hide(wide_v[:, :, keys], unseen).repeat_interleave(group, 1)
            part_q = wide_q[:, :, rows]
            yield Part(given, number, rows, keys, part_q, k_part, v_part, mask, backward)

    def hide(self, rows: Tensor, unseen: Tensor) -> Tensor:
        """Return keys or values, with 0 where no query attends: 0 times NaN is NaN."""
        return rows.masked_fill(unseen, 0)

    def keep(self, part: Part) -> Tensor | None:
        """Return w of the whole part, 0 or 1 / (1 - p); None without dropout."""
        p = part.given.get("dropout_p")
        if p is None:
            return None
        b, h, m, _ = part.q.shape
        device = part.q.device
        blocks = (part.number + torch.arange(b, device=device))[:, None] * h
        blocks = blocks + torch.arange(h, device=device)
        seed, queries = part.given["dropout_seed"], torch.arange(m, device=device)
        kept: Tensor = keep_mask(seed, p, blocks, queries, range(part.k.shape[2]))
        return kept.float() / (1 - p)

    def bias(self, part: Part) -> Tensor | None:
        """Return the bias in fp32, broadcastable to the scores, or None."""
        bias = part.given.get("bias")
        return None if bias is None else self.read("bias", bias, backward=part.backward)

    def scores(self, part: Part) -> tuple[Tensor, Tensor | None]:
        """Return S [B, h_q, M, N], -inf outside of the mask, and tanh(x / softcap)."""
        s, tanh = part.q @ part.k.mT * part.scale, None
        softcap, slopes = part.given.get("softcap"), part.given.get("alibi_slopes")
        if softcap is not None:
            tanh = torch.tanh(s / softcap)
            s = softcap * tanh
        bias = self.bias(part)
        if bias is not None:
            s = s + bias
        if slopes is not None:
            m, n = part.mask.shape
            shift = self.shift(part.given, m, n, backward=part.backward)
            i, j = torch.arange(m, device=s.device)[:, None], torch.arange(n, device=s.device)
            s = s - slopes[:, None, None] * (i + shift - j).abs()
        return s.masked_fill(~part.mask, -math.inf), tanh

    # The forward's running softmax.

    def finite(self, largest: Tensor) -> Tensor:
        """Return the subtrahend of the scores before exp: 0 for rows without a key so far."""
        return largest.masked_fill(largest == -math.inf, 0)

    def rescaled(self, accumulator: Tensor, factor: Tensor) -> Tensor:
        """Rescale the sum over earlier tiles when the maximum moves."""
        return accumulator * factor

    def tiles(self, n: int) -> Iterator[slice]:
        """Yield the keys, tile by tile."""
        for start in range(0, n, self.tile):
            yield slice(start, min(start + self.tile, n))

    def softmax(self, part: Part) -> tuple[Tensor, Tensor]:
        """Return out [B, h_q, M, d_v] and lse [B, h_q, M] of a part, in fp32."""
        scores, _ = self.scores(part)
        w = self.keep(part)
        total = scores.new_zeros((*scores.shape[:3], 1))
        largest = torch.full_like(total, -math.inf)
        out = part.v.new_zeros((*scores.shape[:3], part.v.shape[3]))
        for keys in self.tiles(scores.shape[3]):
            s = scores[..., keys]
            larger = torch.maximum(largest, s.amax(-1, keepdim=True))
            p = torch.exp(s - self.finite(larger))
            factor = torch.exp(largest - self.finite(larger))
            total = total * factor + p.sum(-1, keepdim=True)
            weights = p if w is None else p * w[..., keys]
            out = self.rescaled(out, factor) + weights @ part.v[..., keys, :]
            largest = larger
        return self.closed(part, out, total, largest)

    def closed(
        self, part: Part, out: Tensor, total: Tensor, largest: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return out and lse for complete sums."""
        sink = part.given.get("sink")
        if sink is not None:
            z = sink[:, None, None]
            larger = torch.maximum(largest, z)
            factor = torch.exp(largest - larger)
            out, total = out * factor, total * factor + torch.exp(z - larger)
            largest = larger
        lse = self.finite(largest) + total.log()
        return out / total.masked_fill(total == 0, 1), lse[..., 0]

    # The ops.

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, **given: Unpack[Given]
    ) -> tuple[Tensor, Tensor]:
        """ATTENTION_FORWARD."""
        b, s_q, h_q, _ = q.shape
        out = torch.empty((b, s_q, h_q, v.shape[3]), dtype=q.dtype, device=q.device)
        lse = torch.empty((b, h_q, s_q), dtype=torch.float32, device=q.device)
        for part in self.parts(q, k, v, given):
            rows, statistic = self.softmax(part)
            heads_first(out)[:, :, part.rows] = rows.to(q.dtype)
            lse[:, :, part.rows] = statistic
        return out, lse

    def row_products(self, do: Tensor, out: Tensor) -> Tensor:
        """Return delta [b, h, s] for do and out, all in fp32."""
        return heads_first(do * out).sum(-1)

    def delta(self, out: Tensor, do: Tensor) -> tuple[Tensor]:
        """ATTENTION_DELTA."""
        wide = (self.read(name, each, backward=True) for name, each in (("do", do), ("out", out)))
        return (self.row_products(*wide),)

    def probabilities(self, scores: Tensor, lse: Tensor) -> Tensor:
        """Return P for the scores and the row's lse; 0 for rows without keys."""
        return torch.exp(scores - lse.masked_fill(lse == -math.inf, math.inf)[..., None])

    def score_gradients(self, p: Tensor, dp: Tensor, delta: Tensor) -> Tensor:
        """dS."""
        return p * (dp - delta[..., None])

    def dq(self, part: Part, dx: Tensor) -> Tensor:
        """The gradient of q."""
        return part.scale * (dx @ part.k)

    def dk(self, part: Part, dx: Tensor) -> Tensor:
        """The gradient of k, head by query head."""
        return part.scale * (dx.mT @ part.q)

    def dv(self, weights: Tensor, do: Tensor) -> Tensor:
        """The gradient of v, head by query head."""
        return weights.mT @ do

    def backward(
        self,
        do: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        **given: Unpack[Given],
    ) -> tuple[Tensor | None, ...]:
        """ATTENTION_BACKWARD."""
        wide_do, wide_out = (
            self.read(name, each, backward=True) for name, each in (("do", do), ("out", out))
        )
        delta = self.row_products(wide_do, wide_out)
        dq, dk, dv = (torch.empty(each.shape, dtype=q.dtype, device=q.device) for each in (q, k, v))
        bias, sink = given.get("bias"), given.get("sink")
        dbias = None
        group = q.shape[2] // k.shape[2]
        for part in self.parts(q, k, v, given, backward=True):
            scores, tanh = self.scores(part)
            rows_do = heads_first(wide_do)[:, :, part.rows]
            p, w = self.probabilities(scores, lse[:, :, part.rows]), self.keep(part)
            dp = rows_do @ part.v.mT
            dp = dp if w is None else dp * w
            ds = self.score_gradients(p, dp, delta[:, :, part.rows]).masked_fill(~part.mask, 0)
            if bias is not None:
                dbias = ds.sum_to_size(bias.shape).to(bias.dtype)
            dx = ds if tanh is None else ds * (1 - tanh * tanh)
            heads_first(dq)[:, :, part.rows] = self.dq(part, dx).to(q.dtype)
            weights = p if w is None else p * w
            for target, each in ((dk, self.dk(part, dx)), (dv, self.dv(weights, rows_do))):
                total = each.unflatten(1, (-1, group)).sum(2)
                heads_first(target)[:, :, part.keys] = total.to(q.dtype)
        dsink = None
        if sink is not None:
            dsink = -(torch.exp(sink[:, None] - lse) * delta).sum((0, 2))
        return dq, dk, dv, dbias, dsink

    def gradients(
        self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, **given: Unpack[Given]
    ) -> tuple[Tensor | None, ...]:
        """ATTENTION_GRADIENTS: the forward, and the backward on what it stored."""
        out, lse = self.forward(q, k, v, **given)
        return self.backward(do, q, k, v, out, lse, **given)
