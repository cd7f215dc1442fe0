"""Attention as a correct kernel computes it, in fp32 with declared casts, on a CPU.

It follows the formulas: keys in tiles with a running softmax, products in several orders of
summation (a truncating one among them, as tensor cores have it), exponentials in base e or 2,
tf32 operands, keys split over programs. `Way.planted` names a mistake to make.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernel_workbench.oracles.attention.dropout import keep_mask
from kernel_workbench.oracles.op import Inputs, Numerics

LOG2E = torch.tensor(1 / math.log(2), dtype=torch.float32)
LN2 = torch.tensor(math.log(2), dtype=torch.float32)


def truncated(x: Tensor, bits: int) -> Tensor:
    """Return float64 x cut to `bits` significant bits, toward zero."""
    _, exponent = torch.frexp(x)
    quantum = torch.ldexp(torch.ones_like(x), exponent - bits)
    return torch.trunc(x / quantum) * quantum


def tf32(x: Tensor) -> Tensor:
    """Return fp32 x without its last 13 bits."""
    return (x.contiguous().view(torch.int32) & -8192).view(torch.float32)


def _sequential(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros(*a.shape[:-1], b.shape[-1])
    for index in range(a.shape[-1]):
        total = total + a[..., index, None] * b[..., index, None, :]
    return total


def _truncating(a: Tensor, b: Tensor) -> Tensor:
    """Add 16 exact products and the sum so far, cut to 24 bits of the largest; cut the sum."""
    a, b = a.double(), b.double()
    total = a.new_zeros(*a.shape[:-1], b.shape[-1])
    for start in range(0, a.shape[-1], 16):
        block = slice(start, start + 16)
        addends = a[..., block, None] * b[..., None, block, :]
        addends = torch.cat([addends, total[..., None, :]], -2)
        _, exponent = torch.frexp(addends.abs().amax(-2, keepdim=True))
        quantum = torch.ldexp(torch.ones_like(addends[..., :1, :]), exponent - 24)
        total = truncated((torch.trunc(addends / quantum) * quantum).sum(-2), 24)
    return total.float()


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "matmul": torch.matmul,
    "sequential": _sequential,
    "truncating": _truncating,
}


@dataclass(frozen=True)
class Way:
    """How the kernel computes.

    product   the order of summation, of PRODUCTS
    base2     scores in base 2, log2(e) folded into the scale, where there is no softcap
    coarse    exponentials off by 2^-22 by their argument, as a GPU's may be; exp(0) is exact
    folded    the scale is multiplied into dS before dS is cast, not into dq and dk
    splits    programs that share a row's keys, in the forward
    """

    product: str = "matmul"
    base2: bool = False
    coarse: bool = False
    folded: bool = False
    tf32: bool = False
    key_tile: int = 32
    splits: int = 1
    rounds_factors: bool = False
    half_partials: bool = False
    half_bias_gradient: bool = False
    planted: str = ""

    @property
    def numerics(self) -> Numerics:
        """Return such a kernel's declaration; a CPU keeps subnormals."""
        casts = {
            "factors": self.rounds_factors,
            "partials": self.half_partials,
            "bias_gradient": self.half_bias_gradient,
        }
        return Numerics(
            accumulation_roundoff=2.0**-23 if self.product == "truncating" else 2.0**-24,
            gradual_underflow=True,
            tf32_operands=self.tf32,
            key_tile=self.key_tile,
            casts=" ".join(name for name, is_cast in casts.items() if is_cast),
        )

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a @ b; both are fp32."""
        if self.tf32:
            a, b = tf32(a), tf32(b)
        return PRODUCTS[self.product](a.contiguous(), b.contiguous())

    def exp(self, x: Tensor, *, two: bool = False) -> Tensor:
        """Return e to the power x, or 2 to the power x."""
        made = torch.exp2(x) if two else torch.exp(x)
        if not self.coarse:
            return made
        sign = (x.clamp(min=-128) * 2**10).floor() % 3 - 1  # -1, 0, 1
        return torch.where(x == 0, made, made * (1 + sign * (2.0**-22 - 2.0**-24)))

    def lies(self, planted: str) -> bool:
        """Return True if this is the planted mistake."""
        return self.planted == planted


def _tensor(inputs: Inputs, name: str) -> Tensor | None:
    value = inputs.get(name)
    return value if isinstance(value, Tensor) else None


def _float(inputs: Inputs, name: str) -> float | None:
    value = inputs.get(name)
    return float(value) if isinstance(value, int | float) else None


class Emulation:
    """A call: tensors in fp32 [b, h_q, s, d], keys and values expanded over their group."""

    def __init__(self, inputs: Inputs, way: Way) -> None:
        self.inputs, self.way = inputs, way
        q, k, v, do = (_tensor(inputs, name) for name in ("q", "k", "v", "do"))
        assert q is not None and k is not None and v is not None
        self.dtype = q.dtype
        self.q = q.float().transpose(1, 2)
        self.group = q.shape[2] // k.shape[2]
        self.k, self.v = (self._expanded(each.float().transpose(1, 2)) for each in (k, v))
        self.do = None if do is None else do.float().transpose(1, 2)
        scale = _float(inputs, "scale")
        self.scale = torch.tensor(q.shape[3] ** -0.5 if scale is None else scale).float()
        self.softcap = _float(inputs, "softcap")
        p = _float(inputs, "dropout_p") or 0.0
        self.keep_scale = torch.tensor(1 / (1 - p)).float()
        if way.lies("scale of dropout left out"):
            self.keep_scale = torch.tensor(1.0)
        if way.lies("scale left out"):
            self.scale = torch.tensor(1.0)
        self.keep = self._keep(p, 0)
        self.attends = self._attends(corner=inputs.get("corner") == "bottom_right")
        # Keys without attention are masked when they are read: they may be NaN.
        unread = ~self.attends.any(0)[:, None]
        self.k, self.v = self.k.masked_fill(unread, 0), self.v.masked_fill(unread, 0)
        sink = _tensor(inputs, "sink")
        self.sink = None if sink is None else sink.float()[:, None, None]

    def _expanded(self, keys: Tensor) -> Tensor:
        if self.way.lies("heads interleaved, not grouped"):
            return keys.repeat(1, self.group, 1, 1)
        return keys.repeat_interleave(self.group, 1)

    def _keep(self, p: float, more: int) -> Tensor | None:
        if not p:
            return None
        b, h_q, s_q, _ = self.q.shape
        seed = self.inputs["dropout_seed"]
        assert isinstance(seed, int)
        blocks = torch.arange(b * h_q).view(b, h_q)
        return keep_mask(seed + more, p, blocks, torch.arange(s_q), range(self.k.shape[2]))

    def _attends(self, *, corner: bool) -> Tensor:
        s_q, s_kv = self.q.shape[2], self.k.shape[2]
        if self.way.lies("other corner"):
            corner = not corner
        distance = torch.arange(s_kv)[None] - torch.arange(s_q)[:, None]
        distance -= s_kv - s_q if corner else 0
        allowed = torch.ones(s_q, s_kv, dtype=torch.bool)
        window = self.inputs.get("window")
        left, right = window if isinstance(window, tuple) else (None, None)
        if self.inputs.get("causal"):
            right = 0
        if right is not None:
            allowed &= distance <= right + self.way.lies("mask one key too wide")
        if left is not None:
            allowed &= distance >= -left
        if self.way.lies("last key dropped"):
            allowed[:, -1] = False
        return allowed

    def cast(self, x: Tensor) -> Tensor:
        """Round to the operands' type, as for P and dS before a product."""
        return x.to(self.dtype).float()

    def scores(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return S, natural or in base 2, -inf where masked; tanh(x / c); the unmasked pairs."""
        way, inputs = self.way, self.inputs
        unit = LOG2E if self.two else torch.tensor(1.0)
        x = way.dot(self.q, self.k.mT) * (self.scale * unit)
        tanh = None
        if self.softcap is not None:
            tanh = 1 - 2 / (way.exp(2 * (x / self.softcap)) + 1)
            x = self.softcap * tanh
        bias, slopes = _tensor(inputs, "bias"), _tensor(inputs, "alibi_slopes")
        if bias is not None:
            x = x + bias.float() * unit
        if slopes is not None:
            s_q, s_kv = x.shape[-2:]
            shift = s_kv - s_q if inputs.get("corner") == "bottom_right" else 0
            distance = torch.arange(s_q)[:, None] + shift - torch.arange(s_kv)
            sign = -1 if way.lies("slopes added, not taken off") else 1
            x = x - (sign * slopes.float()[:, None, None] * unit) * distance.abs()
        return x.masked_fill(~self.attends, -torch.inf), tanh, self.attends

    @property
    def two(self) -> bool:
        """True if scores are in base 2."""
        return self.way.base2 and self.softcap is None

    def forward(self) -> dict[str, Tensor]:
        """Return out [b, s_q, h_q, d_v] in the operands' type, and lse [b, h_q, s_q]."""
        scores, _, _ = self.scores()
        step = -(-scores.shape[-1] // self.way.splits)
        parts = [
            self._share(scores[..., at : at + step], slice(at, at + step))
            for at in range(0, scores.shape[-1], step)
        ]
        m, total, acc = parts[0]
        if len(parts) > 1:
            m, total, acc = self._joined(parts)
        if self.sink is not None and not self.way.lies("sink left out"):
            z = self.sink * LOG2E if self.two else self.sink
            highest = torch.maximum(m, z)
            factor = self.way.exp(m - highest, two=self.two)
            total = total * factor + self.way.exp(z - highest, two=self.two)
            acc, m = acc * factor, highest
        dead = total == 0
        out = acc / total.masked_fill(dead, 1) * self.keep_scale
        m = m.masked_fill(dead, 0)
        if self.two and not self.way.lies("lse in base 2"):
            lse = (m + total.log2()) * LN2
        else:
            lse = m + (total.log2() if self.two else total.log())
        if self.sink is not None:
            lse = torch.where((scores == -torch.inf).all(-1, keepdim=True), self.sink, lse)
        return {"out": self._rows(out, self.dtype), "lse": lse[..., 0]}

    def _share(self, scores: Tensor, keys: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Return m, l and the accumulator of some keys, tile by tile."""
        way, two = self.way, self.two
        values = self.v[..., keys, :]
        m = torch.full((*scores.shape[:-1], 1), -torch.inf)
        total, acc = torch.zeros_like(m), torch.zeros(*scores.shape[:-1], values.shape[-1])
        for at in range(0, scores.shape[-1], way.key_tile):
            tile = scores[..., at : at + way.key_tile]
            highest = torch.maximum(m, tile.amax(-1, keepdim=True))
            base = highest.masked_fill(highest == -torch.inf, 0)
            if way.lies("P cast before the maximum is taken off"):
                p = self.cast(way.exp(tile, two=two)) * way.exp(-base, two=two)
            else:
                p = way.exp(tile - base, two=two)
            alpha = way.exp(m - base, two=two)
            if way.lies("accumulator not rescaled"):
                acc = acc / alpha.masked_fill(alpha == 0, 1)
            total = total * alpha + p.sum(-1, keepdim=True)
            if self.keep is not None:
                first = keys.start + at
                p = p * self.keep[..., first : first + tile.shape[-1]]
            p = self.cast(p)
            acc = acc * alpha + way.dot(p, values[..., at : at + way.key_tile, :])
            m = highest
        return m, total, acc

    def _joined(self, parts: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
        """Join splits, which store out and lse in fp32, as if they were keys."""
        lses = [self._split_lse(m, total) for m, total, _ in parts]
        m = torch.stack(lses).amax(0)
        base = m.masked_fill(m == -torch.inf, 0)
        weights = [self.way.exp(lse - base, two=self.two) for lse in lses]
        total, acc = torch.zeros_like(m), torch.zeros_like(parts[0][2])
        for weight, (_, own, share) in zip(weights, parts, strict=True):
            total = total + weight
            acc = acc + weight * (share / own.masked_fill(own == 0, 1))
        return m, total, acc

    def _split_lse(self, m: Tensor, total: Tensor) -> Tensor:
        return m + (total.log2() if self.two else total.log())

    def _rows(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        return value.to(dtype).transpose(1, 2)

    def delta(self, out: Tensor) -> Tensor:
        """Return D [b, h_q, s_q] of the stored out."""
        assert self.do is not None
        d = (self.do * out.float().transpose(1, 2)).sum(-1)
        if self.way.lies("delta off by 2^-9"):
            d = d * (1 + 2.0**-9)
        return self.cast(d) if self.way.lies("delta in the half") else d

    def backward(self, out: Tensor, lse: Tensor) -> dict[str, Tensor]:
        """Return dq, dk, dv, and dbias and dsink if present, for a stored out and lse."""
        way, do = self.way, self.do
        assert do is not None
        scores, tanh, attends = self.scores()
        rows = lse.masked_fill(lse == -torch.inf, torch.inf)[..., None]
        p = way.exp(scores - (rows * LOG2E if self.two else rows), two=self.two)
        p = p.masked_fill(~attends, 0)
        keep = self.keep
        if way.lies("other mask in the backward") and keep is not None:
            keep = self._keep(_float(self.inputs, "dropout_p") or 0.0, 1)
        dp, weights = way.dot(do, self.v.mT), p
        if keep is not None:
            dp, weights = dp * keep * self.keep_scale, p * keep * self.keep_scale
        d = self.delta(out)[..., None]
        factor = dp - (torch.zeros_like(d) if way.lies("delta left out") else d)
        if way.rounds_factors or way.lies("factors rounded"):
            ds = self.cast(p) * self.cast(factor)
        else:
            ds = p * factor
        ds = ds.masked_fill(~attends, 0)
        made = {}
        bias = _tensor(self.inputs, "bias")
        if bias is not None:
            dbias = self.cast(ds) if way.half_bias_gradient else ds
            if way.lies("scale in dbias"):
                dbias = dbias * self.scale
            made["dbias"] = dbias.sum_to_size(bias.shape).to(bias.dtype)
        if tanh is not None and not way.lies("softcap's derivative left out"):
            ds = ds * (1 - tanh * tanh)
        after = torch.tensor(1.0) if way.folded else self.scale
        ds = self.cast(ds * self.scale if way.folded else ds)
        made["dq"] = self._rows(way.dot(ds, self.k) * after, self.dtype)
        twice = self.scale if way.lies("scale twice in dk") else torch.tensor(1.0)
        made["dk"] = self._keys(ds, self.q, after * twice)
        made["dv"] = self._keys(self.cast(weights), do, torch.tensor(1.0))
        if self.sink is not None:
            shares = -way.exp(self.sink[..., 0] - lse) * d[..., 0]
            sign = -1 if way.lies("sign of dsink") else 1
            made["dsink"] = sign * shares.sum((0, 2))
        return made

    def _keys(self, pairs: Tensor, rows: Tensor, factor: Tensor) -> Tensor:
        """Return pairs^T rows, summed over the group, [b, s_kv, h_kv, d] in the operands' type."""
        way = self.way
        if way.half_partials or way.lies("partials in the half"):
            each = self.cast(way.dot(pairs.mT, rows) * factor)
            total = each.unflatten(1, (-1, self.group)).sum(2)
        else:
            across = pairs.unflatten(1, (-1, self.group)).flatten(2, 3)
            total = way.dot(across.mT, rows.unflatten(1, (-1, self.group)).flatten(2, 3)) * factor
        return self._rows(total, self.dtype)

    def gradients(self) -> dict[str, Tensor]:
        """Compute the forward, and then its backward."""
        stored = self.forward()
        return self.backward(stored["out"], stored["lse"])
