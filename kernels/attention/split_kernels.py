"""Attention forward for few queries: programs share a key head's keys, and a second step joins.

The rows of a tile are (query, query head) pairs of one key head, row r being query r // group of
the group's head r % group: a group's heads read keys and values once. A program takes a share of
the key tiles and leaves out and lse of its keys alone, in fp32; `combine_kernel` joins the shares
of a row. With one share it leaves what is asked for itself.
"""

from __future__ import annotations

import triton.language as tl

from kernels.attention.forward_kernel import finish, forward_tiles
from kernels.attention.scores import attended, compiled, compiled_twice, key_tiles_of


def _split(
    q_ptr,
    k_ptr,
    v_ptr,
    bias_ptr,
    slopes_ptr,
    sink_ptr,
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
    stride_os,
    stride_lb,
    stride_lh,
    stride_lm,
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
    splits,
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
    """Shares of out [b, s_q, h_q, splits, d_v] and of lse [b, h_q, s_q, splits], by any strides.

    The last axis of each is adjacent. Strides of q, k, v and out, d and d_v arrive divided by
    VECTOR, as in `forward_kernel`.
    """
    d = d * VECTOR
    d_v = d_v * VECTOR
    if ADJACENT:
        stride_qd, stride_kd, stride_vd = 1, 1, 1
    # Blocks of rows that read the same keys run side by side, those with the most keys first.
    blocks = tl.cdiv(s_q * group, BLOCK_M)
    pid = tl.program_id(0)
    start_r = (blocks - 1 - pid % blocks) * BLOCK_M
    split = (pid // blocks) % splits
    batch_head = pid // (blocks * splits)
    h_kv = h_q // group
    batch = (batch_head // h_kv).to(tl.int64)
    kv_head = batch_head % h_kv
    rows = start_r + tl.arange(0, BLOCK_M)
    offs_m = rows // group
    heads = kv_head * group + rows % group
    there = offs_m < s_q
    offs_d = tl.arange(0, BLOCK_D)
    offs_dv = tl.arange(0, BLOCK_DV)
    queries, wide_heads = offs_m.to(tl.int64), heads.to(tl.int64)
    wide_kv_head = kv_head.to(tl.int64)
    q_rows = (queries * stride_qm + wide_heads * stride_qh) * VECTOR
    q_base = q_ptr + batch * stride_qb * VECTOR
    k_base = k_ptr + (batch * stride_kb + wide_kv_head * stride_kh) * VECTOR
    v_base = v_ptr + (batch * stride_vb + wide_kv_head * stride_vh) * VECTOR
    q_mask = there[:, None] & (offs_d[None, :] < d)
    q = tl.load(q_base + q_rows[:, None] + offs_d[None, :] * stride_qd, mask=q_mask, other=0.0)
    bias_base = bias_ptr
    if bias_ptr is not None:
        bias_base = (bias_ptr + batch * stride_bb) + (wide_heads * stride_bh)[:, None]
    slope = 0.0
    if slopes_ptr is not None:
        slope = tl.load(slopes_ptr + heads)[:, None]

    shift = (s_kv - s_q) * bottom_right
    first_key, end_key = attended(s_q, s_kv, shift, left, right)
    last_m = tl.minimum((start_r + BLOCK_M - 1) // group, s_q - 1)
    low, full_low, full_high, high = key_tiles_of(
        start_r // group, last_m, s_kv, shift, left, right, BLOCK_N
    )
    share = tl.cdiv(high - low, splits)
    low = tl.minimum(high, low + split * share)
    high = tl.minimum(high, low + share)
    full_low = tl.minimum(tl.maximum(full_low, low), high)
    full_high = tl.minimum(tl.maximum(full_high, full_low), high)
    batch_heads = ((batch_head // h_kv) * h_q + heads)[:, None]
    m_i = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
    acc, m_i, l_i = forward_tiles(
        acc, m_i, l_i, q, k_base, v_base, bias_base, slope, seed_low, seed_high, threshold,
        batch_heads, offs_m[:, None],
        full_low, full_high - full_low, 0, 0, shift, left, right, first_key, end_key, s_q, d, d_v,
        stride_kn * VECTOR, stride_kd, stride_vn * VECTOR, stride_vd, stride_bm, stride_bn,
        scale, softcap, bias_ptr is not None, slopes_ptr is not None, SOFTCAP, DROPOUT, NATURAL,
        False, EVEN_D, WIDE, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, STAGES,
    )  # fmt: skip
    head_tiles = full_low - low
    acc, m_i, l_i = forward_tiles(
        acc, m_i, l_i, q, k_base, v_base, bias_base, slope, seed_low, seed_high, threshold,
        batch_heads, offs_m[:, None],
        low, head_tiles + high - full_high, head_tiles, full_high - full_low, shift, left, right,
        first_key, end_key, s_q, d, d_v,
        stride_kn * VECTOR, stride_kd, stride_vn * VECTOR, stride_vd, stride_bm, stride_bn,
        scale, softcap, bias_ptr is not None, slopes_ptr is not None, SOFTCAP, DROPOUT, NATURAL,
        True, EVEN_D, WIDE, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, STAGES,
    )  # fmt: skip
    inverse, lse = finish(m_i, l_i, sink_ptr, heads, NATURAL)
    if DROPOUT:
        inverse *= keep_scale
    # A row of NaN or infinite scores keeps its NaN: 0 * NaN is NaN.
    out = acc * inverse[:, None]
    wide_split = tl.cast(split, tl.int64)
    out_rows = (queries * stride_om + wide_heads * stride_oh) * VECTOR
    out_base = out_ptr + (batch * stride_ob + wide_split * stride_os) * VECTOR
    mask = there[:, None] & (offs_dv[None, :] < d_v)
    out_ptrs = out_base + out_rows[:, None] + offs_dv[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=mask)
    lse_rows = wide_heads * stride_lh + queries * stride_lm
    tl.store(lse_ptr + batch * stride_lb + wide_split + lse_rows, lse, mask=there)


split_kernel = compiled_twice(_split, "q_ptr", "k_ptr", "v_ptr", "out_ptr")


def _combine(
    shares_ptr,
    share_lse_ptr,
    sink_ptr,
    out_ptr,
    lse_ptr,
    h_q,
    s_q,
    d_v,
    splits,
    BLOCK_S: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """out = sum_s exp(lse_s - lse) out_s of one row and BLOCK_DV of its columns; all are packed."""
    blocks = tl.cdiv(d_v, BLOCK_DV)
    row = (tl.program_id(0) // blocks).to(tl.int64)  # (batch h_q + head) s_q + query
    start = (tl.program_id(0) % blocks) * BLOCK_DV
    batch_head = row // s_q
    query = row % s_q
    head = batch_head % h_q
    out_row = ((batch_head // h_q) * s_q + query) * h_q + head
    offs_s = tl.arange(0, BLOCK_S)
    offs_dv = start + tl.arange(0, BLOCK_DV)
    used = offs_s < splits
    within = offs_dv < d_v
    share = tl.load(share_lse_ptr + row * splits + offs_s, mask=used, other=float("-inf"))
    part_ptrs = shares_ptr + (out_row * splits + offs_s)[:, None] * d_v + offs_dv[None, :]
    parts = tl.load(part_ptrs, mask=used[:, None] & within[None, :], other=0.0)
    m_i = tl.max(share, 0)
    if sink_ptr is not None:
        sink = tl.load(sink_ptr + head)
        m_i = tl.maximum(m_i, sink)
    m_used = tl.where(m_i == float("-inf"), 0.0, m_i)
    # A share without keys has weight 0 and an out of 0; one that is NaN has a weight of NaN.
    weights = tl.exp(share - m_used)
    l_i = tl.sum(weights, 0)
    acc = tl.sum(parts * weights[:, None], 0)
    if sink_ptr is not None:
        l_i += tl.exp(sink - m_used)
    out = acc / tl.where(l_i == 0.0, 1.0, l_i)
    tl.store(out_ptr + out_row * d_v + offs_dv, out.to(out_ptr.dtype.element_ty), mask=within)
    tl.store(lse_ptr + row, m_used + tl.log(l_i), mask=start == 0)


combine_kernel = compiled(_combine)
