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

from kernels.attention.scores import (
    LOG2E,
    attended,
    compiled_twice,
    keep_tile,
    key_tiles,
    query_tiles,
    score_tile,
    sequence,
)


@triton.jit
def row_statistics(lse_ptr, delta_ptr, offs_m, s_q):
    """lse and delta of a block of rows; lse is +inf, and so P 0, in rows that have no keys."""
    there = offs_m < s_q
    lse = tl.load(lse_ptr + offs_m, mask=there, other=float("inf"))
    delta = tl.load(delta_ptr + offs_m, mask=there, other=0.0)
    return tl.where(lse == float("-inf"), float("inf"), lse), delta


@triton.jit
def gradient_tile(
    x,
    dp,
    lse,
    delta,
    bias_base,
    slope,
    seed_low,
    seed_high,
    threshold,
    keep_scale,
    batch_head,
    start_m,
    start_n,
    shift,
    left,
    right,
    s_q,
    first_key,
    end_key,
    stride_bm,
    stride_bn,
    scale,
    softcap,
    BIAS: tl.constexpr,
    ALIBI: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DROPOUT: tl.constexpr,
    NATURAL: tl.constexpr,
    MASKED: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """w P, dS and dX of a tile x = q k^T, dp = do v^T; TRANSPOSED: of their transposes.

    lse and delta broadcast to x. scale is the case's where scores are natural; else scale log2(e),
    and lse is in base 2 as well.
    """
    queries = start_m + tl.arange(0, BLOCK_M)
    keys = start_n + tl.arange(0, BLOCK_N)
    if TRANSPOSED:
        offs_m = queries[None, :]
        offs_n = keys[:, None]
    else:
        offs_m = queries[:, None]
        offs_n = keys[None, :]
    x *= scale
    if MASKED:
        distance = offs_n - offs_m - shift
        mask = (distance <= right) & (distance >= -left)
        mask = mask & (offs_n < end_key) & (offs_n >= first_key) & (offs_m < s_q)
    else:
        mask = (offs_m < s_q) & (offs_n < end_key)
    if NATURAL:
        x, t = score_tile(
            x, bias_base, slope, offs_m, offs_n, shift, mask, stride_bm, stride_bn, softcap,
            BIAS, ALIBI, SOFTCAP, False,
        )  # fmt: skip
        p = tl.exp2((x - lse) * LOG2E)
    else:
        t = x
        p = tl.exp2(x - lse)
    if MASKED:
        p = tl.where(mask, p, 0.0)
    weights = p
    if DROPOUT:
        keep = keep_tile(
            seed_low, seed_high, threshold, batch_head, start_m, start_n, BLOCK_M, BLOCK_N
        )
        if TRANSPOSED:
            keep = tl.trans(keep.to(tl.int8)) != 0
        weights = tl.where(keep, p * keep_scale, 0.0)
        dp = tl.where(keep, dp * keep_scale, 0.0)
    ds = p * (dp - delta)
    if MASKED:
        # Beyond the mask dp may be NaN, of keys or queries that don't concern the tile.
        ds = tl.where(mask, ds, 0.0)
    dx = ds
    if SOFTCAP:
        dx = ds * (1.0 - t * t)
    return weights, ds, dx


def _delta(
    out_ptr,
    do_ptr,
    delta_ptr,
    stride_ob,
    stride_om,
    stride_oh,
    stride_od,
    stride_gb,
    stride_gm,
    stride_gh,
    stride_gd,
    h,
    s,
    d_v,
    ADJACENT: tl.constexpr,
    VECTOR: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """delta [b, h, s] = sum over d_v of out do, in fp32.

    Strides and d_v arrive divided by VECTOR, as in `forward_kernel`: 16-byte loads, or narrower.
    """
    blocks_m = tl.cdiv(s, BLOCK_M)
    batch_head = tl.program_id(0) // blocks_m
    batch = (batch_head // h).to(tl.int64)
    head = (batch_head % h).to(tl.int64)
    rows = (tl.program_id(0) % blocks_m) * BLOCK_M + tl.arange(0, BLOCK_M)
    there = rows < s
    wide_rows = rows.to(tl.int64)[:, None]
    if ADJACENT:
        stride_od, stride_gd = 1, 1
    out_base = out_ptr + batch * (stride_ob * VECTOR) + head * (stride_oh * VECTOR)
    do_base = do_ptr + batch * (stride_gb * VECTOR) + head * (stride_gh * VECTOR)
    d_v = d_v * VECTOR
    delta = tl.zeros((BLOCK_M,), tl.float32)
    for start in range(0, d_v, BLOCK_DV):
        offs = start + tl.arange(0, BLOCK_DV)
        mask = there[:, None] & (offs[None, :] < d_v)
        out_offs = wide_rows * (stride_om * VECTOR) + offs[None, :] * stride_od
        do_offs = wide_rows * (stride_gm * VECTOR) + offs[None, :] * stride_gd
        out = tl.load(out_base + out_offs, mask=mask, other=0.0).to(tl.float32)
        do = tl.load(do_base + do_offs, mask=mask, other=0.0).to(tl.float32)
        delta += tl.sum(out * do, 1)
    tl.store(delta_ptr + batch_head.to(tl.int64) * s + rows, delta, mask=there)


delta_kernel = compiled_twice(_delta, "out_ptr", "do_ptr")


@triton.jit
def _key_gradient_tiles(
    dk,
    dv,
    k,
    v,
    q_base,
    do_base,
    lse_ptr,
    delta_ptr,
    bias_base,
    slope,
    seed_low,
    seed_high,
    threshold,
    keep_scale,
    batch_head,
    start_n,
    first_tile,
    first,
    last,
    gap_at,
    gap,
    shift,
    left,
    right,
    s_q,
    first_key,
    end_key,
    d,
    d_v,
    stride_qm,
    stride_qd,
    stride_gm,
    stride_gd,
    stride_bm,
    stride_bn,
    scale,
    softcap,
    BIAS: tl.constexpr,
    ALIBI: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DROPOUT: tl.constexpr,
    NATURAL: tl.constexpr,
    MASKED: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    EVEN_D: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The query tiles first_tile + first to last, with a mask or without; see `_forward_tiles`."""
    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    offs_dv = tl.arange(0, BLOCK_DV)
    if WIDE:
        rows = offs_m.to(tl.int64)
    else:
        rows = offs_m
    q_offs = rows[:, None] * stride_qm + offs_d[None, :] * stride_qd  # [BLOCK_M, BLOCK_D]
    do_offs = rows[:, None] * stride_gm + offs_dv[None, :] * stride_gd  # [BLOCK_M, BLOCK_DV]
    for index in tl.range(first, last, num_stages=STAGES):
        tile = first_tile + index
        if MASKED:
            tile += tl.where(index >= gap_at, gap, 0)
        start_m = tile * BLOCK_M
        q_ptrs = q_base + start_m.to(tl.int64) * stride_qm + q_offs
        do_ptrs = do_base + start_m.to(tl.int64) * stride_gm + do_offs
        queries = start_m + offs_m
        if MASKED:
            there = queries < s_q
            q = tl.load(q_ptrs, mask=there[:, None] & (offs_d[None, :] < d), other=0.0)
            do = tl.load(do_ptrs, mask=there[:, None] & (offs_dv[None, :] < d_v), other=0.0)
            lse, delta = row_statistics(lse_ptr, delta_ptr, queries, s_q)
        else:
            if EVEN_D:
                q = tl.load(q_ptrs)
                do = tl.load(do_ptrs)
            else:
                q = tl.load(q_ptrs, mask=offs_d[None, :] < d, other=0.0)
                do = tl.load(do_ptrs, mask=offs_dv[None, :] < d_v, other=0.0)
            lse = tl.load(lse_ptr + queries)
            delta = tl.load(delta_ptr + queries)
            lse = tl.where(lse == float("-inf"), float("inf"), lse)
        if not NATURAL:
            lse *= LOG2E
        x = tl.dot(k, tl.trans(q), input_precision=PRECISION)  # [BLOCK_N, BLOCK_M]
        dp = x
        if DK:
            dp = tl.dot(v, tl.trans(do), input_precision=PRECISION)
        weights, _, dx = gradient_tile(
            x, dp, lse[None, :], delta[None, :], bias_base, slope, seed_low, seed_high, threshold,
            keep_scale,
            batch_head, start_m, start_n, shift, left, right, s_q, first_key, end_key, stride_bm,
            stride_bn, scale, softcap, BIAS, ALIBI, SOFTCAP, DROPOUT, NATURAL, MASKED, True,
            BLOCK_M, BLOCK_N,
        )  # fmt: skip
        if DV:
            dv = tl.dot(weights.to(do.dtype), do, dv, input_precision=PRECISION)
        if DK:
            dx = dx.to(q.dtype)
            dk = tl.dot(dx, q, dk, input_precision=PRECISION)
    return dk, dv


def _key_gradients(
    do_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    bias_ptr,
    slopes_ptr,
    lse_ptr,
    delta_ptr,
    cu_q,
    cu_k,
    dk_ptr,
    dv_ptr,
    stride_gb,
    stride_gm,
    stride_gh,
    stride_gd,
    stride_qb,
    stride_qm,
    stride_qh,
    stride_qd,
    stride_kb,
    stride_kn,
    stride_kh,
    stride_kd,
    stride_vb,
    stride_vn,
    stride_vh,
    stride_vd,
    stride_bb,
    stride_bh,
    stride_bm,
    stride_bn,
    stride_dkb,
    stride_dkn,
    stride_dkh,
    stride_dvb,
    stride_dvn,
    stride_dvh,
    stride_lb,
    stride_lh,
    scale,
    softcap,
    keep_scale,
    seed_low,
    seed_high,
    threshold,
    h_q,
    group,
    s_q,
    s_kv,
    d,
    d_v,
    left,
    right,
    bottom_right,
    member_splits,
    tile_splits,
    SOFTCAP: tl.constexpr,
    DROPOUT: tl.constexpr,
    NATURAL: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    SPLIT: tl.constexpr,
    EVEN_D: tl.constexpr,
    ADJACENT: tl.constexpr,
    VECTOR: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    STAGES: tl.constexpr,
):
    """dk [b, s_kv, h_kv, d] with DK, dv [b, s_kv, h_kv, d_v] with DV, from one walk.

    SPLIT: a program walks a share of the group's heads and of their query tiles, and adds what it
    gets to fp32 zeros by atomics. Strides of do, q, k, v, and d and d_v, arrive divided by VECTOR,
    as in `forward_kernel`.
    """
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
    batch = pid // h_kv
    kv_head = (pid % h_kv).to(tl.int64)
    start_q, start_k, s_q, s_kv = sequence(cu_q, cu_k, batch, s_q, s_kv)
    if start_n >= s_kv:
        return
    memory_batch = batch.to(tl.int64)
    if cu_q is not None:
        memory_batch = memory_batch * 0
    shift = (s_kv - s_q) * bottom_right
    d = d * VECTOR
    d_v = d_v * VECTOR
    if ADJACENT:
        stride_gd, stride_qd, stride_kd, stride_vd = 1, 1, 1, 1
    offs_n = start_n + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    offs_dv = tl.arange(0, BLOCK_DV)
    k_rows = start_k + offs_n
    if WIDE:
        k_rows = k_rows.to(tl.int64)
    first_key, end_key = attended(s_q, s_kv, shift, left, right)
    there = (offs_n >= first_key) & (offs_n < end_key)
    k_base = k_ptr + memory_batch * (stride_kb * VECTOR) + kv_head * (stride_kh * VECTOR)
    v_base = v_ptr + memory_batch * (stride_vb * VECTOR) + kv_head * (stride_vh * VECTOR)
    k_offs = k_rows[:, None] * (stride_kn * VECTOR) + offs_d[None, :] * stride_kd
    v_offs = k_rows[:, None] * (stride_vn * VECTOR) + offs_dv[None, :] * stride_vd
    k = tl.load(k_base + k_offs, mask=there[:, None] & (offs_d[None, :] < d), other=0.0)
    v = k
    if DK:
        v = tl.load(v_base + v_offs, mask=there[:, None] & (offs_dv[None, :] < d_v), other=0.0)
    low, full_low, full_high, high = query_tiles(
        start_n, s_q, s_kv, shift, left, right, BLOCK_M, BLOCK_N
    )
    dq_scale = scale
    if not NATURAL:
        dq_scale = scale * (1.0 / LOG2E)
    full, masked = full_high - full_low, full_low - low + high - full_high
    first_full, last_full, first_masked, last_masked = 0, full, 0, masked
    first_member, last_member = 0, group
    if SPLIT:
        share = tl.cdiv(full, tile_splits)
        first_full = tl.minimum(full, tile_split * share)
        last_full = tl.minimum(full, first_full + share)
        share = tl.cdiv(masked, tile_splits)
        first_masked = tl.minimum(masked, tile_split * share)
        last_masked = tl.minimum(masked, first_masked + share)
        share = tl.cdiv(group, member_splits)
        first_member = tl.minimum(group, member_split * share)
        last_member = tl.minimum(group, first_member + share)
    dk, dv = 0.0, 0.0
    if DK:
        dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    if DV:
        dv = tl.zeros((BLOCK_N, BLOCK_DV), tl.float32)
    for member in range(first_member, last_member):
        head = kv_head * group + member
        q_start = tl.cast(start_q, tl.int64)
        q_base = q_ptr + memory_batch * (stride_qb * VECTOR) + head * (stride_qh * VECTOR)
        q_base += q_start * (stride_qm * VECTOR)
        do_base = do_ptr + memory_batch * (stride_gb * VECTOR) + head * (stride_gh * VECTOR)
        do_base += q_start * (stride_gm * VECTOR)
        statistics = memory_batch * stride_lb + head * stride_lh + start_q
        bias_base = bias_ptr
        if bias_ptr is not None:
            bias_base += memory_batch * stride_bb + head * stride_bh
        slope = 0.0
        if slopes_ptr is not None:
            slope = tl.load(slopes_ptr + head)
        number = batch * h_q + head.to(tl.int32)
        dk, dv = _key_gradient_tiles(
            dk, dv, k, v, q_base, do_base, lse_ptr + statistics, delta_ptr + statistics,
            bias_base, slope, seed_low, seed_high, threshold, keep_scale, number, start_n,
            full_low, first_full, last_full, 0, 0, shift, left, right, s_q, first_key, end_key,
            d, d_v, stride_qm * VECTOR, stride_qd, stride_gm * VECTOR, stride_gd,
            stride_bm, stride_bn, scale, softcap, bias_ptr is not None,
            slopes_ptr is not None, SOFTCAP, DROPOUT, NATURAL, False, DK, DV, EVEN_D, WIDE,
            PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, STAGES,
        )  # fmt: skip
        dk, dv = _key_gradient_tiles(
            dk, dv, k, v, q_base, do_base, lse_ptr + statistics, delta_ptr + statistics,
            bias_base, slope, seed_low, seed_high, threshold, keep_scale, number, start_n,
            low, first_masked, last_masked, full_low - low, full, shift, left, right,
            s_q, first_key, end_key,
            d, d_v, stride_qm * VECTOR, stride_qd, stride_gm * VECTOR, stride_gd,
            stride_bm, stride_bn, scale, softcap, bias_ptr is not None,
            slopes_ptr is not None, SOFTCAP, DROPOUT, NATURAL, True, DK, DV, EVEN_D, WIDE,
            PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, STAGES,
        )  # fmt: skip
    stored = offs_n < s_kv
    wide_rows = k_rows.to(tl.int64)[:, None]
    if DK:
        dk = tl.where(there[:, None], dk * dq_scale, 0.0).to(dk_ptr.dtype.element_ty)
        dk_base = dk_ptr + memory_batch * (stride_dkb * VECTOR) + kv_head * (stride_dkh * VECTOR)
        dk_ptrs = dk_base + wide_rows * (stride_dkn * VECTOR) + offs_d[None, :]
        dk_mask = stored[:, None] & (offs_d[None, :] < d)
        if SPLIT:
            tl.atomic_add(dk_ptrs, dk, mask=dk_mask, sem="relaxed")
        else:
            tl.store(dk_ptrs, dk, mask=dk_mask)
    if DV:
        dv = tl.where(there[:, None], dv, 0.0).to(dv_ptr.dtype.element_ty)
        dv_base = dv_ptr + memory_batch * (stride_dvb * VECTOR) + kv_head * (stride_dvh * VECTOR)
        dv_ptrs = dv_base + wide_rows * (stride_dvn * VECTOR) + offs_dv[None, :]
        dv_mask = stored[:, None] & (offs_dv[None, :] < d_v)
        if SPLIT:
            tl.atomic_add(dv_ptrs, dv, mask=dv_mask, sem="relaxed")
        else:
            tl.store(dv_ptrs, dv, mask=dv_mask)


key_gradients_kernel = compiled_twice(
    _key_gradients, "do_ptr", "q_ptr", "k_ptr", "v_ptr", "dk_ptr", "dv_ptr"
)


@triton.jit
def _query_gradient_tiles(
    dq,
    q,
    do,
    lse,
    delta,
    k_base,
    v_base,
    bias_base,
    slope,
    seed_low,
    seed_high,
    threshold,
    keep_scale,
    batch_head,
    start_m,
    first_tile,
    tiles,
    gap_at,
    gap,
    shift,
    left,
    right,
    s_q,
    first_key,
    end_key,
    d,
    d_v,
    stride_kn,
    stride_kd,
    stride_vn,
    stride_vd,
    stride_bm,
    stride_bn,
    scale,
    softcap,
    BIAS: tl.constexpr,
    ALIBI: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DROPOUT: tl.constexpr,
    NATURAL: tl.constexpr,
    MASKED: tl.constexpr,
    EVEN_D: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The key tiles of a block of queries, all with a mask or all without; see `_forward_tiles`."""
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    offs_dv = tl.arange(0, BLOCK_DV)
    if WIDE:
        rows = offs_n.to(tl.int64)
    else:
        rows = offs_n
    k_offs = rows[:, None] * stride_kn + offs_d[None, :] * stride_kd  # [BLOCK_N, BLOCK_D]
    v_offs = rows[None, :] * stride_vn + offs_dv[:, None] * stride_vd  # [BLOCK_DV, BLOCK_N]
    for index in tl.range(0, tiles, num_stages=STAGES):
        tile = first_tile + index
        if MASKED:
            tile += tl.where(index >= gap_at, gap, 0)
        start_n = tile * BLOCK_N
        k_ptrs = k_base + start_n.to(tl.int64) * stride_kn + k_offs
        v_ptrs = v_base + start_n.to(tl.int64) * stride_vn + v_offs
        if MASKED:
            keys = start_n + offs_n
            there = (keys >= first_key) & (keys < end_key)
            k = tl.load(k_ptrs, mask=there[:, None] & (offs_d[None, :] < d), other=0.0)
            v = tl.load(v_ptrs, mask=there[None, :] & (offs_dv[:, None] < d_v), other=0.0)
        elif EVEN_D:
            k = tl.load(k_ptrs)
            v = tl.load(v_ptrs)
        else:
            k = tl.load(k_ptrs, mask=offs_d[None, :] < d, other=0.0)
            v = tl.load(v_ptrs, mask=offs_dv[:, None] < d_v, other=0.0)
        x = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        dp = tl.dot(do, v, input_precision=PRECISION)
        _, _, dx = gradient_tile(
            x, dp, lse[:, None], delta[:, None], bias_base, slope, seed_low, seed_high, threshold,
            keep_scale,
            batch_head, start_m, start_n, shift, left, right, s_q, first_key, end_key, stride_bm,
            stride_bn, scale, softcap, BIAS, ALIBI, SOFTCAP, DROPOUT, NATURAL, MASKED, False,
            BLOCK_M, BLOCK_N,
        )  # fmt: skip
        dq = tl.dot(dx.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


def _query_gradients(
    do_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    bias_ptr,
    slopes_ptr,
    lse_ptr,
    delta_ptr,
    cu_q,
    cu_k,
    dq_ptr,
    stride_ob,
    stride_om,
    stride_oh,
    stride_od,
    stride_gb,
    stride_gm,
    stride_gh,
    stride_gd,
    stride_qb,
    stride_qm,
    stride_qh,
    stride_qd,
    stride_kb,
    stride_kn,
    stride_kh,
    stride_kd,
    stride_vb,
    stride_vn,
    stride_vh,
    stride_vd,
    stride_bb,
    stride_bh,
    stride_bm,
    stride_bn,
    stride_dqb,
    stride_dqm,
    stride_dqh,
    stride_lb,
    stride_lh,
    scale,
    softcap,
    keep_scale,
    seed_low,
    seed_high,
    threshold,
    h_q,
    group,
    s_q,
    s_kv,
    d,
    d_v,
    left,
    right,
    bottom_right,
    SOFTCAP: tl.constexpr,
    DROPOUT: tl.constexpr,
    NATURAL: tl.constexpr,
    EVEN_D: tl.constexpr,
    ADJACENT: tl.constexpr,
    VECTOR: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    STAGES: tl.constexpr,
):
    """dq [b, s_q, h_q, d], and delta on the way, which the pass over keys then reads.

    Strides, d and d_v arrive divided by VECTOR, as in `forward_kernel`.
    """
    blocks_m = tl.cdiv(s_q, BLOCK_M)
    start_m = (blocks_m - 1 - tl.program_id(0) % blocks_m) * BLOCK_M
    batch_head = tl.program_id(0) // blocks_m
    batch = batch_head // h_q
    head = (batch_head % h_q).to(tl.int64)
    start_q, start_k, s_q, s_kv = sequence(cu_q, cu_k, batch, s_q, s_kv)
    if start_m >= s_q:
        return
    memory_batch = batch.to(tl.int64)
    if cu_q is not None:
        memory_batch = memory_batch * 0
    shift = (s_kv - s_q) * bottom_right
    d = d * VECTOR
    d_v = d_v * VECTOR
    if ADJACENT:
        stride_od, stride_gd, stride_qd, stride_kd, stride_vd = 1, 1, 1, 1, 1
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    offs_dv = tl.arange(0, BLOCK_DV)
    there = offs_m < s_q
    rows = start_q + offs_m
    if WIDE:
        rows = rows.to(tl.int64)
    kv_head = head // group
    q_base = q_ptr + memory_batch * (stride_qb * VECTOR) + head * (stride_qh * VECTOR)
    do_base = do_ptr + memory_batch * (stride_gb * VECTOR) + head * (stride_gh * VECTOR)
    k_base = k_ptr + memory_batch * (stride_kb * VECTOR) + kv_head * (stride_kh * VECTOR)
    v_base = v_ptr + memory_batch * (stride_vb * VECTOR) + kv_head * (stride_vh * VECTOR)
    k_base += tl.cast(start_k, tl.int64) * (stride_kn * VECTOR)
    v_base += tl.cast(start_k, tl.int64) * (stride_vn * VECTOR)
    q_offs = rows[:, None] * (stride_qm * VECTOR) + offs_d[None, :] * stride_qd
    do_offs = rows[:, None] * (stride_gm * VECTOR) + offs_dv[None, :] * stride_gd
    q = tl.load(q_base + q_offs, mask=there[:, None] & (offs_d[None, :] < d), other=0.0)
    do = tl.load(do_base + do_offs, mask=there[:, None] & (offs_dv[None, :] < d_v), other=0.0)
    statistics = memory_batch * stride_lb + head * stride_lh + start_q
    out_base = out_ptr + memory_batch * (stride_ob * VECTOR) + head * (stride_oh * VECTOR)
    out_offs = rows[:, None] * (stride_om * VECTOR) + offs_dv[None, :] * stride_od
    mask = there[:, None] & (offs_dv[None, :] < d_v)
    out = tl.load(out_base + out_offs, mask=mask, other=0.0)
    delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
    tl.store(delta_ptr + statistics + offs_m, delta, mask=there)
    lse = tl.load(lse_ptr + statistics + offs_m, mask=there, other=float("inf"))
    lse = tl.where(lse == float("-inf"), float("inf"), lse)
    dq_scale = scale
    if not NATURAL:
        lse *= LOG2E
        dq_scale = scale * (1.0 / LOG2E)
    bias_base = bias_ptr
    if bias_ptr is not None:
        bias_base += memory_batch * stride_bb + head * stride_bh
    slope = 0.0
    if slopes_ptr is not None:
        slope = tl.load(slopes_ptr + head)
    first_key, end_key = attended(s_q, s_kv, shift, left, right)
    low, full_low, full_high, high = key_tiles(
        start_m, s_q, s_kv, shift, left, right, BLOCK_M, BLOCK_N
    )
    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    dq = _query_gradient_tiles(
        dq, q, do, lse, delta, k_base, v_base, bias_base, slope, seed_low, seed_high, threshold,
        keep_scale,
        batch_head, start_m, full_low, full_high - full_low, 0, 0, shift, left, right, s_q,
        first_key, end_key, d, d_v, stride_kn * VECTOR, stride_kd, stride_vn * VECTOR, stride_vd,
        stride_bm, stride_bn, scale, softcap, bias_ptr is not None, slopes_ptr is not None,
        SOFTCAP, DROPOUT, NATURAL, False, EVEN_D, WIDE, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D,
        BLOCK_DV, STAGES,
    )  # fmt: skip
    before = full_low - low
    dq = _query_gradient_tiles(
        dq, q, do, lse, delta, k_base, v_base, bias_base, slope, seed_low, seed_high, threshold,
        keep_scale,
        batch_head, start_m, low, before + high - full_high, before, full_high - full_low, shift,
        left, right, s_q, first_key, end_key, d, d_v, stride_kn * VECTOR, stride_kd,
        stride_vn * VECTOR, stride_vd, stride_bm, stride_bn, scale, softcap,
        bias_ptr is not None, slopes_ptr is not None, SOFTCAP, DROPOUT, NATURAL, True, EVEN_D,
        WIDE, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, STAGES,
    )  # fmt: skip
    dq *= dq_scale
    dq_base = dq_ptr + memory_batch * (stride_dqb * VECTOR) + head * (stride_dqh * VECTOR)
    dq_ptrs = dq_base + rows.to(tl.int64)[:, None] * (stride_dqm * VECTOR) + offs_d[None, :]
    mask = there[:, None] & (offs_d[None, :] < d)
    tl.store(dq_ptrs, dq.to(dq_ptr.dtype.element_ty), mask=mask)


query_gradients_kernel = compiled_twice(
    _query_gradients, "do_ptr", "q_ptr", "k_ptr", "v_ptr", "out_ptr", "dq_ptr"
)
