"""Attention forward for few queries: programs share a key head's keys, and a second step joins.

The rows of a tile are (query, query head) pairs of one key head, row r being query r // group of
the group's head r % group: a group's heads read keys and values once. A program takes a share of
the key tiles and leaves out and lse of its keys alone, in fp32; `combine_kernel` joins the shares
of a row. With one share it leaves what is asked for itself.
"""

from __future__ import annotations

import triton.language as tl

from kernel_workbench.kernels.attention.forward_kernel import forward_walk
from kernel_workbench.kernels.attention.launch import compiled, compiled_twice
from kernel_workbench.kernels.attention.scores import (
    HeadScores,
    ScoreOptions,
    WalkTiles,
    head_of,
    key_tiles,
    mask_of,
    terms_of,
)


def _split(
    q_ptr, stride_qb, stride_qm, stride_qh, stride_qd,
    k_ptr, stride_kb, stride_kn, stride_kh, stride_kd,
    v_ptr, stride_vb, stride_vn, stride_vh, stride_vd,
    out_ptr, stride_ob, stride_om, stride_oh, stride_os,
    lse_ptr, stride_lb, stride_lh, stride_lm,
    bias_ptr, stride_bb, stride_bh, stride_bm, stride_bn, slopes_ptr, sink_ptr,
    scale, softcap, keep_scale, seed_low, seed_high, threshold, left, right, bottom_right,
    h_q, group, s_q, s_kv, d, d_v, splits,
    SOFTCAP: tl.constexpr, DROPOUT: tl.constexpr, NATURAL: tl.constexpr, EVEN_D: tl.constexpr,
    ADJACENT: tl.constexpr, VECTOR: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute shares of out [b, s_q, h_q, splits, d_v] and of lse [b, h_q, s_q, splits].

    Shares have any strides but an adjacent last axis. Strides of q, k, v and out, d and d_v arrive
    divided by VECTOR: see `head_of`.
    """
    options = ScoreOptions(
        bias_ptr=bias_ptr, stride_bb=stride_bb, stride_bh=stride_bh, stride_bm=stride_bm,
        stride_bn=stride_bn, slopes_ptr=slopes_ptr, scale=scale, softcap=softcap,
        keep_scale=keep_scale, seed_low=seed_low, seed_high=seed_high, threshold=threshold,
        SOFTCAP=SOFTCAP, DROPOUT=DROPOUT, NATURAL=NATURAL,
    )  # fmt: skip
    d = d * VECTOR
    d_v = d_v * VECTOR
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
    q_head = head_of(
        q_ptr, stride_qb, stride_qm, stride_qh, stride_qd, batch, 0, 0, ADJACENT, VECTOR, WIDE
    )
    k_head = head_of(
        k_ptr, stride_kb, stride_kn, stride_kh, stride_kd, batch, wide_kv_head, 0, ADJACENT, VECTOR,
        WIDE,
    )  # fmt: skip
    v_head = head_of(
        v_ptr, stride_vb, stride_vn, stride_vh, stride_vd, batch, wide_kv_head, 0, ADJACENT, VECTOR,
        WIDE,
    )  # fmt: skip
    q_rows = (queries * stride_qm + wide_heads * stride_qh) * VECTOR
    q_ptrs = q_head.base + q_rows[:, None] + offs_d[None, :] * q_head.stride_d
    q = tl.load(q_ptrs, mask=there[:, None] & (offs_d[None, :] < d), other=0.0)
    bias_offset, slope = terms_of(options, batch, wide_heads[:, None])
    batch_heads = ((batch_head // h_kv) * h_q + heads)[:, None]
    scores = HeadScores(options, bias_offset, slope, batch_heads)

    mask = mask_of(s_q, s_kv, left, right, bottom_right)
    last_m = tl.minimum((start_r + BLOCK_M - 1) // group, s_q - 1)
    low, full_low, full_high, high = key_tiles(mask, start_r // group, last_m, BLOCK_N)
    share = tl.cdiv(high - low, splits)
    low = tl.minimum(high, low + split * share)
    high = tl.minimum(high, low + share)
    full_low = tl.minimum(tl.maximum(full_low, low), high)
    full_high = tl.minimum(tl.maximum(full_high, full_low), high)
    out, lse = forward_walk(
        q, k_head, v_head, scores, mask, offs_m, WalkTiles(low, full_low, full_high, high),
        sink_ptr, heads, d, d_v, EVEN_D, WIDE, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
        STAGES,
    )  # fmt: skip
    wide_split = tl.cast(split, tl.int64)
    out_rows = (queries * stride_om + wide_heads * stride_oh) * VECTOR
    out_base = out_ptr + (batch * stride_ob + wide_split * stride_os) * VECTOR
    within = there[:, None] & (offs_dv[None, :] < d_v)
    out_ptrs = out_base + out_rows[:, None] + offs_dv[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=within)
    lse_rows = wide_heads * stride_lh + queries * stride_lm
    tl.store(lse_ptr + batch * stride_lb + wide_split + lse_rows, lse, mask=there)


# The numbers of a tile's rows are divided by `group`.
split_kernel = compiled_twice(_split, "q_ptr", "k_ptr", "v_ptr", "out_ptr", ones=("group",))


def _combine(
    shares_ptr, share_lse_ptr, sink_ptr, out_ptr, lse_ptr, h_q, s_q, d_v, splits,
    BLOCK_S: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Compute out = sum_s exp(lse_s - lse) out_s of one row and BLOCK_DV packed columns."""
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
