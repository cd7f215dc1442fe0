"""Attention as an idealised kernel computes it: fp32, with the casts that `Numerics` declares.

Written from the closed forms of `oracles.attention`, on the case's device, a piece at a time; [.]
is cast before a product:

    x = scale q.k        t = 1 - 2 / (exp(2 x / c) + 1)       S = c t + bias - slope |i + shift - j|
    p = exp(S - m)       out = [w p] v / l                     lse = m + log l
    P = exp(S - lse)     dS = P (w dP - D)                     dX = dS (1 - t^2)
    dq = scale [dX] k    dk = scale [dX]^T q                   dv = [w P]^T do

Every operation rounds to fp32; exponentials below its normal numbers are 0, as a GPU's fast ones
are, unless the kernel says that it keeps them. [.] rounds to the halves' own type and leaves fp32
as it is; with tf32_operands each operand of a product loses its last 13 bits. A factor (scale,
dropout's) comes before a cast or after it, whichever leaves less of it above the subnormals. There
are no tiles: what rescaling costs stands in the bound in full, so that it hardly shows in a ratio
to it. An exponential of S - m', m' a tile's maximum, is cast with another error than that of S - m,
and `orders.subtracted` has such numbers. docs/derivations/verdict.md says what the comparison is
sound for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernel_workbench.oracles.attention.non_finite import finite_part
from kernel_workbench.oracles.attention.probes import NEEDLES
from kernel_workbench.oracles.attention.scores import Piece, Problem
from kernel_workbench.oracles.attention.values import addends_vary
from kernel_workbench.oracles.cases.distributions import INTEGERS
from kernel_workbench.oracles.op import Case, Inputs, Numerics, Outputs, optional, required
from kernel_workbench.oracles.orders import sides, subtracted
from kernel_workbench.oracles.rounding import FLUSHED, UNIT_ROUNDOFF, tf32, whole_products

# There errors come from underflow, or from the rounding of scores of thousands, which is as large
# as the halves' casts: few in a block, of very different sizes, and not the same from one order of
# operations to another. Nothing is rounded in probes.
_OTHER_FAMILIES = frozenset(
    {"subnormals", "qk_subnormals", "logits1e4", "bias_large", INTEGERS, NEEDLES}
)
_DELTA_ELEMENTS = 2**24


def comparable(case: Case, numerics: Numerics) -> bool:
    """Return True if a kernel's errors on the case can be compared with those of an emulation.

    Sums that don't round to nearest err to one side, by more than those of the emulation: they show
    unless a cast, or a cut operand, is larger.
    """
    varied = addends_vary(case) and case.distribution not in _OTHER_FAMILIES
    casts = case.dtype != torch.float32 or numerics.tf32_operands
    return varied and (casts or _nearest(numerics))


def _nearest(numerics: Numerics) -> bool:
    return numerics.accumulation_roundoff <= UNIT_ROUNDOFF[torch.float32]


@dataclass(frozen=True, slots=True)
class _Way:
    """A kernel's declared arithmetic, as operations on fp32 tensors."""

    dtype: torch.dtype  # of the operands
    numerics: Numerics

    def cast(self, x: Tensor) -> Tensor:
        """Cast as P and dS are cast before a product."""
        return x if self.dtype == torch.float32 else x.to(self.dtype).float()

    def exp(self, x: Tensor) -> Tensor:
        """Return e to the x; 0 below fp32's normal numbers where fast exponentials have none."""
        result = torch.exp(x)
        return (
            result if self.numerics.gradual_underflow else result.masked_fill_(result < FLUSHED, 0)
        )

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """a @ b."""
        if self.numerics.tf32_operands:
            a, b = tf32(a), tf32(b)
        return a @ b


class _Tile:
    """The scores of a piece in fp32: S [B, H, R, K], -inf where masked, and tanh(x / softcap)."""

    def __init__(self, piece: Piece, way: _Way) -> None:
        problem = piece.problem
        self.piece, self.way = piece, way
        self.q, self.k = self.rows(problem.q), self.keys(problem.k)
        s = way.product(self.q, self.k.mT).mul_(problem.scale)
        self.tanh = None
        if problem.softcap is not None:
            c = problem.softcap
            self.tanh = 1 - 2 / (torch.exp(2 * (s / c)) + 1)
            s = c * self.tanh
        bias, slopes = optional(problem.inputs, "bias"), optional(problem.inputs, "alibi_slopes")
        if bias is not None:
            s = s + piece.bias_of(bias).float()
        if slopes is not None:
            s = s - piece.per_head(slopes).float() * piece.distance.abs()
        self.s = s.masked_fill_(~piece.mask, -torch.inf)
        keep = piece.keep()
        self.keep = None if keep is None else keep.float()

    def rows(self, tensor: Tensor) -> Tensor:
        """Return the piece's rows of [b, s_q, h_q, c], as fp32 [B, H, R, c]."""
        return self.piece.rows_of(tensor).float()

    def keys(self, tensor: Tensor) -> Tensor:
        """Return the piece's keys of [b, s_kv, h_kv, c], as fp32 [B, H, K, c]."""
        return self.piece.keys_of(tensor).float()

    def statistic(self, tensor: Tensor) -> Tensor:
        """Return the piece's rows of a statistic [b, h_q, s_q], as fp32 [B, H, R, 1]."""
        return self.piece.statistic_of(tensor).float()

    def softmax(self) -> tuple[Tensor, Tensor]:
        """out before its last cast [B, H, R, d_v], and lse [B, H, R, 1]."""
        problem, way = self.piece.problem, self.way
        m = self.s.amax(-1, keepdim=True)
        sink = optional(problem.inputs, "sink")
        z = None if sink is None else _by_powers_of_two(self.piece.per_head(sink).float())
        if z is not None:
            m = m.maximum(z)
        m = subtracted(m.masked_fill(m == -torch.inf, 0))
        p = way.exp(self.s - m)
        total = p.sum(-1, keepdim=True)
        if z is not None:
            total = total + way.exp(z - m)
        weights = way.cast(p if self.keep is None else p * self.keep)
        out = way.product(weights, self.keys(required(problem.inputs, "v")))
        out = out / total.masked_fill(total == 0, 1)
        if self.keep is not None:
            out = out * problem.keep_scale
        return out, m + total.log()


def _by_powers_of_two(sink: Tensor) -> Tensor:
    """Return a sink as a kernel has it that computes with powers of two."""
    return sink * math.log2(math.e) * math.log(2)


def _forward(problem: Problem, way: _Way) -> dict[str, Tensor]:
    v, sink = required(problem.inputs, "v"), optional(problem.inputs, "sink")
    b, s_q, h_q, _ = problem.q.shape
    out = problem.q.new_zeros((b, s_q, h_q, v.shape[3]))
    lse = problem.q.new_full((b, h_q, s_q), -torch.inf, dtype=torch.float32)
    if sink is not None:
        lse[:] = _by_powers_of_two(sink.float())[:, None]
    for piece in problem.pieces():
        rows, statistic = _Tile(piece, way).softmax()
        piece.write_rows(out, rows)
        piece.write_statistic(lse, statistic)
    return {"out": out, "lse": lse}


def _delta(do: Tensor, out: Tensor) -> Tensor:
    """Return delta [b, h, s] in fp32, of tensors [b, s, h, c]."""
    b, s, h, width = do.shape
    result = do.new_zeros((b, h, s), dtype=torch.float32)
    step = max(1, _DELTA_ELEMENTS // max(b * h * width, 1))
    for start in range(0, s, step):
        rows = slice(start, start + step)
        result[..., rows] = (do[:, rows].float() * out[:, rows].float()).sum(-1).transpose(1, 2)
    return result


class _Gradients:
    """Accumulators in fp32 of dk, dv and dbias, and dq, of a stored out and lse."""

    def __init__(self, problem: Problem, way: _Way) -> None:
        inputs, single = problem.inputs, torch.float32
        self.problem, self.way = problem, way
        self.do, self.v = required(inputs, "do"), required(inputs, "v")
        self.lse = required(inputs, "lse")
        self.d = _delta(self.do, required(inputs, "out"))
        bias = optional(inputs, "bias")
        self.dq = torch.zeros_like(problem.q, memory_format=torch.contiguous_format)
        self.dk, self.dv = (
            tensor.new_zeros(tensor.shape, dtype=single) for tensor in (problem.k, self.v)
        )
        self.dbias = None if bias is None else bias.new_zeros(bias.shape, dtype=single)
        for piece in problem.pieces():
            self._add(_Tile(piece, way))

    def _add(self, tile: _Tile) -> None:
        problem, way, piece = self.problem, self.way, tile.piece
        lse, do = tile.statistic(self.lse), tile.rows(self.do)
        p = way.exp(tile.s - lse.masked_fill(lse == -torch.inf, torch.inf))
        dp, weights, keep_scale = way.product(do, tile.keys(self.v).mT), p, 1.0
        if tile.keep is not None:
            weights, keep_scale = p * tile.keep, problem.keep_scale
            dp = dp * (tile.keep * keep_scale)
        factor = dp - tile.statistic(self.d)
        ds = way.cast(p) * way.cast(factor) if way.numerics.makes("factors") else p * factor
        if self.dbias is not None:
            piece.add_bias(self.dbias, way.cast(ds) if way.numerics.makes("bias_gradient") else ds)
        dx = ds if tile.tanh is None else ds * (1 - tile.tanh.square())
        before, after = sides(*sorted((1.0, problem.scale), key=abs))
        dx = way.cast(dx * before)
        piece.write_rows(self.dq, way.product(dx, tile.k) * after)
        piece.add_keys(self.dk, way.product(dx.mT, tile.q) * after)
        before, after = sides(1.0, keep_scale)
        weights = weights if before == 1 else weights * before
        piece.add_keys(self.dv, way.product(way.cast(weights).mT, do) * after)

    def outputs(self, group: int) -> Outputs:
        """The gradients in their dtypes; dk and dv summed over so many heads, cast one by one."""
        q, bias = self.problem.q, optional(self.problem.inputs, "bias")
        result: Outputs = {"dq": self.dq}
        for name, total in (("dk", self.dk), ("dv", self.dv)):
            if group > 1:
                total = self.way.cast(total).unflatten(2, (-1, group)).sum(3)
            result[name] = total.to(q.dtype)
        if self.dbias is not None and bias is not None:
            result["dbias"] = self.dbias.to(bias.dtype)
        sink = optional(self.problem.inputs, "sink")
        if sink is not None:
            share = self.way.exp(sink.float()[:, None] - self.lse.float())
            share = share.masked_fill(self.lse == -torch.inf, 0)
            result["dsink"] = -(share * self.d).sum((0, 2))
        return result


def _backward(case: Case, inputs: Inputs, way: _Way) -> Outputs:
    problem = Problem.of(case, inputs)
    group = problem.group if way.numerics.makes("partials") else 1
    if group > 1:
        apart = dict(inputs)
        for name in ("k", "v"):
            apart[name] = required(inputs, name).repeat_interleave(group, 2)
        problem = Problem.of(case, apart)
    return _Gradients(problem, way).outputs(group)


@whole_products()
def emulate_forward(case: Case, inputs: Inputs, numerics: Numerics) -> Outputs:
    """out and lse as ATTENTION_FORWARD has them; nothing where they aren't comparable.

    No cast is in lse: of sums that don't round to nearest it is left out, unless operands are cut.
    """
    if not comparable(case, numerics):
        return {}
    result: Outputs = {
        **_forward(Problem.of(case, finite_part(inputs)), _Way(case.dtype, numerics))
    }
    if not _nearest(numerics) and not numerics.tf32_operands:
        del result["lse"]
    return result


def emulate_delta(case: Case, inputs: Inputs, numerics: Numerics) -> Outputs:
    """Return an emulated delta, which has no cast; {} where the case isn't comparable."""
    if not comparable(case, numerics) or not _nearest(numerics):
        return {}
    finite = finite_part(inputs)
    return {"delta": _delta(required(finite, "do"), required(finite, "out"))}


@whole_products()
def emulate_backward(case: Case, inputs: Inputs, numerics: Numerics) -> Outputs:
    """dq, dk, dv, dbias and dsink of the given out and lse; nothing where not comparable."""
    if not comparable(case, numerics):
        return {}
    return _backward(case, finite_part(inputs), _Way(case.dtype, numerics))


@whole_products()
def emulate_gradients(case: Case, inputs: Inputs, numerics: Numerics) -> Outputs:
    """Return the emulated gradients, of the emulation's own out and lse."""
    if not comparable(case, numerics):
        return {}
    finite, way = finite_part(inputs), _Way(case.dtype, numerics)
    stored = _forward(Problem.of(case, finite), way)
    return _backward(case, {**finite, **stored}, way)
