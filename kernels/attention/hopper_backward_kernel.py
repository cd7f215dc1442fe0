"""Attention backward on Hopper: a Gluon kernel for dk, dv and a sum of dq, one before, one after.

`rows_kernel` writes what a row of queries needs: lse in base 2, and delta; and it clears what is
counted up later. `gradients_kernel` makes dk and dv, and adds shares of dq up in memory.
`rounding_kernel` makes dq of the sum.

A program of `gradients_kernel` has a block of keys of a head, and walks over tiles of queries, the
last one first, of each query head that shares it. A warp loads by TMA; two groups of four warps
compute, each with half of the keys. They hold s and dp with keys as rows: so p and ds are, as they
leave registers, the operands of dv and dk. ds goes through shared memory too, for dq. Products are
asked for ahead, so that tensor cores work while warps do:

    products        dp_j         dv_j              dq_j    dk_j      s_j+1
    warps           p_j of s_j   ds_j, stored      wait    dq_j to memory

The sum of dq lies in memory as threads hold it, 16 bytes of each next to another's. Where it is
ORDERED, the blocks of keys add to a tile of dq one after the other, which a warp of its own sees
to: it waits for the block before, lets the groups add, waits till they have, and tells the block
after. The longest blocks come first and walk from the end, so that the block before is ahead. With
RISING, under a causal mask, the shortest blocks come first and walk up from the diagonal, so that
the block before, of later keys, is ahead without a wait; but blocks are further apart, and find a
head's tiles in L2 only if it holds them all. Where tiles of queries are few there are several sums,
so that fewer blocks wait for one another: block i adds to sum i % sums, and `rounding_kernel` adds
the sums up.

Query heads that share a block walk one after the other. In order under a causal mask they walk
together: a block has fewer tiles than the block before it, and would wait at each head.

Where blocks of keys are few and query heads share them, each of these heads has programs of its own
(SPREAD). They add dk and dv up in memory, in no order, as they do dq.

Design after FlashAttention-3 (Shah et al. 2024); the walk from the end as in DASH (2026).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernel_workbench.kernels.attention.hopper_dropout import (
    Dropout,
    drawn_of_keys,
    is_kept_of_keys,
)
from kernel_workbench.kernels.attention.hopper_kernel import (
    BiasPlace,
    ScoreTerms,
    as_numbers,
    has,
    has_bias,
    has_lead,
    load_box,
    new_barriers,
    store_box,
    tanh,
)
from kernel_workbench.kernels.attention.scores import LOG2E


class Descriptors(NamedTuple):
    """Boxes of tensors [b, h, s, d], and of a bias and its gradient [b, h, s_q, s_kv]."""

    q: Any
    do: Any
    k: Any
    v: Any
    dk: Any
    dv: Any
    bias: Any
    dbias: Any


class BackwardMemory(NamedTuple):
    """Shared memory: [STAGES, 1, 1, ROWS, D] of q and do, [1, 1, 1, KEYS, D] of k and v.

    ds is [1, KEYS, ROWS], and so is p of wide heads; rows contains lse and -delta of a tile; bias
    is [STAGES, 1, 1, ROWS, KEYS], and a tile's dbias replaces its bias there.
    """

    q: Any
    do: Any
    k: Any
    v: Any
    p: Any
    ds: Any
    rows: Any
    bias: Any


class BackwardBarriers(NamedTuple):
    """A barrier for each stage of q and do, and one for k and v; my_turn: dq may be added to."""

    q_full: Any
    do_full: Any
    kv_full: Any
    empty: Any
    my_turn: Any


class BackwardSizes(NamedTuple):
    """Blocks of keys of a head, key heads of all batches, and heads in progress at once.

    sums is the number of sums of dq, h_kv that of one batch, group the query heads of a key head;
    together is group if these take each step of a walk in turn, or 1: one walks after the other.
    With SPREAD each query head counts as a key head, and `share` of them have one k and v. Query i
    may attend to no key from `keys` on; under a causal mask to keys up to i + shift, in a window to
    keys i + shift - left to i + shift + right.
    """

    blocks: Any
    heads: Any
    at_once: Any
    sums: Any
    h_kv: Any
    group: Any
    together: Any
    share: Any
    s_q: Any
    keys: Any
    shift: Any
    left: Any
    right: Any


class Walk(NamedTuple):
    """The tiles of queries of a block of keys, of which high - 1 is the last.

    free: number of tiles without a mask; walked: number of all tiles; tiles: tiles of a head.
    """

    free: Any
    walked: Any
    high: Any
    tiles: Any


@gluon.constexpr_function
def is_wide(d):
    """Return True if dk and dv of a head leave no registers for p and ds."""
    return d > 128


@gluon.constexpr_function
def is_masked(part, rising):
    """Return True if a part of a walk, 0 or 1, has the tiles with a mask."""
    return part == (0 if rising else 1)


@gluon.jit
def _walk(start_n, sizes, MASK: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr):
    tiles = gl.cdiv(sizes.s_q, ROWS)
    first = 0
    free = 0
    high = tiles
    before = start_n - sizes.shift
    if MASK == "causal":
        first = gl.minimum(gl.maximum(before, 0) // ROWS, tiles)
        free = gl.minimum(gl.cdiv(gl.maximum(before + KEYS - 1, 0), ROWS), tiles)
    if MASK == "window":
        # A window's first and last tiles both need a mask: all of them get one.
        first = gl.minimum(gl.maximum(before - sizes.right, 0) // ROWS, tiles)
        last = gl.minimum(start_n + KEYS, sizes.keys) - sizes.shift + sizes.left
        high = gl.minimum(gl.cdiv(gl.maximum(last, 0), ROWS), tiles)
        first = gl.minimum(first, high)
        free = high
    if start_n >= sizes.keys:
        first = high
    if start_n + KEYS > sizes.keys:
        free = high
    return Walk(high - gl.maximum(free, first), high - first, high, tiles)


@gluon.jit
def _after(member, step, walk, sizes):
    """Return the query head, of those of a key head, and the step of its walk that come next."""
    following = member + 1
    is_last = (sizes.together == 1) | (following == sizes.group)
    step += gl.where(is_last, 1, 0)
    ends = step == walk.walked
    member = gl.where(is_last & (not ends), following - sizes.together, following)
    return member, gl.where(ends, 0, step)


@gluon.jit
def _tile(walk, step, RISING: gl.constexpr):
    tile = walk.high - 1 - step
    if RISING:
        tile = walk.high - walk.walked + step
    return tile


@gluon.jit
def _blocks_before(block, tile, sizes, ROWS: gl.constexpr, KEYS: gl.constexpr):
    """Return the number of blocks that add to a tile before a block, where walks go up."""
    last = (tile * ROWS + ROWS - 1 + sizes.shift) // KEYS
    last = gl.minimum(last, gl.cdiv(sizes.keys, KEYS) - 1)
    return (last - block) // sizes.sums


@gluon.jit
def _place(sizes, RISING: gl.constexpr):
    """Return this program's block of keys, its key head and its batch.

    A few heads are in progress at once: first their first blocks, then their second ones.
    """
    programs = sizes.blocks * sizes.at_once
    turn = gl.program_id(0) // programs
    number = gl.program_id(0) - turn * programs
    heads = gl.minimum(sizes.at_once, sizes.heads - turn * sizes.at_once)
    block = number // heads
    head = turn * sizes.at_once + number - block * heads
    if RISING:
        block = sizes.blocks - 1 - block
    b = head // sizes.h_kv
    return block, head - b * sizes.h_kv, b


@gluon.jit
def _first_tile(block, kv_head, b, tiles, sizes):
    """Return the first tile of a key head's first query head, in the block's sum of dq."""
    head = (block % sizes.sums * sizes.heads + b * sizes.h_kv + kv_head) * sizes.group
    return head.to(gl.int64) * tiles


@gluon.jit
def _load(loading, MASK: gl.constexpr, TERMS: gl.constexpr, RISING: gl.constexpr):
    """Run the loading warp: k and v, then tiles of q and do, and a last unused q."""
    descriptors, memory, barriers, sizes, lead, bias_place, first_query = loading
    STAGES: gl.constexpr = memory.q.shape[0]
    ROWS: gl.constexpr = memory.q.shape[3]
    KEYS: gl.constexpr = memory.k.shape[3]
    block, kv_head, b = _place(sizes, RISING)
    start_n = block * KEYS
    walk = _walk(start_n, sizes, MASK, ROWS, KEYS)
    column = bias_place.first_key + start_n
    if has_lead(TERMS):
        start_n -= lead
    kv_place = [b, kv_head // sizes.share, start_n, 0]
    mbarrier.expect(barriers.kv_full, 2 * descriptors.k.block_type.nbytes)
    load_box(descriptors.k, kv_place, barriers.kv_full, memory.k.index(0))
    load_box(descriptors.v, kv_place, barriers.kv_full, memory.v.index(0))
    count = walk.walked * sizes.group
    member = 0
    step = 0
    for i in range(count + 1):
        tile = _tile(walk, step, RISING)
        head = kv_head * sizes.group + member
        stage = i % STAGES
        place = [b, head, tile * ROWS, 0]
        q_full = barriers.q_full.index(stage)
        mbarrier.wait(barriers.empty.index(stage), ((i // STAGES) & 1) ^ 1)
        mbarrier.expect(q_full, descriptors.q.block_type.nbytes)
        load_box(descriptors.q, place, q_full, memory.q.index(stage))
        if i < count:
            do_full = barriers.do_full.index(stage)
            if has(TERMS, "bias"):
                BOTH: gl.constexpr = (
                    descriptors.do.block_type.nbytes + descriptors.bias.block_type.nbytes
                )
                mbarrier.expect(do_full, BOTH)
                corner = [
                    b * bias_place.stride_b, head * bias_place.stride_h, first_query + tile * ROWS,
                    column,
                ]  # fmt: skip
                load_box(descriptors.bias, corner, do_full, memory.bias.index(stage))
            else:
                mbarrier.expect(do_full, descriptors.do.block_type.nbytes)
            load_box(descriptors.do, place, do_full, memory.do.index(stage))
        member, step = _after(member, step, walk, sizes)


@gluon.jit
def _take_turns(turns_ptr, memory, barriers, sizes, MASK: gl.constexpr, RISING: gl.constexpr):
    """Run the warp that keeps order: turns_ptr counts the blocks that have added to a tile.

    A release here covers the groups' additions too, because the groups have arrived before.
    """
    STAGES: gl.constexpr = memory.q.shape[0]
    ROWS: gl.constexpr = memory.q.shape[3]
    KEYS: gl.constexpr = memory.k.shape[3]
    block, kv_head, b = _place(sizes, RISING)
    walk = _walk(block * KEYS, sizes, MASK, ROWS, KEYS)
    lanes = gl.arange(0, 32, gl.BlockedLayout([1], [32], [1], [0]))
    first_tile = _first_tile(block, kv_head, b, walk.tiles, sizes)
    member = 0
    step = 0
    for i in range(walk.walked * sizes.group):
        tile = _tile(walk, step, RISING)
        number_of_tile = first_tile + member * walk.tiles + tile
        turn = (turns_ptr + number_of_tile + gl.zeros_like(lanes)).to(gl.int64)
        before = block
        if MASK == "window":
            # Blocks whose keys are all too far back add nothing to this tile.
            before -= gl.maximum(tile * ROWS + sizes.shift - sizes.left, 0) // KEYS
        number = before // sizes.sums
        if RISING:
            number = _blocks_before(block, tile, sizes, ROWS, KEYS)
        number += gl.zeros_like(lanes)
        gl.inline_asm_elementwise(
                "{ .reg .pred p; .reg .u32 t; AGAIN: ld.acquire.gpu.global.u32 t, [$1];"
                " setp.lt.u32 p, t, $2; @p bra AGAIN; mov.b32 $0, t; }", "=r,l,r",
                [turn, number], dtype=gl.int32, is_pure=False, pack=1,
            )  # fmt: skip
        mbarrier.arrive(barriers.my_turn, count=1)
        mbarrier.wait(barriers.empty.index(i % STAGES), (i // STAGES) & 1)
        gl.inline_asm_elementwise(
                "{ .reg .pred p; setp.ne.u32 p, $2, 0;"
                " @p red.release.gpu.global.add.u32 [$1], $2; mov.b32 $0, 0; }", "=r,l,r",
                [turn, gl.where(lanes == 0, 1, 0)], dtype=gl.int32, is_pure=False, pack=1,
            )  # fmt: skip
        member, step = _after(member, step, walk, sizes)


@gluon.jit
def _add(dq, dq_ptr, is_first, ROWS: gl.constexpr, D: gl.constexpr):
    """Add a tile's share of dq to the sum in memory, in the threads' own layout.

    The first block in order only stores.
    """
    # A row divides into a warp, its upper or lower half, and 8; a column into a group of warps, 8
    # columns, 4 threads and 2 neighbours. A thread adds its elements of both halves at a time.
    DOWN: gl.constexpr = ROWS // 16
    ACROSS: gl.constexpr = 8 // DOWN
    parts = dq.reshape((DOWN, 2, 8, ACROSS, D // (8 * ACROSS), 4, 2))
    uppers, lowers = gl.split(gl.permute(parts, (0, 3, 4, 2, 5, 6, 1)))
    FOURS: gl.constexpr = ROWS * D // 4
    a, b = gl.split(uppers.reshape((FOURS, 2)))
    c, d = gl.split(lowers.reshape((FOURS, 2)))
    offs = gl.arange(0, FOURS, layout=a.type.layout) * 4
    places = (dq_ptr + offs).to(gl.int64)
    if is_first:
        gl.inline_asm_elementwise(
            "st.global.v4.f32 [$1], {$2, $3, $4, $5}; mov.b32 $0, 0;", "=r,l,f,f,f,f",
            [places, a, b, c, d], dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        gl.inline_asm_elementwise(
            "red.global.add.v4.f32 [$1], {$2, $3, $4, $5}; mov.b32 $0, 0;", "=r,l,f,f,f,f",
            [places, a, b, c, d], dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@gluon.jit
def _slope(terms, q_head):
    """Return ALiBi's slope of a query head, in base 2."""
    return gl.load(terms.slopes_ptr + q_head) * LOG2E


@gluon.jit
def _bias_row(bias_place, b, q_head, offs_n, sizes):
    """Return a query head's bias that queries share, [KEYS, 1] in base 2."""
    own = b.to(gl.int64) * bias_place.stride_b + q_head.to(gl.int64) * bias_place.stride_h
    row_ptr = bias_place.ptr + own + bias_place.first_key
    row = gl.load(row_ptr + offs_n, mask=offs_n < sizes.keys, other=0.0)
    return (row.to(gl.float32) * LOG2E)[:, None]


@gluon.jit
def _compute(
    computing, MASK: gl.constexpr, TERMS: gl.constexpr, ORDERED: gl.constexpr,
    SPREAD: gl.constexpr, RISING: gl.constexpr,
):  # fmt: skip
    """Run the computing warps: dk and dv of the block, and its shares of dq."""
    (
        descriptors, rows_ptr, sum_ptr, key_sum_ptr, memory, barriers, sizes, scale, terms,
        bias_place, dropout,
    ) = computing  # fmt: skip
    STAGES: gl.constexpr = memory.q.shape[0]
    ROWS: gl.constexpr = memory.q.shape[3]
    D: gl.constexpr = memory.q.shape[4]
    KEYS: gl.constexpr = memory.k.shape[3]
    DTYPE: gl.constexpr = memory.q.dtype
    # So many warps lie along keys, or along queries; the others along what is left.
    OF_KEYS: gl.constexpr = KEYS // 16
    OF_ROWS: gl.constexpr = ROWS // 16
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [OF_KEYS, 8 // OF_KEYS], [16, ROWS * OF_KEYS // 8, 16]
    )
    K_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [OF_KEYS, 8 // OF_KEYS], [16, D * OF_KEYS // 8, 16]
    )
    Q_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [OF_ROWS, 8 // OF_ROWS], [16, D * OF_ROWS // 8, 16]
    )
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, K_LAYOUT, 2)
    S_ROWS: gl.constexpr = gl.SliceLayout(0, S_LAYOUT)
    FLAT: gl.constexpr = gl.BlockedLayout([1], [32], [8], [0])
    block, kv_head, b = _place(sizes, RISING)
    start_n = block * KEYS
    walk = _walk(start_n, sizes, MASK, ROWS, KEYS)
    k = memory.k.index(0).reshape((KEYS, D))
    v = memory.v.index(0).reshape((KEYS, D))
    # Under a causal mask a sum's first block may leave tiles out: there it adds to zeros. In a
    # window any block may.
    starting = sizes.sums
    if MASK == "causal":
        starting = 1
    if MASK == "window":
        starting = 0
    is_first = (block < starting) & ORDERED
    offs_n = start_n + gl.arange(0, KEYS, gl.SliceLayout(1, S_LAYOUT))
    numbers_n = as_numbers(offs_n)
    no_s = gl.zeros((KEYS, ROWS), gl.float32, S_LAYOUT)
    no_dq = gl.zeros((ROWS, D), gl.float32, Q_LAYOUT)
    dk = gl.zeros((KEYS, D), gl.float32, K_LAYOUT)
    dv = gl.zeros((KEYS, D), gl.float32, K_LAYOUT)
    offs_rows = gl.arange(0, 2 * ROWS, FLAT)
    head = (b * sizes.h_kv + kv_head) * sizes.group
    count = walk.walked * sizes.group
    first = _tile(walk, 0, RISING)
    row_tile = head * walk.tiles + gl.minimum(gl.maximum(first, 0), walk.tiles - 1)
    sum_ptr += (_first_tile(block, kv_head, b, walk.tiles, sizes) - head * walk.tiles) * (ROWS * D)
    memory.rows.store(gl.load(rows_ptr + row_tile.to(gl.int64) * (2 * ROWS) + offs_rows))
    mbarrier.wait(barriers.kv_full, 0)
    mbarrier.wait(barriers.q_full.index(0), 0)
    q = memory.q.index(0).reshape((ROWS, D))
    s = warpgroup_mma(k, q.permute((1, 0)), no_s, use_acc=False, is_async=True)
    if has(TERMS, "dropout"):
        bits = drawn_of_keys(dropout, head, first * ROWS, start_n, KEYS, ROWS)
    s = warpgroup_mma_wait(0, deps=[s])
    if has(TERMS, "alibi"):
        slope = _slope(terms, kv_head * sizes.group)
    if has(TERMS, "bias_row"):
        bias = _bias_row(bias_place, b, kv_head * sizes.group, offs_n, sizes)
    middle = walk.free
    if RISING:
        middle = walk.walked - walk.free
    # Query heads walk together over all tiles, or one after the other.
    i = 0
    member = 0
    step = 0
    for _ in range(sizes.group // sizes.together):
        for part in gl.static_range(2):
            for _ in range(sizes.together * (middle + part * (walk.walked - 2 * middle))):
                # Always 0, which the compiler doesn't know: else it keeps each address of these.
                zero = i >> 30
                k_now = memory.k.index(zero).reshape((KEYS, D))
                v_now = memory.v.index(zero).reshape((KEYS, D))
                ds_now = memory.ds.index(zero)
                stage = i % STAGES
                phase = (i // STAGES) & 1
                tile = _tile(walk, step, RISING)
                row_tile = (head + member) * walk.tiles + tile
                if RISING:
                    is_first = _blocks_before(block, tile, sizes, ROWS, KEYS) == 0
                # Load ahead for the next tile.
                member_next, step_next = _after(member, step, walk, sizes)
                member_next = gl.where(i + 1 < count, member_next, member)
                tile_next = _tile(walk, gl.where(i + 1 < count, step_next, step), RISING)
                after = (head + member_next) * walk.tiles + tile_next
                rows = gl.load(rows_ptr + after.to(gl.int64) * (2 * ROWS) + offs_rows)
                if has(TERMS, "alibi"):
                    slope_next = _slope(terms, kv_head * sizes.group + member_next)
                if has(TERMS, "bias_row"):
                    q_head_next = kv_head * sizes.group + member_next
                    bias_next = _bias_row(bias_place, b, q_head_next, offs_n, sizes)
                do = memory.do.index(stage).reshape((ROWS, D))
                q = memory.q.index(stage).reshape((ROWS, D))
                minus_delta = memory.rows.slice(ROWS, ROWS).load(S_ROWS)
                dp, _zeros = gl.broadcast(minus_delta[None, :], no_s)
                mbarrier.wait(barriers.do_full.index(stage), phase)
                dp = warpgroup_mma(v_now, do.permute((1, 0)), dp, is_async=True)
                lse = memory.rows.slice(0, ROWS).load(S_ROWS)
                offs_m = tile * ROWS + gl.arange(0, ROWS, S_ROWS)
                if has(TERMS, "softcap"):
                    # If s is NaN, the query's lse is NaN too.
                    s = tanh(s * terms.scale)
                    score = s * terms.cap - lse[None, :]
                else:
                    score = s * terms.scale - lse[None, :]
                if has(TERMS, "bias"):
                    of_tile = memory.bias.index(stage).reshape((ROWS, KEYS)).permute((1, 0))
                    bias = of_tile.load(S_LAYOUT).to(gl.float32) * LOG2E
                if has_bias(TERMS):
                    score += bias
                if has(TERMS, "alibi"):
                    distance = as_numbers(offs_m + sizes.shift)[None, :] - numbers_n[:, None]
                    score -= slope * gl.abs(distance)
                p = gl.exp2(score)
                if is_masked(part, RISING):
                    keep = offs_n[:, None] < sizes.keys
                    if MASK == "causal":
                        keep = keep & (offs_n[:, None] <= offs_m[None, :] + sizes.shift)
                    if MASK == "window":
                        centre = offs_m + sizes.shift
                        keep = keep & (offs_n[:, None] <= (centre + sizes.right)[None, :])
                        keep = keep & (offs_n[:, None] >= (centre - sizes.left)[None, :])
                    p = gl.where(keep, p, 0.0)
                halves = p.to(DTYPE)
                if has(TERMS, "dropout"):
                    # A dropped p is negative from here on; a NaN stays one.
                    kept = is_kept_of_keys(bits, KEYS, ROWS, S_LAYOUT)
                    halves = gl.where(kept, p, 0.0).to(DTYPE)
                    p = gl.where(kept, p, 0.0 - p)
                if is_wide(D):
                    weights = memory.p.index(zero)
                    weights.store(halves)
                    fence_async_shared()
                else:
                    weights = gl.convert_layout(halves, P_LAYOUT)
                dv = warpgroup_mma(weights, do, dv, is_async=True)
                if has(TERMS, "softcap"):
                    p *= 1.0 - s * s
                dp = warpgroup_mma_wait(1, deps=[dp])
                if has(TERMS, "dropout"):
                    minus_delta = memory.rows.slice(ROWS, ROWS).load(S_ROWS)
                    dp = gl.where(p >= 0.0, dp, minus_delta[None, :])
                    p = gl.abs(p)
                ds = p * dp
                halves = ds.to(DTYPE)
                ds_now.store(halves)
                if has(TERMS, "dbias"):
                    if has(TERMS, "dropout"):
                        ds *= dropout.keep_scale
                    if is_masked(part, RISING):
                        # Beyond the mask dp may be NaN.
                        ds = gl.where(keep, ds, 0.0)
                    of_tile.store(ds.to(DTYPE))
                fence_async_shared()
                if has(TERMS, "dbias"):
                    corner = [b, kv_head * sizes.group + member, tile * ROWS, start_n]
                    store_box(descriptors.dbias, corner, memory.bias.index(stage))
                shares = ds_now
                if not is_wide(D):
                    shares = gl.convert_layout(halves, P_LAYOUT)
                ds_t = ds_now.permute((1, 0))
                dq = warpgroup_mma(ds_t, k_now, no_dq, use_acc=False, is_async=True)
                dk = warpgroup_mma(shares, q, dk, is_async=True)
                if is_wide(D):
                    dv, dq = warpgroup_mma_wait(1, deps=[dv, dq])
                else:
                    dv, weights, dq = warpgroup_mma_wait(1, deps=[dv, weights, dq])
                i += 1
                stage_next = i % STAGES
                mbarrier.wait(barriers.q_full.index(stage_next), (i // STAGES) & 1)
                q_next = memory.q.index(stage_next).reshape((ROWS, D))
                s = warpgroup_mma(k_now, q_next.permute((1, 0)), no_s, use_acc=False, is_async=True)
                if ORDERED:
                    mbarrier.wait(barriers.my_turn, (i & 1) ^ 1)
                _add(dq, sum_ptr + row_tile.to(gl.int64) * (ROWS * D), is_first, ROWS, D)
                if has(TERMS, "dropout"):
                    # The next tile's draws, while the tensor cores work.
                    bits = drawn_of_keys(
                        dropout, head + member_next, tile_next * ROWS, start_n, KEYS, ROWS
                    )
                if is_wide(D):
                    dk, s = warpgroup_mma_wait(0, deps=[dk, s])
                else:
                    dk, shares, s = warpgroup_mma_wait(0, deps=[dk, shares, s])
                memory.rows.store(rows)
                member = member_next
                step = step_next
                if has(TERMS, "alibi"):
                    slope = slope_next
                if has(TERMS, "bias_row"):
                    bias = bias_next
                if has(TERMS, "dbias"):
                    tma.store_wait(0)
                mbarrier.arrive(barriers.empty.index(stage), count=1)
    if SPREAD:
        own = (b * sizes.h_kv + kv_head) // sizes.share * sizes.blocks + block
        there = sizes.heads // sizes.share * sizes.blocks
        _add(dk, key_sum_ptr + own.to(gl.int64) * (KEYS * D), False, KEYS, D)
        _add(dv, key_sum_ptr + (own + there).to(gl.int64) * (KEYS * D), False, KEYS, D)
    else:
        if has(TERMS, "dropout"):
            dv *= dropout.keep_scale
        k.store((dk * scale).to(DTYPE))
        v.store(dv.to(DTYPE))
        fence_async_shared()
        store_box(descriptors.dk, [b, kv_head, start_n, 0], memory.k.index(0))
        store_box(descriptors.dv, [b, kv_head, start_n, 0], memory.v.index(0))
        tma.store_wait(0)


# Numbers of a call that need no code of their own where they are 1 or a multiple of 16. With one
# query as a constant, the assembler of Triton 3.6 gave a product a wrong address of shared memory.
_NUMBERS = [
    "blocks", "heads", "at_once", "h_kv", "share", "s_q", "keys", "shift", "left", "right",
    "first_query", "first_key", "lead", "seed_low", "seed_high", "threshold",
]  # fmt: skip


@gluon.jit(do_not_specialize=_NUMBERS)
def gradients_kernel(
    q_desc, do_desc, k_desc, v_desc, dk_desc, dv_desc, rows_ptr, sum_ptr, key_sum_ptr, turns_ptr,
    slopes_ptr, blocks, heads, at_once, sums, h_kv, group, together, share, s_q, keys, shift, left,
    right, scale, score_scale, cap, first_query, first_key, dbias_desc, bias_desc, bias_ptr,
    bias_stride_b, bias_stride_h, lead, seed_low, seed_high, threshold, keep_scale,
    MASK: gl.constexpr, TERMS: gl.constexpr, ORDERED: gl.constexpr, SPREAD: gl.constexpr,
    STAGES: gl.constexpr, RISING: gl.constexpr,
):  # fmt: skip
    """Compute dk and dv [b, h_kv, s_kv, d] by their descriptors; dq, without scale, in sum_ptr's.

    With "dbias" among TERMS, dbias [b, h_q, s_q, s_kv] too, for tiles that have a pair.

    dk and dv begin at first_key, k and v at first_key + lead.

    SPREAD: all blocks of dk, without scale, and then those of dv are added to key_sum_ptr's.

    scale is dk's factor; the others are as in `hopper_kernel`, whose lse includes the sink's share.
    Under dropout -delta is divided by keep_scale, and dq and sums of dk and dv are to be multiplied
    by it.
    """
    ROWS: gl.constexpr = q_desc.block_type.shape[2]
    D: gl.constexpr = q_desc.block_type.shape[3]
    KEYS: gl.constexpr = k_desc.block_type.shape[2]
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, ROWS], q_desc.dtype)
    rows_layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [STAGES, 1, 1, ROWS, D], q_desc.layout)
    do_smem = gl.allocate_shared_memory(q_desc.dtype, [STAGES, 1, 1, ROWS, D], q_desc.layout)
    k_smem = gl.allocate_shared_memory(k_desc.dtype, [1, 1, 1, KEYS, D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(v_desc.dtype, [1, 1, 1, KEYS, D], v_desc.layout)
    ds_smem = gl.allocate_shared_memory(q_desc.dtype, [1, KEYS, ROWS], ds_layout)
    p_smem = ds_smem
    if is_wide(D):
        p_smem = gl.allocate_shared_memory(q_desc.dtype, [1, KEYS, ROWS], ds_layout)
    rows_smem = gl.allocate_shared_memory(gl.float32, [2 * ROWS], rows_layout)
    bias_smem = q_smem
    if has(TERMS, "bias"):
        bias_smem = gl.allocate_shared_memory(
            q_desc.dtype, [STAGES, 1, 1, ROWS, KEYS], bias_desc.layout
        )
    memory = BackwardMemory(q_smem, do_smem, k_smem, v_smem, p_smem, ds_smem, rows_smem, bias_smem)
    barriers = BackwardBarriers(
        new_barriers(STAGES, 1), new_barriers(STAGES, 1), new_barriers(1, 1).index(0),
        new_barriers(STAGES, 1), new_barriers(1, 1).index(0),
    )  # fmt: skip
    fence_async_shared()
    descriptors = Descriptors(
        q_desc, do_desc, k_desc, v_desc, dk_desc, dv_desc, bias_desc, dbias_desc
    )
    sizes = BackwardSizes(
        blocks, heads, at_once, sums, h_kv, group, together, share, s_q, keys, shift, left, right
    )
    terms = ScoreTerms(score_scale, cap, LOG2E, slopes_ptr, slopes_ptr)
    dropout = Dropout(seed_low, seed_high, threshold, first_query, first_key, keep_scale)
    bias_place = BiasPlace(bias_ptr, first_key, bias_stride_b, bias_stride_h)
    loading = (descriptors, memory, barriers, sizes, lead, bias_place, first_query)
    computing = (
        descriptors, rows_ptr, sum_ptr, key_sum_ptr, memory, barriers, sizes, scale, terms,
        bias_place, dropout,
    )  # fmt: skip
    # Constants stay constants only where they stand in the call.
    if ORDERED:
        gl.warp_specialize(
            [
                (_compute, (computing, MASK, TERMS, ORDERED, SPREAD, RISING)),
                (_load, (loading, MASK, TERMS, RISING)),
                (_take_turns, (turns_ptr, memory, barriers, sizes, MASK, RISING)),
            ],
            [1, 1],
            [24, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_compute, (computing, MASK, TERMS, ORDERED, SPREAD, RISING)),
                (_load, (loading, MASK, TERMS, RISING)),
            ],
            [1],
            [24],
        )


@triton.jit(do_not_specialize=["tiles", "h", "s"])
def rows_kernel(
    out_ptr, do_ptr, lse_ptr, rows_ptr, sum_ptr, turns_ptr, sums, tiles, h, s, delta_scale,
    stride_ob, stride_os, stride_oh, stride_od, stride_db, stride_ds, stride_dh, stride_dd,
    stride_lb, stride_lh, stride_ls, ROWS: tl.constexpr, D: tl.constexpr, MASK: tl.constexpr,
    ORDERED: tl.constexpr,
):  # fmt: skip
    """Write a tile's lse in base 2 (inf for rows without keys), -delta, and zeros for counters.

    delta is multiplied by delta_scale.
    """
    place = tl.program_id(0).to(tl.int64)
    head = place // tiles
    tile = place - head * tiles
    b = head // h
    h_i = head - b * h
    offs_m = tile * ROWS + tl.arange(0, ROWS)
    offs_d = tl.arange(0, D)
    mask_m = offs_m < s
    out_ptr += b * stride_ob + h_i * stride_oh
    do_ptr += b * stride_db + h_i * stride_dh
    out = tl.load(
        out_ptr + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od,
        mask=mask_m[:, None], other=0.0,
    )  # fmt: skip
    do = tl.load(
        do_ptr + offs_m[:, None] * stride_ds + offs_d[None, :] * stride_dd,
        mask=mask_m[:, None], other=0.0,
    )  # fmt: skip
    lse_ptr += b * stride_lb + h_i * stride_lh
    lse = tl.load(lse_ptr + offs_m * stride_ls, mask=mask_m, other=float("-inf"))
    lse = tl.where(lse == float("-inf"), float("inf"), lse * LOG2E)
    delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
    rows_ptr += place * 2 * ROWS + tl.arange(0, ROWS)
    tl.store(rows_ptr, lse)
    tl.store(rows_ptr + ROWS, -delta * delta_scale)
    for i in range(sums):
        part = i * tl.num_programs(0) + place
        if ORDERED:
            tl.store(turns_ptr + part, 0)
        if not ORDERED or MASK == "window" or (MASK == "causal" and i > 0):
            zeros = tl.zeros((ROWS * D,), tl.float32)
            tl.store(sum_ptr + part * (ROWS * D) + tl.arange(0, ROWS * D), zeros)


@triton.jit(do_not_specialize=["tiles", "h", "s"])
def rounding_kernel(
    sum_ptr, made_ptr, sums, tiles, h, s, scale, stride_b, stride_s, stride_h,
    ROWS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Round a tile of dq, dk or dv from its sums in the layout of `_add`."""
    place = tl.program_id(0).to(tl.int64)
    head = place // tiles
    tile = place - head * tiles
    b = head // h
    # As `_add` laid it: four neighbours are of two queries, 8 apart, of which the first counts.
    offs = tl.arange(0, ROWS * D)
    there = tile * ROWS + offs // (16 * D) * 16 + offs // 16 % 8 < s
    sum_ptr += place * (ROWS * D) + offs
    summed = tl.load(sum_ptr, mask=there, other=0.0)
    for i in tl.range(1, sums, loop_unroll_factor=4):
        step = i * tl.num_programs(0).to(tl.int64) * (ROWS * D)
        summed += tl.load(sum_ptr + step, mask=there, other=0.0)
    summed *= scale
    DOWN: tl.constexpr = ROWS // 16
    ACROSS: tl.constexpr = 8 // DOWN
    parts = summed.reshape((DOWN, ACROSS, D // (8 * ACROSS), 8, 4, 2, 2))
    summed = tl.permute(parts, (0, 5, 3, 1, 2, 4, 6))
    offs_m = tile * ROWS + tl.arange(0, ROWS)
    made_ptr += b * stride_b + (head - b * h) * stride_h
    tl.store(
        made_ptr + offs_m[:, None] * stride_s + tl.arange(0, D)[None, :],
        summed.reshape((ROWS, D)).to(made_ptr.dtype.element_ty), mask=(offs_m < s)[:, None],
    )  # fmt: skip
