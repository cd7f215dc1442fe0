"""Attention forward: a block of queries a program, keys in tiles, a running softmax.

For each tile: S = q k^T, m' = max(m, max S), l' = l exp(m - m') + sum exp(S - m'), and likewise
acc' = acc exp(m - m') + exp(S - m') v; at the end out = acc / l and lse = m + log l (Milakov &
Gimelshein 2018; Dao et al. 2022). The accumulator stays in registers (`rf`), or is kept in memory
and visited a chunk of d_v at a time (`gmem`), for heads too wide to hold.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.scores import (
    LN2,
    LOG2E,
    attended,
    compiled_twice,
    keep_rows,
    key_tiles,
    score_tile,
    sequence,
)


@triton.jit
def softmax_step(
    x,
    m_i,
    l_i,
    bias_base,
    slope,
    seed_low,
    seed_high,
    threshold,
    batch_head,
    offs_m,
    start_n,
    shift,
    left,
    right,
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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    s_q,
):
    """One tile of x = q k^T: its weights p (dropped ones 0), the new m and l, and acc's factor.

    offs_m [BLOCK_M, 1] are the rows' queries; bias_base, slope and batch_head are one for all
    rows, or [BLOCK_M, 1] too. scale is the case's where scores are natural, else scale log2(e).
    """
    offs_n = (start_n + tl.arange(0, BLOCK_N))[None, :]
    x *= scale
    if MASKED:
        distance = offs_n - offs_m - shift
        mask = (
            (distance <= right) & (distance >= -left) & (offs_n < end_key) & (offs_n >= first_key)
        )
    else:
        mask = offs_m < s_q
    if NATURAL:
        reads = mask & (offs_m < s_q) & (offs_n < end_key)
        x, _ = score_tile(
            x, bias_base, slope, offs_m, offs_n, shift, reads, stride_bm, stride_bn, softcap,
            BIAS, ALIBI, SOFTCAP, False,
        )  # fmt: skip
    if MASKED:
        x = tl.where(mask, x, float("-inf"))
    m_new = tl.maximum(m_i, tl.max(x, 1))
    m_used = tl.where(m_new == float("-inf"), 0.0, m_new)
    if NATURAL:
        p = tl.exp2((x - m_used[:, None]) * LOG2E)
        alpha = tl.exp2((m_i - m_used) * LOG2E)
    else:
        p = tl.exp2(x - m_used[:, None])
        alpha = tl.exp2(m_i - m_used)
    l_i = l_i * alpha + tl.sum(p, 1)
    if DROPOUT:
        keep = keep_rows(
            seed_low, seed_high, threshold, batch_head, offs_m, start_n, BLOCK_M, BLOCK_N
        )
        p = tl.where(keep, p, 0.0)
    return p, m_new, l_i, alpha


@triton.jit
def finish(m_i, l_i, sink_ptr, head, NATURAL: tl.constexpr):
    """The sink's share, what to divide the accumulator by, and the natural lse of each row."""
    m_used = tl.where(m_i == float("-inf"), 0.0, m_i)
    factor = tl.full(m_i.shape, 1.0, tl.float32)
    if sink_ptr is not None:
        sink = tl.load(sink_ptr + head)
        m_new = tl.maximum(m_i, sink)
        m_used = tl.where(m_new == float("-inf"), 0.0, m_new)
        factor = tl.exp2((m_i - m_used) * LOG2E)
        l_i = l_i * factor + tl.exp2((sink - m_used) * LOG2E)
    log_l = tl.log(l_i)  # -inf for a row without keys
    if NATURAL:
        lse = m_used + log_l
    else:
        lse = m_used * LN2 + log_l
    inverse = tl.where(l_i == 0.0, 0.0, factor / tl.where(l_i == 0.0, 1.0, l_i))
    return inverse, lse


@triton.jit
def forward_tiles(
    acc,
    m_i,
    l_i,
    q,
    k_base,
    v_base,
    bias_base,
    slope,
    seed_low,
    seed_high,
    threshold,
    batch_head,
    offs_m,
    first_tile,
    tiles,
    gap_at,
    gap,
    shift,
    left,
    right,
    first_key,
    end_key,
    s_q,
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
    """`tiles` key tiles from first_tile on, where gap tiles are left out after the first gap_at."""
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    offs_dv = tl.arange(0, BLOCK_DV)
    if WIDE:
        rows = offs_n.to(tl.int64)
    else:
        rows = offs_n
    k_offs = rows[None, :] * stride_kn + offs_d[:, None] * stride_kd  # [BLOCK_D, BLOCK_N]
    v_offs = rows[:, None] * stride_vn + offs_dv[None, :] * stride_vd  # [BLOCK_N, BLOCK_DV]
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
            k = tl.load(k_ptrs, mask=there[None, :] & (offs_d[:, None] < d), other=0.0)
            v = tl.load(v_ptrs, mask=there[:, None] & (offs_dv[None, :] < d_v), other=0.0)
        elif EVEN_D:
            k = tl.load(k_ptrs)
            v = tl.load(v_ptrs)
        else:
            k = tl.load(k_ptrs, mask=offs_d[:, None] < d, other=0.0)
            v = tl.load(v_ptrs, mask=offs_dv[None, :] < d_v, other=0.0)
        x = tl.dot(q, k, input_precision=PRECISION)
        p, m_i, l_i, alpha = softmax_step(
            x, m_i, l_i, bias_base, slope, seed_low, seed_high, threshold, batch_head, offs_m,
            start_n, shift,
            left, right, first_key, end_key, stride_bm, stride_bn, scale, softcap,
            BIAS, ALIBI, SOFTCAP, DROPOUT, NATURAL, MASKED, BLOCK_M, BLOCK_N, s_q,
        )  # fmt: skip
        acc = acc * alpha[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, m_i, l_i


def _forward(
    q_ptr,
    k_ptr,
    v_ptr,
    bias_ptr,
    slopes_ptr,
    sink_ptr,
    cu_q,
    cu_k,
    out_ptr,
    lse_ptr,
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
    stride_ob,
    stride_om,
    stride_oh,
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
    """out [b, s_q, h_q, d_v] and lse [b, h_q, s_q].

    Strides of q, k, v and out, d and d_v arrive divided by VECTOR: their product with it is known
    to be a multiple, and so loads are VECTOR elements wide, whatever the numbers are.
    """
    blocks_m = tl.cdiv(s_q, BLOCK_M)
    pid = tl.program_id(0)
    # Blocks with the most keys first: under a causal mask the last ones.
    start_m = (blocks_m - 1 - pid % blocks_m) * BLOCK_M
    batch_head = pid // blocks_m
    batch = batch_head // h_q
    head = batch_head % h_q
    start_q, start_k, s_q, s_kv = sequence(cu_q, cu_k, batch, s_q, s_kv)
    if start_m >= s_q:
        return
    memory_batch = batch.to(tl.int64)
    if cu_q is not None:
        memory_batch = memory_batch * 0
    shift = (s_kv - s_q) * bottom_right
    d = d * VECTOR
    d_v = d_v * VECTOR
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    offs_dv = tl.arange(0, BLOCK_DV)
    rows = start_q + offs_m
    if WIDE:
        rows = rows.to(tl.int64)
    kv_head = (head // group).to(tl.int64)
    if ADJACENT:
        stride_qd, stride_kd, stride_vd = 1, 1, 1
    q_base = q_ptr + memory_batch * (stride_qb * VECTOR) + head.to(tl.int64) * (stride_qh * VECTOR)
    k_base = k_ptr + memory_batch * (stride_kb * VECTOR) + kv_head * (stride_kh * VECTOR)
    v_base = v_ptr + memory_batch * (stride_vb * VECTOR) + kv_head * (stride_vh * VECTOR)
    k_base += tl.cast(start_k, tl.int64) * (stride_kn * VECTOR)
    v_base += tl.cast(start_k, tl.int64) * (stride_vn * VECTOR)
    q_offs = rows[:, None] * (stride_qm * VECTOR) + offs_d[None, :] * stride_qd
    q_mask = (offs_m[:, None] < s_q) & (offs_d[None, :] < d)
    q = tl.load(q_base + q_offs, mask=q_mask, other=0.0)
    bias_base = bias_ptr
    if bias_ptr is not None:
        bias_base += memory_batch * stride_bb + head.to(tl.int64) * stride_bh
    slope = 0.0
    if slopes_ptr is not None:
        slope = tl.load(slopes_ptr + head)

    first_key, end_key = attended(s_q, s_kv, shift, left, right)
    low, full_low, full_high, high = key_tiles(
        start_m, s_q, s_kv, shift, left, right, BLOCK_M, BLOCK_N
    )
    m_i = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
    acc, m_i, l_i = forward_tiles(
        acc, m_i, l_i, q, k_base, v_base, bias_base, slope, seed_low, seed_high, threshold,
        batch_head, offs_m[:, None],
        full_low, full_high - full_low, 0, 0, shift, left, right, first_key, end_key, s_q, d, d_v,
        stride_kn * VECTOR, stride_kd, stride_vn * VECTOR, stride_vd, stride_bm, stride_bn,
        scale, softcap, bias_ptr is not None, slopes_ptr is not None, SOFTCAP, DROPOUT, NATURAL,
        False, EVEN_D, WIDE, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, STAGES,
    )  # fmt: skip
    head_tiles = full_low - low
    acc, m_i, l_i = forward_tiles(
        acc, m_i, l_i, q, k_base, v_base, bias_base, slope, seed_low, seed_high, threshold,
        batch_head, offs_m[:, None],
        low, head_tiles + high - full_high, head_tiles, full_high - full_low, shift, left, right,
        first_key, end_key, s_q, d, d_v,
        stride_kn * VECTOR, stride_kd, stride_vn * VECTOR, stride_vd, stride_bm, stride_bn,
        scale, softcap, bias_ptr is not None, slopes_ptr is not None, SOFTCAP, DROPOUT, NATURAL,
        True, EVEN_D, WIDE, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, STAGES,
    )  # fmt: skip
    inverse, lse = finish(m_i, l_i, sink_ptr, head, NATURAL)
    if DROPOUT:
        inverse *= keep_scale
    # A row of NaN or infinite scores keeps its NaN: 0 * NaN is NaN.
    out = acc * inverse[:, None]
    there = offs_m < s_q
    o_rows = rows.to(tl.int64)
    wide_head = head.to(tl.int64)
    out_base = out_ptr + memory_batch * (stride_ob * VECTOR) + wide_head * (stride_oh * VECTOR)
    out_ptrs = out_base + o_rows[:, None] * (stride_om * VECTOR) + offs_dv[None, :]
    mask = there[:, None] & (offs_dv[None, :] < d_v)
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=mask)
    lse_base = lse_ptr + memory_batch * stride_lb + wide_head * stride_lh
    tl.store(lse_base + o_rows, lse, mask=there)


forward_kernel = compiled_twice(_forward, "q_ptr", "k_ptr", "v_ptr", "out_ptr")
