"""Dropout's mask on Hopper, drawn in the layouts of the tensor cores' accumulators.

Philox 4x32-10 draws four words at a time, for four neighbouring keys (oracles/attention/dropout.py
defines the counter). In an accumulator with queries as rows two threads share four neighbouring
keys of two queries; so one of the threads draws for the first query, its neighbour for the second,
and they exchange bits: no word is drawn twice. With keys as rows four threads share four
neighbouring keys. A tile's bits are packed into few words of a thread, which shuffles exchange.

Rounds 1 and 2 depend on the keys alone, or on the queries alone, in all words but one. The code
leaves them as columns and rows, so that the compiler computes them once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

_ROUNDS = gl.constexpr(10)
# Words as signed integers.
_ROUND_A, _ROUND_B = gl.constexpr(0xD2511F53 - 2**32), gl.constexpr(0xCD9E8D57 - 2**32)
_KEY_A, _KEY_B = gl.constexpr(0x9E3779B9), gl.constexpr(0xBB67AE85)
_HIGHEST = gl.constexpr(-(2**31))


class Dropout(NamedTuple):
    """Philox's key and the threshold as signed words, and the factor of weights.

    A kernel counts keys from first_key on, a multiple of 4, and queries from first_query on.
    """

    seed_low: Any
    seed_high: Any
    threshold: Any
    first_query: Any
    first_key: Any
    keep_scale: Any


@gluon.constexpr_function
def _signed(word):
    """Return the signed integer with the bits of a word of 32 bits."""
    return (word + 2**31) % 2**32 - 2**31


@gluon.jit
def _product(word, FACTOR: gl.constexpr):
    """Return the high and the low word of a product of two words.

    The compiler makes two products of a product in Gluon, where one would do.
    """
    return gl.inline_asm_elementwise(
        "{ .reg .b64 t; mul.wide.u32 t, $2, $3; mov.b64 {$1, $0}, t; }", "=r,=r,r,r",
        [word, FACTOR], dtype=(gl.int32, gl.int32), is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def _philox(fours, queries, batch_head, dropout):
    """Return four words for fours of keys and queries, which broadcast to each other."""
    c0, c1, c2, c3 = fours, queries, batch_head, 0
    for i in gl.static_range(_ROUNDS):
        high_b, low_b = _product(c2, _ROUND_B)
        high_a, low_a = _product(c0, _ROUND_A)
        c0 = high_b ^ c1 ^ (dropout.seed_low + _signed(i * _KEY_A))
        c2 = high_a ^ c3 ^ (dropout.seed_high + _signed(i * _KEY_B))
        c1 = low_b
        c3 = low_a
    return c0, c1, c2, c3


@gluon.jit
def _bits(word, dropout, places):
    """Return a bit at `places` where a word's element is kept, else 0."""
    # Unsigned words compare as signed ones whose highest bits are flipped.
    return gl.where((word ^ _HIGHEST) >= (dropout.threshold ^ _HIGHEST), places, 0)


@gluon.constexpr_function
def _doubled(begin, end, axis, rank):
    """Return bases along an axis: begin, 2 begin and so on, below end."""
    bases = []
    while begin < end:
        bases.append([begin if i == axis else 0 for i in range(rank)])
        begin *= 2
    return bases


@gluon.constexpr_function
def _drawing_layout(rows, keys):
    """Return the layout of draws [rows, keys / 4] of four warps.

    Its lanes differ from those of scores: the lowest bit is of the row (8), not of the key (2).
    """
    return gl.DistributedLinearLayout(
        reg_bases=_doubled(2, keys // 4, 1, 2),
        lane_bases=[[8, 0], [0, 1], [1, 0], [2, 0], [4, 0]],
        warp_bases=_doubled(16, rows, 0, 2),
        block_bases=[],
        shape=[rows, keys // 4],
    )


@gluon.constexpr_function
def _score_layout(rows, keys):
    """Return the layout of scores, keys as [keys / 8, 2, 2, 2]."""
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 0, 0, 0, 1], [8, 0, 0, 0, 0], *_doubled(1, keys // 8, 1, 5)],
        lane_bases=[[0, 0, 0, 1, 0], [0, 0, 1, 0, 0], *_doubled(1, 8, 0, 5)],
        warp_bases=_doubled(16, rows, 0, 5),
        block_bases=[],
        shape=[rows, keys // 8, 2, 2, 2],
    )


@gluon.jit
def drawn(
    dropout, batch_head, first_row, start_n, ROWS: gl.constexpr, KEYS: gl.constexpr
):  # fmt: skip
    """Return a tile's kept weights as bits, for `is_kept`; start_n as the kernel counts keys."""
    LAYOUT: gl.constexpr = _drawing_layout(ROWS, KEYS)
    SCORES: gl.constexpr = _score_layout(ROWS, KEYS)
    WORDS: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(4, SCORES))
    offs = gl.arange(0, KEYS // 4, gl.SliceLayout(0, LAYOUT))
    queries = dropout.first_query + first_row + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    fours = (dropout.first_key + start_n) // 4 + offs
    r0, r1, r2, r3 = _philox(fours[None, :], queries[:, None], batch_head, dropout)
    even = (1 << (offs & -2))[None, :]
    odd = even << 1
    low = _bits(r0, dropout, even) | _bits(r1, dropout, odd)
    high = _bits(r2, dropout, even) | _bits(r3, dropout, odd)
    low = gl.sum(low.reshape((ROWS, KEYS // 8, 2)), 1)
    high = gl.sum(high.reshape((ROWS, KEYS // 8, 2)), 1)
    return gl.convert_layout(gl.join(low, high), WORDS)


@gluon.jit
def is_kept(bits, ROWS: gl.constexpr, KEYS: gl.constexpr, LAYOUT: gl.constexpr):
    """Return the mask [ROWS, KEYS] of kept weights."""
    SCORES: gl.constexpr = _score_layout(ROWS, KEYS)
    EIGHTS: gl.constexpr = gl.SliceLayout(
        0, gl.SliceLayout(2, gl.SliceLayout(3, gl.SliceLayout(4, SCORES)))
    )
    TWOS: gl.constexpr = gl.SliceLayout(
        0, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, SCORES)))
    )
    eights = gl.arange(0, KEYS // 8, EIGHTS)[None, :, None, None, None]
    twos = gl.arange(0, 2, TWOS)[None, None, None, None, :]
    kept = (bits[:, None, :, :, None] & (1 << (2 * eights + twos))) != 0
    return gl.convert_layout(kept.reshape((ROWS, KEYS)), LAYOUT)


@gluon.constexpr_function
def _drawing_layout_of_keys(keys, rows):
    """Return the layout of draws [keys / 4, rows] of eight warps, for scores with keys as rows.

    Two of its lanes' bits are of keys (8) and queries (1), not of keys (1 and 2).
    """
    return gl.DistributedLinearLayout(
        reg_bases=_doubled(8, rows * keys // 128, 1, 2),
        lane_bases=[[0, 2], [0, 4], [2, 0], [0, 1], [1, 0]],
        warp_bases=[*_doubled(4, keys // 4, 0, 2), *_doubled(rows * keys // 128, rows, 1, 2)],
        block_bases=[],
        shape=[keys // 4, rows],
    )


@gluon.constexpr_function
def _score_layout_of_keys(keys, rows):
    """Return the layout of scores [keys / 4, 4, groups of warps, rows / 8 of a group, 8]."""
    groups = 128 // keys
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 0, 0, 0, 1], [2, 0, 0, 0, 0], *_doubled(1, rows // groups // 8, 3, 5)],
        lane_bases=[
            [0, 0, 0, 0, 2], [0, 0, 0, 0, 4], [0, 1, 0, 0, 0], [0, 2, 0, 0, 0], [1, 0, 0, 0, 0]
        ],
        warp_bases=[*_doubled(4, keys // 4, 0, 5), *_doubled(1, groups, 2, 5)],
        block_bases=[],
        shape=[keys // 4, 4, groups, rows // groups // 8, 8],
    )  # fmt: skip


@gluon.constexpr_function
def _halfway_layout(keys):
    """Return the layout of bits [keys / 4, groups of warps, 8, 2 of 4 keys]."""
    groups = 128 // keys
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 0, 1, 0]],
        lane_bases=[[0, 0, 2, 0], [0, 0, 4, 0], [2, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]],
        warp_bases=[*_doubled(4, keys // 4, 0, 4), *_doubled(1, groups, 1, 4)],
        block_bases=[],
        shape=[keys // 4, groups, 8, 2],
    )


@gluon.jit
def drawn_of_keys(
    dropout, batch_head, first_row, start_n, KEYS: gl.constexpr, ROWS: gl.constexpr
):  # fmt: skip
    """Return as `drawn` for a tile with keys as rows, for `is_kept_of_keys`."""
    LAYOUT: gl.constexpr = _drawing_layout_of_keys(KEYS, ROWS)
    SCORES: gl.constexpr = _score_layout_of_keys(KEYS, ROWS)
    GROUPS: gl.constexpr = SCORES.shape[2]
    EIGHTS: gl.constexpr = SCORES.shape[3]
    offs = gl.arange(0, ROWS, gl.SliceLayout(0, LAYOUT))
    fours = gl.arange(0, KEYS // 4, gl.SliceLayout(1, LAYOUT))
    fours += (dropout.first_key + start_n) // 4
    queries = dropout.first_query + first_row + offs
    r0, r1, r2, r3 = _philox(fours[:, None], queries[None, :], batch_head, dropout)
    places = (1 << (offs // 8 % EIGHTS))[None, :]
    # Triton exchanges by shuffles if one bit of lanes changes at a time.
    HALFWAY: gl.constexpr = _halfway_layout(KEYS)
    first, second = _packed(r0, dropout, places, SCORES), _packed(r1, dropout, places, SCORES)
    third, fourth = _packed(r2, dropout, places, SCORES), _packed(r3, dropout, places, SCORES)
    even = gl.convert_layout(gl.join(first, third), HALFWAY)
    odd = gl.convert_layout(gl.join(second, fourth), HALFWAY)
    words = gl.join(even, odd)
    words = gl.permute(words.reshape((KEYS // 4, GROUPS, 8, 4)), (0, 3, 1, 2))
    return gl.convert_layout(words, gl.SliceLayout(3, SCORES))


@gluon.jit
def _packed(word, dropout, places, SCORES: gl.constexpr):
    """Return a word's bits, those of one thread added up."""
    bits = _bits(word, dropout, places)
    return gl.sum(bits.reshape((SCORES.shape[0], SCORES.shape[2], SCORES.shape[3], 8)), 2)


@gluon.jit
def is_kept_of_keys(bits, KEYS: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """Return the mask [KEYS, ROWS] of kept weights."""
    SCORES: gl.constexpr = _score_layout_of_keys(KEYS, ROWS)
    EIGHTS: gl.constexpr = gl.SliceLayout(
        0, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(4, SCORES)))
    )
    eights = gl.arange(0, SCORES.shape[3], EIGHTS)[None, None, None, :, None]
    kept = (bits[:, :, :, None, :] & (1 << eights)) != 0
    return gl.convert_layout(kept.reshape((KEYS, ROWS)), LAYOUT)
