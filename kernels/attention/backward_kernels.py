"""Attention backward: P is computed again from lse, tile by tile, and nothing s x s is stored.

    P = exp(S - lse)    dP = do v^T    dS = P (w dP - delta)    dX = dS h, h = 1 - tanh^2 (softcap)
    dv = (w P)^T do     dk = scale dX^T q                       dq = scale dX k

Two passes: a program owns a block of keys (dk, dv) and walks the queries of every head of its
group, or owns a block of queries (dq) and walks the keys. Each sum has one owner and one order, so
the pair is bitwise repeatable. It does seven products for the five that are counted, and is faster
so than one walk that adds dq up in memory (docs/measured.md). Where keys are few, or many heads
share them, the walk over queries can be split over programs, whose shares meet in no order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernel_workbench.kernels.attention.launch import compiled_twice
from kernel_workbench.kernels.attention.scores import (
    LOG2E,
    HeadScores,
    ScoreOptions,
    batch_in_memory,
    head_of,
    kept,
    key_tiles,
    load_rows,
    load_tile,
    mask_of,
    query_block,
    query_tiles,
    score_tile,
    sequence,
    terms_of,
    tile_at,
    tiles_walked,
)


@triton.jit
def row_statistics(lse_ptr, delta_ptr, offs_m, s_q):
    """Load lse and delta of a block of rows; lse is +inf, and so P 0, in rows without keys."""
    there = offs_m < s_q
    lse = tl.load(lse_ptr + offs_m, mask=there, other=float("inf"))
    delta = tl.load(delta_ptr + offs_m, mask=there, other=0.0)
    return tl.where(lse == float("-inf"), float("inf"), lse), delta


@triton.jit
def gradient_tile(
    x, dp, lse, delta, scores, mask, start_m, start_n,
    MASKED: tl.constexpr, TRANSPOSED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return w P, dS and dX of a tile x = q k^T, dp = do v^T; TRANSPOSED: of their transposes.

    lse and delta broadcast to x; if scores aren't natural, lse is in base 2 as well.
    """
    options = scores.options
    queries = start_m + tl.arange(0, BLOCK_M)
    keys = start_n + tl.arange(0, BLOCK_N)
    if TRANSPOSED:
        offs_m = queries[None, :]
        offs_n = keys[:, None]
    else:
        offs_m = queries[:, None]
        offs_n = keys[None, :]
    x *= options.scale
    if MASKED:
        distance = offs_n - offs_m - mask.shift
        attends = (distance <= mask.right) & (distance >= -mask.left)
        attends = attends & (offs_n < mask.end_key) & (offs_n >= mask.first_key)
        attends = attends & (offs_m < mask.s_q)
    else:
        attends = (offs_m < mask.s_q) & (offs_n < mask.end_key)
    if options.NATURAL:
        x, t = score_tile(x, scores, offs_m, offs_n, mask.shift, attends)
        p = tl.exp2((x - lse) * LOG2E)
    else:
        t = x
        p = tl.exp2(x - lse)
    if MASKED:
        p = tl.where(attends, p, 0.0)
    weights = p
    if options.DROPOUT:
        keep = kept(scores, queries[:, None], start_n, BLOCK_M, BLOCK_N)
        if TRANSPOSED:
            keep = tl.trans(keep.to(tl.int8)) != 0
        weights = tl.where(keep, p * options.keep_scale, 0.0)
        dp = tl.where(keep, dp * options.keep_scale, 0.0)
    ds = p * (dp - delta)
    if MASKED:
        # Beyond the mask dp may be NaN, from keys or queries outside of the tile's pairs.
        ds = tl.where(attends, ds, 0.0)
    dx = ds
    if options.SOFTCAP:
        dx = ds * (1.0 - t * t)
    return weights, ds, dx


def _delta(
    out_ptr, stride_ob, stride_om, stride_oh, stride_od,
    do_ptr, stride_gb, stride_gm, stride_gh, stride_gd, delta_ptr, h, s, d_v,
    ADJACENT: tl.constexpr, VECTOR: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """delta [b, h, s] = sum over d_v of out do, in fp32.

    Strides and d_v arrive divided by VECTOR: 16-byte loads, or narrower. See `head_of`.
    """
    blocks_m = tl.cdiv(s, BLOCK_M)
    batch_head = tl.program_id(0) // blocks_m
    batch = (batch_head // h).to(tl.int64)
    head = (batch_head % h).to(tl.int64)
    rows = (tl.program_id(0) % blocks_m) * BLOCK_M + tl.arange(0, BLOCK_M)
    there = rows < s
    wide_rows = rows.to(tl.int64)
    out_head = head_of(
        out_ptr, stride_ob, stride_om, stride_oh, stride_od, batch, head, 0, ADJACENT, VECTOR, WIDE
    )
    do_head = head_of(
        do_ptr, stride_gb, stride_gm, stride_gh, stride_gd, batch, head, 0, ADJACENT, VECTOR, WIDE
    )
    d_v = d_v * VECTOR
    delta = tl.zeros((BLOCK_M,), tl.float32)
    for start in range(0, d_v, BLOCK_DV):
        offs = start + tl.arange(0, BLOCK_DV)
        mask = there[:, None] & (offs[None, :] < d_v)
        out = load_rows(out_head, wide_rows, offs, mask).to(tl.float32)
        do = load_rows(do_head, wide_rows, offs, mask).to(tl.float32)
        delta += tl.sum(out * do, 1)
    tl.store(delta_ptr + batch_head.to(tl.int64) * s + rows, delta, mask=there)


delta_kernel = compiled_twice(_delta, "out_ptr", "do_ptr")


@triton.jit
def _key_gradient_tiles(
    dk, dv, k, v, q_head, do_head, lse_ptr, delta_ptr, scores, mask, start_n, tiles, first, last,
    d, d_v, MASKED: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, EVEN_D: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Add query tiles first to last to dk and dv: the tiles with a mask, or the others."""
    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    offs_dv = tl.arange(0, BLOCK_DV)
    if WIDE:
        rows = offs_m.to(tl.int64)
    else:
        rows = offs_m
    # [BLOCK_M, BLOCK_D] and [BLOCK_M, BLOCK_DV]
    q_offs = rows[:, None] * q_head.stride_m + offs_d[None, :] * q_head.stride_d
    do_offs = rows[:, None] * do_head.stride_m + offs_dv[None, :] * do_head.stride_d
    for index in tl.range(first, last, num_stages=STAGES):
        start_m = tile_at(tiles, index, MASKED) * BLOCK_M
        q_ptrs = q_head.base + start_m.to(tl.int64) * q_head.stride_m + q_offs
        do_ptrs = do_head.base + start_m.to(tl.int64) * do_head.stride_m + do_offs
        queries = start_m + offs_m
        there = queries < mask.s_q
        q = load_tile(q_ptrs, there[:, None], offs_d[None, :] < d, MASKED, EVEN_D)
        do = load_tile(do_ptrs, there[:, None], offs_dv[None, :] < d_v, MASKED, EVEN_D)
        if MASKED:
            lse, delta = row_statistics(lse_ptr, delta_ptr, queries, mask.s_q)
        else:
            lse = tl.load(lse_ptr + queries)
            delta = tl.load(delta_ptr + queries)
            lse = tl.where(lse == float("-inf"), float("inf"), lse)
        if not scores.options.NATURAL:
            lse *= LOG2E
        x = tl.dot(k, tl.trans(q), input_precision=PRECISION)  # [BLOCK_N, BLOCK_M]
        dp = x
        if DK:
            dp = tl.dot(v, tl.trans(do), input_precision=PRECISION)
        weights, _, dx = gradient_tile(
            x, dp, lse[None, :], delta[None, :], scores, mask, start_m, start_n,
            MASKED, True, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        if DV:
            dv = tl.dot(weights.to(do.dtype), do, dv, input_precision=PRECISION)
        if DK:
            dx = dx.to(q.dtype)
            dk = tl.dot(dx, q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit
def _share(count, split, splits, SPLIT: tl.constexpr):
    """Return the first and last of `count` items of a split; without splits, all of them."""
    first, last = 0, count
    if SPLIT:
        share = tl.cdiv(count, splits)
        first = tl.minimum(count, split * share)
        last = tl.minimum(count, first + share)
    return first, last


@triton.jit
def _leave(
    head, gradient, rows, columns, width, there, stored, dtype: tl.constexpr, SPLIT: tl.constexpr
):
    """Store a block of a gradient, or add it to memory; keys without queries get 0."""
    gradient = tl.where(there[:, None], gradient, 0.0).to(dtype)
    ptrs = head.base + rows.to(tl.int64)[:, None] * head.stride_m + columns[None, :]
    mask = stored[:, None] & (columns[None, :] < width)
    if SPLIT:
        tl.atomic_add(ptrs, gradient, mask=mask, sem="relaxed")
    else:
        tl.store(ptrs, gradient, mask=mask)


def _key_gradients(
    do_ptr, stride_gb, stride_gm, stride_gh, stride_gd,
    q_ptr, stride_qb, stride_qm, stride_qh, stride_qd,
    k_ptr, stride_kb, stride_kn, stride_kh, stride_kd,
    v_ptr, stride_vb, stride_vn, stride_vh, stride_vd,
    dk_ptr, stride_dkb, stride_dkn, stride_dkh, dv_ptr, stride_dvb, stride_dvn, stride_dvh,
    lse_ptr, delta_ptr, stride_lb, stride_lh,
    bias_ptr, stride_bb, stride_bh, stride_bm, stride_bn, slopes_ptr, cu_q, cu_k,
    scale, softcap, keep_scale, seed_low, seed_high, threshold, left, right, bottom_right,
    h_q, group, s_q, s_kv, d, d_v, member_splits, tile_splits,
    SOFTCAP: tl.constexpr, DROPOUT: tl.constexpr, NATURAL: tl.constexpr, DK: tl.constexpr,
    DV: tl.constexpr, SPLIT: tl.constexpr, EVEN_D: tl.constexpr, ADJACENT: tl.constexpr,
    VECTOR: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute dk [b, s_kv, h_kv, d] with DK, dv [b, s_kv, h_kv, d_v] with DV, in one walk.

    SPLIT: a program walks over a share of the group's heads and of their query tiles, and adds its
    sums to fp32 zeros by atomics. Strides of do, q, k, v, dk and dv, and d and d_v, arrive divided
    by VECTOR: see `head_of`.
    """
    options = ScoreOptions(
        bias_ptr=bias_ptr, stride_bb=stride_bb, stride_bh=stride_bh, stride_bm=stride_bm,
        stride_bn=stride_bn, slopes_ptr=slopes_ptr, scale=scale, softcap=softcap,
        keep_scale=keep_scale, seed_low=seed_low, seed_high=seed_high, threshold=threshold,
        SOFTCAP=SOFTCAP, DROPOUT=DROPOUT, NATURAL=NATURAL,
    )  # fmt: skip
    h_kv = h_q // group
    blocks_n = tl.cdiv(s_kv, BLOCK_N)
    pid = tl.program_id(0)
    start_n = (pid % blocks_n) * BLOCK_N  # under a causal mask the longest first
    pid = pid // blocks_n
    member_split, tile_split = 0, 0
    if SPLIT:
        tile_split = pid % tile_splits
        member_split = (pid // tile_splits) % member_splits
        pid = pid // (tile_splits * member_splits)
    number = pid // h_kv
    kv_head = (pid % h_kv).to(tl.int64)
    start_q, start_k, s_q, s_kv = sequence(cu_q, cu_k, number, s_q, s_kv)
    if start_n >= s_kv:
        return
    batch = batch_in_memory(cu_q, number)
    d = d * VECTOR
    d_v = d_v * VECTOR
    offs_n = start_n + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    offs_dv = tl.arange(0, BLOCK_DV)
    k_rows = start_k + offs_n
    if WIDE:
        k_rows = k_rows.to(tl.int64)
    mask = mask_of(s_q, s_kv, left, right, bottom_right)
    there = (offs_n >= mask.first_key) & (offs_n < mask.end_key)
    k_head = head_of(
        k_ptr, stride_kb, stride_kn, stride_kh, stride_kd, batch, kv_head, 0, ADJACENT, VECTOR, WIDE
    )
    k = load_rows(k_head, k_rows, offs_d, there[:, None] & (offs_d[None, :] < d))
    v = k
    if DK:
        v_head = head_of(
            v_ptr, stride_vb, stride_vn, stride_vh, stride_vd, batch, kv_head, 0, ADJACENT, VECTOR,
            WIDE,
        )  # fmt: skip
        v = load_rows(v_head, k_rows, offs_dv, there[:, None] & (offs_dv[None, :] < d_v))
    tiles = query_tiles(mask, start_n, BLOCK_M, BLOCK_N)
    first_member, last_member = _share(group, member_split, member_splits, SPLIT)
    dk, dv = 0.0, 0.0
    if DK:
        dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    if DV:
        dv = tl.zeros((BLOCK_N, BLOCK_DV), tl.float32)
    for member in range(first_member, last_member):
        head = kv_head * group + member
        q_head = head_of(
            q_ptr, stride_qb, stride_qm, stride_qh, stride_qd, batch, head, start_q, ADJACENT,
            VECTOR, WIDE,
        )  # fmt: skip
        do_head = head_of(
            do_ptr, stride_gb, stride_gm, stride_gh, stride_gd, batch, head, start_q, ADJACENT,
            VECTOR, WIDE,
        )  # fmt: skip
        statistics = batch * stride_lb + head * stride_lh + start_q
        bias_offset, slope = terms_of(options, batch, head)
        scores = HeadScores(options, bias_offset, slope, number * h_q + head.to(tl.int32))
        for masked in tl.static_range(2):
            walked = tiles_walked(tiles, masked)
            first, last = _share(walked, tile_split, tile_splits, SPLIT)
            dk, dv = _key_gradient_tiles(
                dk, dv, k, v, q_head, do_head, lse_ptr + statistics, delta_ptr + statistics,
                scores, mask, start_n, tiles, first, last, d, d_v, masked, DK, DV, EVEN_D, WIDE,
                PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, STAGES,
            )  # fmt: skip
    stored = offs_n < s_kv
    if DK:
        dk_scale = scale
        if not NATURAL:
            dk_scale = scale * (1.0 / LOG2E)
        head = head_of(
            dk_ptr, stride_dkb, stride_dkn, stride_dkh, 1, batch, kv_head, 0, True, VECTOR
        )
        dtype = dk_ptr.dtype.element_ty
        _leave(head, dk * dk_scale, k_rows, offs_d, d, there, stored, dtype, SPLIT)
    if DV:
        head = head_of(
            dv_ptr, stride_dvb, stride_dvn, stride_dvh, 1, batch, kv_head, 0, True, VECTOR
        )
        _leave(head, dv, k_rows, offs_dv, d_v, there, stored, dv_ptr.dtype.element_ty, SPLIT)


# With one query head to a key head, the walk over a group's heads vanishes.
key_gradients_kernel = compiled_twice(
    _key_gradients, "do_ptr", "q_ptr", "k_ptr", "v_ptr", "dk_ptr", "dv_ptr", ones=("group",)
)


@triton.jit
def _query_gradient_tiles(
    dq, q, do, lse, delta, k_head, v_head, scores, mask, start_m, tiles, d, d_v,
    MASKED: tl.constexpr, EVEN_D: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Add key tiles to dq: the tiles that need a mask, or the others."""
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    offs_dv = tl.arange(0, BLOCK_DV)
    if WIDE:
        rows = offs_n.to(tl.int64)
    else:
        rows = offs_n
    # [BLOCK_N, BLOCK_D] and [BLOCK_DV, BLOCK_N]
    k_offs = rows[:, None] * k_head.stride_m + offs_d[None, :] * k_head.stride_d
    v_offs = rows[None, :] * v_head.stride_m + offs_dv[:, None] * v_head.stride_d
    for index in tl.range(0, tiles_walked(tiles, MASKED), num_stages=STAGES):
        start_n = tile_at(tiles, index, MASKED) * BLOCK_N
        k_ptrs = k_head.base + start_n.to(tl.int64) * k_head.stride_m + k_offs
        v_ptrs = v_head.base + start_n.to(tl.int64) * v_head.stride_m + v_offs
        keys = start_n + offs_n
        there = (keys >= mask.first_key) & (keys < mask.end_key)
        k = load_tile(k_ptrs, there[:, None], offs_d[None, :] < d, MASKED, EVEN_D)
        v = load_tile(v_ptrs, there[None, :], offs_dv[:, None] < d_v, MASKED, EVEN_D)
        x = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        dp = tl.dot(do, v, input_precision=PRECISION)
        _, _, dx = gradient_tile(
            x, dp, lse[:, None], delta[:, None], scores, mask, start_m, start_n,
            MASKED, False, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        dq = tl.dot(dx.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


def _query_gradients(
    do_ptr, stride_gb, stride_gm, stride_gh, stride_gd,
    q_ptr, stride_qb, stride_qm, stride_qh, stride_qd,
    k_ptr, stride_kb, stride_kn, stride_kh, stride_kd,
    v_ptr, stride_vb, stride_vn, stride_vh, stride_vd,
    out_ptr, stride_ob, stride_om, stride_oh, stride_od,
    dq_ptr, stride_dqb, stride_dqm, stride_dqh, lse_ptr, delta_ptr, stride_lb, stride_lh,
    bias_ptr, stride_bb, stride_bh, stride_bm, stride_bn, slopes_ptr, cu_q, cu_k,
    scale, softcap, keep_scale, seed_low, seed_high, threshold, left, right, bottom_right,
    h_q, group, s_q, s_kv, d, d_v,
    SOFTCAP: tl.constexpr, DROPOUT: tl.constexpr, NATURAL: tl.constexpr, EVEN_D: tl.constexpr,
    ADJACENT: tl.constexpr, VECTOR: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute dq [b, s_q, h_q, d], and delta in passing, for the pass over keys.

    Strides, d and d_v arrive divided by VECTOR: see `head_of`.
    """
    options = ScoreOptions(
        bias_ptr=bias_ptr, stride_bb=stride_bb, stride_bh=stride_bh, stride_bm=stride_bm,
        stride_bn=stride_bn, slopes_ptr=slopes_ptr, scale=scale, softcap=softcap,
        keep_scale=keep_scale, seed_low=seed_low, seed_high=seed_high, threshold=threshold,
        SOFTCAP=SOFTCAP, DROPOUT=DROPOUT, NATURAL=NATURAL,
    )  # fmt: skip
    start_m, batch_head = query_block(s_q, BLOCK_M)
    number = batch_head // h_q
    head = (batch_head % h_q).to(tl.int64)
    start_q, start_k, s_q, s_kv = sequence(cu_q, cu_k, number, s_q, s_kv)
    if start_m >= s_q:
        return
    batch = batch_in_memory(cu_q, number)
    kv_head = head // group
    d = d * VECTOR
    d_v = d_v * VECTOR
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    offs_dv = tl.arange(0, BLOCK_DV)
    there = offs_m < s_q
    rows = start_q + offs_m
    if WIDE:
        rows = rows.to(tl.int64)
    q_head = head_of(
        q_ptr, stride_qb, stride_qm, stride_qh, stride_qd, batch, head, 0, ADJACENT, VECTOR, WIDE
    )
    do_head = head_of(
        do_ptr, stride_gb, stride_gm, stride_gh, stride_gd, batch, head, 0, ADJACENT, VECTOR, WIDE
    )
    out_head = head_of(
        out_ptr, stride_ob, stride_om, stride_oh, stride_od, batch, head, 0, ADJACENT, VECTOR, WIDE
    )
    k_head = head_of(
        k_ptr, stride_kb, stride_kn, stride_kh, stride_kd, batch, kv_head, start_k, ADJACENT,
        VECTOR, WIDE,
    )  # fmt: skip
    v_head = head_of(
        v_ptr, stride_vb, stride_vn, stride_vh, stride_vd, batch, kv_head, start_k, ADJACENT,
        VECTOR, WIDE,
    )  # fmt: skip
    within_d = there[:, None] & (offs_d[None, :] < d)
    within_dv = there[:, None] & (offs_dv[None, :] < d_v)
    q = load_rows(q_head, rows, offs_d, within_d)
    do = load_rows(do_head, rows, offs_dv, within_dv)
    out = load_rows(out_head, rows, offs_dv, within_dv)
    delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
    statistics = batch * stride_lb + head * stride_lh + start_q
    tl.store(delta_ptr + statistics + offs_m, delta, mask=there)
    lse = tl.load(lse_ptr + statistics + offs_m, mask=there, other=float("inf"))
    lse = tl.where(lse == float("-inf"), float("inf"), lse)
    dq_scale = scale
    if not NATURAL:
        lse *= LOG2E
        dq_scale = scale * (1.0 / LOG2E)
    bias_offset, slope = terms_of(options, batch, head)
    scores = HeadScores(options, bias_offset, slope, batch_head)
    mask = mask_of(s_q, s_kv, left, right, bottom_right)
    tiles = key_tiles(mask, start_m, tl.minimum(start_m + BLOCK_M, s_q) - 1, BLOCK_N)
    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for masked in tl.static_range(2):
        dq = _query_gradient_tiles(
            dq, q, do, lse, delta, k_head, v_head, scores, mask, start_m, tiles, d, d_v,
            masked, EVEN_D, WIDE, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, STAGES,
        )  # fmt: skip
    dq *= dq_scale
    dq_head = head_of(dq_ptr, stride_dqb, stride_dqm, stride_dqh, 1, batch, head, 0, True, VECTOR)
    dq_ptrs = dq_head.base + rows.to(tl.int64)[:, None] * dq_head.stride_m + offs_d[None, :]
    tl.store(dq_ptrs, dq.to(dq_ptr.dtype.element_ty), mask=within_d)


query_gradients_kernel = compiled_twice(
    _query_gradients, "do_ptr", "q_ptr", "k_ptr", "v_ptr", "out_ptr", "dq_ptr"
)
