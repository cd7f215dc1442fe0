"""What every attention kernel shares, as jit functions: scores, ranges of keys, the dropout mask.

A tile's scores are S = softcap(scale q.k) + bias - slope |i + shift - j|, natural. Kernels whose
scores are scale q.k alone keep them in base 2, where the exponential is one FMA and an ex2.

Query i may attend to keys i + shift - left to i + shift + right, both ends included, and to none
outside of its sequence; causal is right <= 0. Unlimited sides are UNLIMITED, so that one compiled
kernel serves every mask: boundary tiles go through a loop that masks, the others through one that
doesn't.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
UNLIMITED = 2**30

# One key head to a query head is worth a kernel of its own, and so are adjacent rows of a bias.
_SPECIALISED = {"group", "stride_bn"}


class Twins(NamedTuple):
    """Two kernels of one function: for tensors at 16-byte addresses, and at any."""

    aligned: Any
    any: Any

    def of(self, vector: int) -> Any:
        """The kernel for loads of `vector` elements."""
        return self.aligned if vector > 1 else self.any


def compiled(function: Callable[..., object], *vectors: str) -> Any:
    """The kernel of a function, whose tensors called `vectors` may be at 16-byte addresses.

    What else the JIT could tell of a number or an address is left out, so that one compiled kernel
    serves every size, stride and mask: how wide loads may be is said by VECTOR alone.
    """
    names = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.annotation is inspect.Parameter.empty
    ]
    pointers = [name for name in names if name.endswith("_ptr") or name.startswith("cu_")]
    numbers = [name for name in names if name not in pointers and name not in _SPECIALISED]
    loose = [name for name in pointers if name not in vectors]
    return triton.jit(function, do_not_specialize=numbers, do_not_specialize_on_alignment=loose)


def compiled_twice(function: Callable[..., object], *vectors: str) -> Twins:
    """`compiled` with `vectors`, and with none."""
    return Twins(compiled(function, *vectors), compiled(function))


@triton.jit
def tanh(x):
    """1 - 2 / (exp(2 x) + 1): an absolute error of about 2^-23, right at both infinities."""
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def score_tile(
    x,
    bias_base,
    slope,
    offs_m,
    offs_n,
    shift,
    mask,
    stride_bm,
    stride_bn,
    softcap,
    BIAS: tl.constexpr,
    ALIBI: tl.constexpr,
    SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Natural scores S of x = scale q.k, and t = tanh(x / softcap), which is x without a softcap.

    offs_m, offs_n and mask broadcast to x's shape; masked elements get S = -inf.
    """
    t = x
    if SOFTCAP:
        t = tanh(x / softcap)
        x = softcap * t
    if BIAS:
        offs = offs_m.to(tl.int64) * stride_bm + offs_n.to(tl.int64) * stride_bn
        x += tl.load(bias_base + offs, mask=mask, other=0.0).to(tl.float32)
    if ALIBI:
        x -= slope * tl.abs(offs_m + shift - offs_n).to(tl.float32)
    if MASKED:
        x = tl.where(mask, x, float("-inf"))
    return x, t


@triton.jit
def keep_tile(
    seed_low, seed_high, threshold, batch_head, start_m, start_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Which elements of a tile dropout keeps, [BLOCK_M, BLOCK_N]; start_n is a multiple of 4.

    Philox 4x32-10 at the counter (key // 4, query, batch_head, 0) draws for four keys at once.
    seed_low, seed_high and threshold are words of 32 bits, held in signed integers.
    """
    queries = (start_m + tl.arange(0, BLOCK_M))[:, None]
    return keep_rows(seed_low, seed_high, threshold, batch_head, queries, start_n, BLOCK_M, BLOCK_N)


@triton.jit
def keep_rows(
    seed_low, seed_high, threshold, batch_head, queries, start_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """As `keep_tile`, for any queries [BLOCK_M, 1], of one head or each of its own."""
    fours = (start_n // 4 + tl.arange(0, BLOCK_N // 4))[None, :]
    queries, fours = tl.broadcast(queries, fours)
    zero = tl.zeros_like(queries)
    seed = (seed_high.to(tl.int64) << 32) | (seed_low.to(tl.int64) & 0xFFFFFFFF)
    r0, r1, r2, r3 = tl.philox(seed, fours, queries, zero + batch_head, zero)
    drawn = tl.join(tl.join(r0, r2), tl.join(r1, r3))  # [BLOCK_M, BLOCK_N / 4, 2, 2]
    return tl.reshape(drawn, (BLOCK_M, BLOCK_N)) >= threshold.to(tl.uint32, bitcast=True)


@triton.jit
def sequence(cu_q, cu_k, batch, s_q, s_kv):
    """Where the batch's queries and keys begin, and how many there are."""
    start_q, start_k = 0, 0
    if cu_q is not None:
        start_q = tl.load(cu_q + batch)
        start_k = tl.load(cu_k + batch)
        s_q = tl.load(cu_q + batch + 1) - start_q
        s_kv = tl.load(cu_k + batch + 1) - start_k
    return start_q, start_k, s_q, s_kv


@triton.jit
def attended(s_q, s_kv, shift, left, right):
    """The keys that some query of the sequence may attend to: from the first, up to the second."""
    first = tl.maximum(0, shift - left)
    return first, tl.maximum(first, tl.minimum(s_kv, s_q + shift + right))


@triton.jit
def key_tiles(start_m, s_q, s_kv, shift, left, right, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The key tiles of a block of queries: from the first, full ones from and to, up to the last.

    All four are numbers of tiles. Tiles in the middle need no mask: each query of the block, the
    sequence's end not minded, may attend to each of their keys.
    """
    last_m = tl.minimum(start_m + BLOCK_M, s_q) - 1
    return key_tiles_of(start_m, last_m, s_kv, shift, left, right, BLOCK_N)


@triton.jit
def key_tiles_of(start_m, last_m, s_kv, shift, left, right, BLOCK_N: tl.constexpr):
    """As `key_tiles`, for the queries from start_m to last_m."""
    low = tl.maximum(0, start_m + shift - left) // BLOCK_N
    high = tl.cdiv(tl.maximum(0, tl.minimum(s_kv, last_m + shift + right + 1)), BLOCK_N)
    low = tl.minimum(low, high)
    full_low = tl.cdiv(tl.maximum(0, last_m + shift - left), BLOCK_N)
    full_high = tl.maximum(0, tl.minimum(s_kv, start_m + shift + right + 1)) // BLOCK_N
    full_low = tl.minimum(tl.maximum(full_low, low), high)
    full_high = tl.minimum(tl.maximum(full_high, full_low), high)
    return low, full_low, full_high, high


@triton.jit
def query_tiles(
    start_n, s_q, s_kv, shift, left, right, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """The query tiles of a block of keys, as `key_tiles` has them; full ones hold no tail."""
    last_n = tl.minimum(start_n + BLOCK_N, s_kv) - 1
    low = tl.maximum(0, start_n - shift - right) // BLOCK_M
    high = tl.cdiv(tl.maximum(0, tl.minimum(s_q, last_n - shift + left + 1)), BLOCK_M)
    low = tl.minimum(low, high)
    full_low = tl.cdiv(tl.maximum(0, last_n - shift - right), BLOCK_M)
    full_high = tl.maximum(0, tl.minimum(s_q, start_n - shift + left + 1)) // BLOCK_M
    full_low = tl.minimum(tl.maximum(full_low, low), high)
    full_high = tl.minimum(tl.maximum(full_high, full_low), high)
    return low, full_low, full_high, high
