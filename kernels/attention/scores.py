"""Shared jit functions of attention's kernels: scores, ranges of keys, the dropout mask.

A tile's scores are S = softcap(scale q.k) + bias - slope |i + shift - j|, natural. Kernels whose
scores are scale q.k alone keep them in base 2, where the exponential is one FMA and an ex2.

Query i may attend to keys i + shift - left to i + shift + right, both ends included, and to none
outside of its sequence; causal is right <= 0. Unlimited sides are UNLIMITED, so that one compiled
kernel serves every mask: boundary tiles go through a loop that masks, the others through one that
doesn't.

A kernel's own parameters are flat, so that integers aren't compiled in (which Triton does in a
tuple); inside it they go together as the named tuples below.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
UNLIMITED = 2**30


class ScoreOptions(NamedTuple):
    """The options that bend scores, add to them, or drop them, by the names of kernels' parameters.

    scale is the case's if scores are NATURAL, else scale log2(e).
    """

    bias_ptr: Any
    stride_bb: Any
    stride_bh: Any
    stride_bm: Any
    stride_bn: Any
    slopes_ptr: Any
    scale: Any
    softcap: Any
    keep_scale: Any
    seed_low: Any  # words of 32 bits, held in signed integers
    seed_high: Any
    threshold: Any
    SOFTCAP: Any
    DROPOUT: Any
    NATURAL: Any


class HeadScores(NamedTuple):
    """The options for one head, or [BLOCK_M, 1] for a head in each row."""

    options: Any
    bias_offset: Any
    slope: Any
    batch_head: Any


class SequenceMask(NamedTuple):
    """The keys that queries of a sequence may attend to; first to end: keys with a query."""

    s_q: Any
    s_kv: Any
    shift: Any
    left: Any
    right: Any
    first_key: Any
    end_key: Any


class WalkTiles(NamedTuple):
    """A block's tiles, by their numbers: all from low to high, full ones in the middle.

    Full tiles need no mask: each query of a tile may attend to each of its keys.
    """

    low: Any
    full_low: Any
    full_high: Any
    high: Any


class Head(NamedTuple):
    """The rows of one head: the first row's address, and strides in elements."""

    base: Any
    stride_m: Any
    stride_d: Any


@triton.jit
def head_of(
    ptr, stride_b, stride_m, stride_h, stride_d, batch, head, start,
    ADJACENT: tl.constexpr, VECTOR: tl.constexpr, WIDE: tl.constexpr = False,
):  # fmt: skip
    """Return a head from its row `start` on.

    All strides but the last arrive divided by VECTOR: the compiler knows that their product with it
    is a multiple, and so loads are VECTOR elements wide, whatever the numbers are. The product may
    not fit in 32 bits: batch and head are int64, and so are the strides within a head if it is
    WIDE.
    """
    if WIDE:
        stride_m = stride_m.to(tl.int64)
    stride_m = stride_m * VECTOR
    if ADJACENT:
        stride_d = 1
    elif WIDE:
        stride_d = stride_d.to(tl.int64)
    base = ptr + (batch * stride_b + head * stride_h) * VECTOR
    return Head(base + tl.cast(start, tl.int64) * stride_m, stride_m, stride_d)


@triton.jit
def load_rows(head, rows, columns, mask):
    """Load [rows, columns] of a head, 0 where masked."""
    offs = rows[:, None] * head.stride_m + columns[None, :] * head.stride_d
    return tl.load(head.base + offs, mask=mask, other=0.0)


@triton.jit
def load_tile(ptrs, there, within, MASKED: tl.constexpr, EVEN_D: tl.constexpr):
    """Load a tile of a walk: existing rows, and columns within the head."""
    if MASKED:
        tile = tl.load(ptrs, mask=there & within, other=0.0)
    elif EVEN_D:
        tile = tl.load(ptrs)
    else:
        tile = tl.load(ptrs, mask=within, other=0.0)
    return tile


@triton.jit
def terms_of(options, batch, head):
    """Return the offset of a head's bias, and its slope; neither is read if it doesn't exist.

    Triton 3.6 returns only tensors, so a kernel makes its `HeadScores` itself.
    """
    slope = 0.0
    if options.slopes_ptr is not None:
        slope = tl.load(options.slopes_ptr + head)
    return batch * options.stride_bb + head * options.stride_bh, slope


@triton.jit
def tanh(x):
    """Return 1 - 2 / (exp(2 x) + 1): an absolute error of about 2^-23, right at both infinities."""
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def score_tile(x, scores, offs_m, offs_n, shift, mask):
    """Return natural scores S of x = scale q.k, and t = tanh(x / softcap), or x without a softcap.

    offs_m, offs_n and mask broadcast to x's shape; masked elements get no bias.
    """
    options = scores.options
    t = x
    if options.SOFTCAP:
        t = tanh(x / options.softcap)
        x = options.softcap * t
    if options.bias_ptr is not None:
        offs = offs_m.to(tl.int64) * options.stride_bm + offs_n.to(tl.int64) * options.stride_bn
        bias_ptrs = options.bias_ptr + scores.bias_offset + offs
        x += tl.load(bias_ptrs, mask=mask, other=0.0).to(tl.float32)
    if options.slopes_ptr is not None:
        x -= scores.slope * tl.abs(offs_m + shift - offs_n).to(tl.float32)
    return x, t


@triton.jit
def kept(scores, queries, start_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the mask of a tile's kept weights, [BLOCK_M, BLOCK_N]; start_n is a multiple of 4.

    Philox 4x32-10 at the counter (key // 4, query, batch_head, 0) draws for four keys at once.
    queries [BLOCK_M, 1] are of one head, or of a head in each row.
    """
    options = scores.options
    fours = (start_n // 4 + tl.arange(0, BLOCK_N // 4))[None, :]
    queries, fours = tl.broadcast(queries, fours)
    zero = tl.zeros_like(queries)
    seed = (options.seed_high.to(tl.int64) << 32) | (options.seed_low.to(tl.int64) & 0xFFFFFFFF)
    r0, r1, r2, r3 = tl.philox(seed, fours, queries, zero + scores.batch_head, zero)
    drawn = tl.join(tl.join(r0, r2), tl.join(r1, r3))  # [BLOCK_M, BLOCK_N / 4, 2, 2]
    threshold = options.threshold.to(tl.uint32, bitcast=True)
    return tl.reshape(drawn, (BLOCK_M, BLOCK_N)) >= threshold


@triton.jit
def query_block(s_q, BLOCK_M: tl.constexpr):
    """Return the first query of a program's block, and the number of its batch and head together.

    Blocks with the most keys come first: under a causal mask the last ones.
    """
    blocks_m = tl.cdiv(s_q, BLOCK_M)
    pid = tl.program_id(0)
    return (blocks_m - 1 - pid % blocks_m) * BLOCK_M, pid // blocks_m


@triton.jit
def sequence(cu_q, cu_k, batch, s_q, s_kv):
    """Return the first query and key of a sequence, and their numbers."""
    start_q, start_k = 0, 0
    if cu_q is not None:
        start_q = tl.load(cu_q + batch)
        start_k = tl.load(cu_k + batch)
        s_q = tl.load(cu_q + batch + 1) - start_q
        s_kv = tl.load(cu_k + batch + 1) - start_k
    return start_q, start_k, s_q, s_kv


@triton.jit
def batch_in_memory(cu_q, batch):
    """Return the batch, or 0 if sequences lie end to end in one batch."""
    memory_batch = batch.to(tl.int64)
    if cu_q is not None:
        memory_batch = memory_batch * 0
    return memory_batch


@triton.jit
def mask_of(s_q, s_kv, left, right, bottom_right):
    """Return the mask of a sequence, and the keys that some query of it may attend to."""
    shift = (s_kv - s_q) * bottom_right
    first_key = tl.maximum(0, shift - left)
    end_key = tl.maximum(first_key, tl.minimum(s_kv, s_q + shift + right))
    return SequenceMask(s_q, s_kv, shift, left, right, first_key, end_key)


@triton.jit
def key_tiles(mask, start_m, last_m, BLOCK_N: tl.constexpr):
    """Return the key tiles of queries start_m to last_m; full ones may include queries past s_q."""
    s_kv, shift, left, right = mask.s_kv, mask.shift, mask.left, mask.right
    low = tl.maximum(0, start_m + shift - left) // BLOCK_N
    high = tl.cdiv(tl.maximum(0, tl.minimum(s_kv, last_m + shift + right + 1)), BLOCK_N)
    full_low = tl.cdiv(tl.maximum(0, last_m + shift - left), BLOCK_N)
    full_high = tl.maximum(0, tl.minimum(s_kv, start_m + shift + right + 1)) // BLOCK_N
    return ordered(low, full_low, full_high, high)


@triton.jit
def query_tiles(mask, start_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the query tiles of a block of keys, as in `key_tiles`; full ones have no tail."""
    s_q, shift, left, right = mask.s_q, mask.shift, mask.left, mask.right
    last_n = tl.minimum(start_n + BLOCK_N, mask.s_kv) - 1
    low = tl.maximum(0, start_n - shift - right) // BLOCK_M
    high = tl.cdiv(tl.maximum(0, tl.minimum(s_q, last_n - shift + left + 1)), BLOCK_M)
    full_low = tl.cdiv(tl.maximum(0, last_n - shift - right), BLOCK_M)
    full_high = tl.maximum(0, tl.minimum(s_q, start_n - shift + left + 1)) // BLOCK_M
    return ordered(low, full_low, full_high, high)


@triton.jit
def ordered(low, full_low, full_high, high):
    """Return the tiles with ends in ascending order."""
    low = tl.minimum(low, high)
    full_low = tl.minimum(tl.maximum(full_low, low), high)
    full_high = tl.minimum(tl.maximum(full_high, full_low), high)
    return WalkTiles(low, full_low, full_high, high)


@triton.jit
def tiles_walked(tiles, MASKED: tl.constexpr):
    """Return the number of a walk's tiles: those that need a mask, or the others."""
    count = tiles.full_high - tiles.full_low
    if MASKED:
        count = tiles.full_low - tiles.low + tiles.high - tiles.full_high
    return count


@triton.jit
def tile_at(tiles, index, MASKED: tl.constexpr):
    """Return the number of a walk's tile; masked ones lie before and after the full ones."""
    tile = tiles.full_low + index
    if MASKED:
        full = tiles.full_high - tiles.full_low
        tile = tiles.low + index + tl.where(index >= tiles.full_low - tiles.low, full, 0)
    return tile
