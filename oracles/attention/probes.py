"""Exact probes of attention: values on which a correct kernel has no rounding at all.

Keys are codes in {+1, -1}^d and queries m times the code that each is to find, with columns that
take the query's own score off every score, so that

    S_ij = -2 m scale (columns in which the codes of key j and of i's needle differ)

is 0 at the needle and at most -800 elsewhere. Sums of these integers are exact in fp32 in any
order and in tf32, and 0 stays 0 under a factor of log2 e, folded in before a product or after: the
columns that subtract hold powers of two times m, so that a rounding of m scale log2 e is theirs
too. Hence the maximum is 0, P = exp(0) = 1 at the needle (of ex2.approx by its definition) and
P = exp(-800) = 0 elsewhere, in float64 too; l = 1, and with needle n(i)

    out_i = v_n(i)      dv_j = sum of do_i over the queries with n(i) = j      lse_i = 0

v is an integer of 7 bits over 16 and do one of 3 (0 where more than 9 queries find one key), so
that what is summed is exact, D = do.out = dP
and dS, dq, dk are 0. To a backward alone an out is given that is 1/16 off in one column: its
dS = do / 16 at the needles, dq = scale dS k and dk = scale sum dS q are known to the last bit too,
where scale is a power of two, as they are but for the rounding of scale and of scale dS elsewhere.

Each query beside a tile's edge finds, in one head or another, each key beside one, as far as there
are heads: a key, row or tile that is dropped, doubled or swapped shows, whatever the tiles are. A
key that the mask should hide would weigh nothing all the same; so under a mask some neighbours
share a code, and a query that may attend to one of two finds that one: if it sees the other too,
out is the mean of both.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernel_workbench.oracles.attention.geometry import (
    BACKWARD,
    DELTA,
    FORWARD,
    GRADIENTS,
    key_ranges,
    spans,
)
from kernel_workbench.oracles.cases.distributions import INTEGERS, Values
from kernel_workbench.oracles.op import Bound, Case, Inputs, Numerics, Outputs, required
from kernel_workbench.oracles.rounding import EPS_EXP, EPS_LOG, FLUSHED, TF32, UNIT_ROUNDOFF

NEEDLES = "needles"
EDGE_TILES = (256, 128, 64, 32, 16)  # of queries and of keys, the largest first

_GAP = 800.0  # exp(-_GAP) is 0 in float64
_LARGEST_FACTOR = 2.0**15  # of a query's element, in fp16
_LARGEST_DO = 7
_MOST_QUERIES = 9  # of one key, whose do isn't 0
_MOST = _MOST_QUERIES * _LARGEST_DO  # 8 bits hold |sum of do| over a key's queries
_PART = 1 / 16  # of v's integers, and what a backward's out is off by


def edges(length: int, *, beside: bool) -> list[int]:
    """Return indices where a tile of 16 to 256 may begin or end, those of larger tiles first.

    Args:
        length: how many indices there are.
        beside: with the indices next to these, too.

    Example:
        >>> edges(40, beside=False)[:4]
        [39, 0, 31, 32]
    """
    indices = [length - 1, 0]
    for tile in EDGE_TILES:
        for start in range(tile, length + 1, tile):
            indices += [start - 1, start]
            indices += [start + 1, start - 2] if beside else []
    indices += [1, length - 2] if beside else []
    return list(dict.fromkeys(index for index in indices if 0 <= index < length))


def _parts(number: int, largest: int) -> list[int]:
    """Powers of two, none above `largest`, that add up to `number`; empty where there are none."""
    if largest < 1:
        return []
    whole, rest = divmod(number, largest)
    return [largest] * whole + [1 << bit for bit in range(16) if rest >> bit & 1]


class _Codes:
    """The codes of n keys in d columns."""

    def __init__(self, n: int, d: int) -> None:
        """Raises ValueError where n codes don't fit into d columns."""
        bits = max(1, (n - 1).bit_length())
        for columns in range(d - 1, bits - 1, -1):
            needed = _GAP * math.sqrt(d) / (2 * (columns // bits))
            self.factor = 2.0 ** math.ceil(math.log2(needed))
            self.offsets = _parts(columns, int(_LARGEST_FACTOR / self.factor))
            if self.offsets and columns + len(self.offsets) <= d:
                break
        else:
            raise ValueError(f"{n} keys have no codes in {d} columns")
        # The number of columns that tell keys apart; columns after these subtract.
        self.columns = columns
        place = torch.arange(columns) % bits
        self.signs = 1.0 - 2.0 * (torch.arange(n)[:, None] >> place & 1)  # [n, columns]

    def keys(self, labels: Tensor, rest: Tensor) -> Tensor:
        """Return keys [n, d]; rest [n, d] has the signs of columns that no query asks about."""
        result = rest.clone()
        result[:, : self.columns] = self.signs[labels].to(rest)
        result[:, self.columns : self.columns + len(self.offsets)] = 1
        return result

    def queries(self, labels: Tensor, like: Tensor) -> Tensor:
        """Return queries [s_q, d] that find the keys of these labels, with like's dtype."""
        queries = like.new_zeros(like.shape)
        queries[:, : self.columns] = self.signs[labels].to(like)
        queries[:, self.columns : self.columns + len(self.offsets)] = -like.new_tensor(self.offsets)
        return self.factor * queries


def _partners(case: Case, n: int, number: int) -> Tensor:
    """For each of n keys the neighbour that shares its code, [n]; itself where none does.

    Two in three keys have one, in other places for the key heads numbered 0, 1 and 2; the first
    key and the last never do, so that of any three keys in a row a query can find one.
    """
    result = torch.arange(n)
    if case.options & {"causal", "window"}:
        start = 1 + number % 3
        first = torch.arange(start, max(start, n - 2), 3)
        result[first], result[first + 1] = first + 1, first.clone()
    return result


def _keys_to_find(wanted: Tensor, first: Tensor, last: Tensor, partners: Tensor) -> Tensor:
    """Return the key that each query is to find, [s_q]: as wanted, but among those in its reach.

    One at either end of these whose partner lies beyond is preferred.
    Raises ValueError where each key that a query may attend to has its partner beside it.
    """
    n = len(partners)
    result = wanted.maximum(first).minimum(last).clamp(0, n - 1)
    low, high = first.clamp(0, n - 1), last.clamp(0, n - 1)
    result = torch.where(partners[low] < low, low, result)
    result = torch.where(partners[high] > high, high, result)
    other = partners[result]
    doubled = (other != result) & (low <= other) & (other <= high) & (first <= last)
    # Every third key is alone: the next one on either side, and else the first or last in reach,
    # whose partner is then beyond.
    alone = (partners == torch.arange(n)).nonzero().flatten()
    place = torch.searchsorted(alone, result).clamp(max=len(alone) - 1)
    before, after = alone[(place - 1).clamp(min=0)], alone[place]
    for candidate in (before, after, high, low):
        its = partners[candidate]
        fits = (low <= candidate) & (candidate <= high)
        fits &= (its == candidate) | (its < low) | (its > high)
        result = torch.where(doubled & fits, candidate, result)
        doubled &= ~fits
    if bool(doubled.any()):
        row = int(doubled.nonzero()[0])
        raise ValueError(f"query {row} attends to no key whose code is its own")
    return result


def _ranks(keys: Tensor) -> Tensor:
    """Return how many earlier queries find the same key, for each query, [s_q]."""
    order = keys.argsort(stable=True)
    sorted_ = keys[order]
    first = torch.searchsorted(sorted_, sorted_)
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order)) - first)


def needles(values: Values) -> None:
    """Fill q, k, v and do as the module's text says."""
    case, tensors, draw = values.case, values.tensors, values.draw
    q, k = tensors["q"], tensors["k"]
    _integers(tensors["v"], 127, draw).mul_(_PART)
    if "do" in tensors:
        _integers(tensors["do"], _LARGEST_DO, draw)
    heads, group = q.shape[2], q.shape[2] // max(k.shape[2], 1)
    flipped = torch.where(k < 0, -1.0, 1.0)
    for batch, queries, keys in spans(case):
        s_q, s_kv = queries.stop - queries.start, keys.stop - keys.start
        if not s_q * s_kv:
            continue
        codes, ranges = _Codes(s_kv, q.shape[3]), key_ranges(case, s_q, s_kv)
        rows = torch.tensor(edges(s_q, beside=False))
        beside = torch.tensor(edges(s_kv, beside=True))
        # No more keys than there are heads to find them, but as many as rows can share.
        beside = beside[: max(heads * case.size("b"), group * len(rows) // _MOST_QUERIES)]
        for key_head in range(k.shape[2]):
            # One sign for each column, of queries and keys: heads differ by it, sequences don't, so
            # that a key of the next one may be taken for a needle.
            signs = flipped[batch, 0, key_head]
            partners = _partners(case, s_kv, batch * k.shape[2] + key_head)
            labels = partners.minimum(torch.arange(s_kv))
            rest = flipped[batch, keys, key_head]
            k[batch, keys, key_head] = signs * codes.keys(labels, rest)
            counts = torch.zeros(s_kv, dtype=torch.long)
            for head in range(key_head * group, (key_head + 1) * group):
                drawn = torch.rand(s_kv, generator=draw, device=q.device).argsort().cpu()
                wanted = drawn.repeat(-(-s_q // s_kv))[:s_q]
                turn = torch.arange(len(rows)) + batch * heads + head
                wanted[rows] = beside[turn % len(beside)]
                targets = _keys_to_find(wanted, *ranges, partners)
                like = q[batch, queries, head]
                q[batch, queries, head] = signs * codes.queries(labels[targets], like)
                if "do" in tensors:
                    silent = (_ranks(targets) + counts[targets] >= _MOST_QUERIES).to(q.device)
                    tensors["do"][batch, queries, head] *= ~silent[:, None]
                counts += torch.bincount(targets, minlength=s_kv)


def integers(values: Values) -> None:
    """Fill out and do so that each sum of their products is exact."""
    for name, largest in (("out", 127), ("do", _LARGEST_DO)):
        for tensor in values.some(name):
            _integers(tensor, largest, values.draw).mul_(_PART)


def _integers(tensor: Tensor, largest: int, draw: torch.Generator) -> Tensor:
    """Integers of 1 to `largest` in place of the values, with their signs."""
    drawn = torch.randint(1, largest + 1, tensor.shape, generator=draw, device=draw.device)
    return tensor.copy_(torch.where(tensor < 0, -drawn, drawn))


def shifted_out(out: Tensor) -> Tensor:
    """A backward's out [b, s_q, h_q, d_v]: in row i 1/16 less in column i mod d_v."""
    result = out.clone()
    row = torch.arange(out.shape[1], device=out.device)
    result[:, row, :, row % max(out.shape[3], 1)] -= _PART
    return result


def probe_bound(
    case: Case, inputs: Inputs, truth: Outputs, numerics: Numerics
) -> dict[str, Bound] | None:
    """The bounds of a case that is an exact probe, most of them 0; None of any other case."""
    if case.op == DELTA:
        if case.distribution != INTEGERS:
            return None
        return {"delta": Bound(torch.zeros_like(required(truth, "delta")), None)}
    if case.distribution != NEEDLES:
        return None
    limits = {FORWARD: _forward, BACKWARD: _backward, GRADIENTS: _backward}[case.op]
    return {
        name: Bound(limit, None) for name, limit in limits(case, inputs, truth, numerics).items()
    }


def _forward(case: Case, inputs: Inputs, truth: Outputs, numerics: Numerics) -> dict[str, Tensor]:
    """Return 0 for out; for lse the error of a logarithm of 1, 0 in rows that attend to nothing.

    A kernel may multiply q by scale log2(e) first. Its products round then, and the score of a
    needle is off by (d + 3) u_a times the sum of their sizes; the largest is subtracted from the
    others, so that out stays exact.
    """
    out, lse = required(truth, "out"), required(truth, "lse")
    q, k = required(inputs, "q"), required(inputs, "k")
    sizes = float(q.abs().double().sum(-1).amax()) if q.numel() else 0.0
    sizes *= float(k.abs().amax()) if k.numel() else 0.0
    folded = (case.size("d") + 3) * numerics.accumulation_roundoff * sizes * case.size("d") ** -0.5
    of_lse = torch.full_like(lse, EPS_LOG + folded).masked_fill(lse.isinf(), 0)
    return {"out": torch.zeros_like(out), "lse": of_lse}


def _backward(case: Case, inputs: Inputs, truth: Outputs, numerics: Numerics) -> dict[str, Tensor]:
    """Return what P, the factor scale and a cast of scale dS may still be off by; else 0.

    A weight that isn't 1 may be FLUSHED, where an exponential is cut off rather than let go to 0.
    """
    u, u_o = numerics.accumulation_roundoff, UNIT_ROUNDOFF[case.dtype]
    half = case.dtype != torch.float32
    tau = case.size("d") ** -0.5
    plain = math.frexp(tau)[0] == 0.5  # a power of two
    dq, dk, dv = (required(truth, name) for name in ("dq", "dk", "dv"))
    q, do, v = (required(inputs, name).double().abs() for name in ("q", "do", "v"))
    if not q.numel() or not v.numel():
        return {
            name: torch.zeros_like(gradient)
            for name, gradient in (("dq", dq), ("dk", dk), ("dv", dv))
        }
    rows, keys = q.shape[1] * q.shape[2], v.shape[1]
    # At most _MOST roundings of a sum's terms, and a few of scale.
    relative = (_MOST + 8) * u + (2 * TF32[0] if numerics.tf32_operands else 0)
    relative += u_o if half and not plain else 0
    columns = q.amax((0, 1, 2))  # |q|, alike in all queries of one length
    factor = 2 * v.shape[3] * float(do.amax()) * float(v.amax()) * FLUSHED
    shifted = case.op == BACKWARD
    of_dq = relative * dq.abs() + tau * keys * factor
    of_dk = tau * (shifted * relative * _MOST * _PART + rows * factor) * columns
    of_dv = torch.full_like(dv, rows * float(do.amax()) * FLUSHED)
    of_dv += 0 if half or shifted else (EPS_EXP + EPS_LOG + 4 * u) * _MOST
    return {
        "dq": _rounded(of_dq, dq, u_o, exact=half and plain),
        "dk": _rounded(of_dk.expand(dk.shape), dk, u_o, exact=half and plain),
        "dv": _rounded(of_dv, dv, u_o, exact=half or shifted),
    }


def _rounded(before: Tensor, value: Tensor, u_o: float, *, exact: bool) -> Tensor:
    """After the last cast: nothing is left of what isn't 0 where the type holds the value.

    The error before it is then less than half of the distance to the value's neighbours.
    """
    after = before * (1 + u_o) + (0 if exact else u_o) * value.abs()
    return after.masked_fill((value != 0) & exact, 0)
