"""Attention forward: a block of queries a program, keys in tiles, a running softmax.

For each tile: S = q k^T, m' = max(m, max S), l' = l exp(m - m') + sum exp(S - m'), and likewise
acc' = acc exp(m - m') + exp(S - m') v; at the end out = acc / l and lse = m + log l (Milakov &
Gimelshein 2018; Dao et al. 2022). The accumulator stays in registers (`rf`), or is kept in memory
and visited a chunk of d_v at a time (`gmem`), for heads too wide to hold.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernel_workbench.kernels.attention.launch import compiled_twice
from kernel_workbench.kernels.attention.scores import (
    LN2,
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
    score_tile,
    sequence,
    terms_of,
    tile_at,
    tiles_walked,
)


@triton.jit
def softmax_step(
    x, m_i, l_i, scores, mask, offs_m, start_n,
    MASKED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return weights p of one tile x = q k^T (dropped ones 0), the new m and l, and acc's factor.

    offs_m [BLOCK_M, 1] are the rows' queries.
    """
    options = scores.options
    offs_n = (start_n + tl.arange(0, BLOCK_N))[None, :]
    x *= options.scale
    if MASKED:
        distance = offs_n - offs_m - mask.shift
        attends = (distance <= mask.right) & (distance >= -mask.left)
        attends = attends & (offs_n < mask.end_key) & (offs_n >= mask.first_key)
    else:
        attends = offs_m < mask.s_q
    if options.NATURAL:
        reads = attends & (offs_m < mask.s_q) & (offs_n < mask.end_key)
        x, _ = score_tile(x, scores, offs_m, offs_n, mask.shift, reads)
    if MASKED:
        x = tl.where(attends, x, float("-inf"))
    m_new = tl.maximum(m_i, tl.max(x, 1))
    m_used = tl.where(m_new == float("-inf"), 0.0, m_new)
    if options.NATURAL:
        p = tl.exp2((x - m_used[:, None]) * LOG2E)
        alpha = tl.exp2((m_i - m_used) * LOG2E)
    else:
        p = tl.exp2(x - m_used[:, None])
        alpha = tl.exp2(m_i - m_used)
    l_i = l_i * alpha + tl.sum(p, 1)
    if options.DROPOUT:
        p = tl.where(kept(scores, offs_m, start_n, BLOCK_M, BLOCK_N), p, 0.0)
    return p, m_new, l_i, alpha


@triton.jit
def finish(m_i, l_i, sink_ptr, head, options):
    """Return the accumulator's factor, the sink's share in it, and each row's natural lse."""
    m_used = tl.where(m_i == float("-inf"), 0.0, m_i)
    factor = tl.full(m_i.shape, 1.0, tl.float32)
    if sink_ptr is not None:
        sink = tl.load(sink_ptr + head)
        m_new = tl.maximum(m_i, sink)
        m_used = tl.where(m_new == float("-inf"), 0.0, m_new)
        factor = tl.exp2((m_i - m_used) * LOG2E)
        l_i = l_i * factor + tl.exp2((sink - m_used) * LOG2E)
    log_l = tl.log(l_i)  # -inf for a row without keys
    if options.NATURAL:
        lse = m_used + log_l
    else:
        lse = m_used * LN2 + log_l
    inverse = tl.where(l_i == 0.0, 0.0, factor / tl.where(l_i == 0.0, 1.0, l_i))
    if options.DROPOUT:
        inverse *= options.keep_scale
    return inverse, lse


@triton.jit
def forward_tiles(
    acc, m_i, l_i, q, k_head, v_head, scores, mask, offs_m, tiles, d, d_v,
    MASKED: tl.constexpr, EVEN_D: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Return acc, m and l after the key tiles that need a mask, or after the others."""
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    offs_dv = tl.arange(0, BLOCK_DV)
    if WIDE:
        rows = offs_n.to(tl.int64)
    else:
        rows = offs_n
    # [BLOCK_D, BLOCK_N] and [BLOCK_N, BLOCK_DV]
    k_offs = rows[None, :] * k_head.stride_m + offs_d[:, None] * k_head.stride_d
    v_offs = rows[:, None] * v_head.stride_m + offs_dv[None, :] * v_head.stride_d
    for index in tl.range(0, tiles_walked(tiles, MASKED), num_stages=STAGES):
        start_n = tile_at(tiles, index, MASKED) * BLOCK_N
        k_ptrs = k_head.base + start_n.to(tl.int64) * k_head.stride_m + k_offs
        v_ptrs = v_head.base + start_n.to(tl.int64) * v_head.stride_m + v_offs
        keys = start_n + offs_n
        there = (keys >= mask.first_key) & (keys < mask.end_key)
        k = load_tile(k_ptrs, there[None, :], offs_d[:, None] < d, MASKED, EVEN_D)
        v = load_tile(v_ptrs, there[:, None], offs_dv[None, :] < d_v, MASKED, EVEN_D)
        x = tl.dot(q, k, input_precision=PRECISION)
        p, m_i, l_i, alpha = softmax_step(
            x, m_i, l_i, scores, mask, offs_m, start_n, MASKED, BLOCK_M, BLOCK_N
        )
        acc = acc * alpha[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, m_i, l_i


@triton.jit
def forward_walk(
    q, k_head, v_head, scores, mask, offs_m, tiles, sink_ptr, head, d, d_v,
    EVEN_D: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return out and lse of a block of rows. offs_m [BLOCK_M]; head as in `scores`."""
    m_i = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
    for masked in tl.static_range(2):
        acc, m_i, l_i = forward_tiles(
            acc, m_i, l_i, q, k_head, v_head, scores, mask, offs_m[:, None], tiles, d, d_v,
            masked, EVEN_D, WIDE, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, STAGES,
        )  # fmt: skip
    inverse, lse = finish(m_i, l_i, sink_ptr, head, scores.options)
    # A row of NaN or infinite scores keeps its NaN: 0 * NaN is NaN.
    return acc * inverse[:, None], lse


def _forward(
    q_ptr, stride_qb, stride_qm, stride_qh, stride_qd,
    k_ptr, stride_kb, stride_kn, stride_kh, stride_kd,
    v_ptr, stride_vb, stride_vn, stride_vh, stride_vd,
    out_ptr, stride_ob, stride_om, stride_oh, lse_ptr, stride_lb, stride_lh,
    bias_ptr, stride_bb, stride_bh, stride_bm, stride_bn, slopes_ptr, sink_ptr, cu_q, cu_k,
    scale, softcap, keep_scale, seed_low, seed_high, threshold, left, right, bottom_right,
    h_q, group, s_q, s_kv, d, d_v,
    SOFTCAP: tl.constexpr, DROPOUT: tl.constexpr, NATURAL: tl.constexpr, EVEN_D: tl.constexpr,
    ADJACENT: tl.constexpr, VECTOR: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute out [b, s_q, h_q, d_v] and lse [b, h_q, s_q].

    Strides of q, k, v and out, d and d_v arrive divided by VECTOR: see `head_of`.
    """
    options = ScoreOptions(
        bias_ptr=bias_ptr, stride_bb=stride_bb, stride_bh=stride_bh, stride_bm=stride_bm,
        stride_bn=stride_bn, slopes_ptr=slopes_ptr, scale=scale, softcap=softcap,
        keep_scale=keep_scale, seed_low=seed_low, seed_high=seed_high, threshold=threshold,
        SOFTCAP=SOFTCAP, DROPOUT=DROPOUT, NATURAL=NATURAL,
    )  # fmt: skip
    start_m, batch_head = query_block(s_q, BLOCK_M)
    number = batch_head // h_q
    head = batch_head % h_q
    start_q, start_k, s_q, s_kv = sequence(cu_q, cu_k, number, s_q, s_kv)
    if start_m >= s_q:
        return
    batch = batch_in_memory(cu_q, number)
    d = d * VECTOR
    d_v = d_v * VECTOR
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    offs_dv = tl.arange(0, BLOCK_DV)
    there = offs_m < s_q
    rows = start_q + offs_m
    if WIDE:
        rows = rows.to(tl.int64)
    kv_head = (head // group).to(tl.int64)
    head = head.to(tl.int64)
    q_head = head_of(
        q_ptr, stride_qb, stride_qm, stride_qh, stride_qd, batch, head, 0, ADJACENT, VECTOR, WIDE
    )
    k_head = head_of(
        k_ptr, stride_kb, stride_kn, stride_kh, stride_kd, batch, kv_head, start_k, ADJACENT,
        VECTOR, WIDE,
    )  # fmt: skip
    v_head = head_of(
        v_ptr, stride_vb, stride_vn, stride_vh, stride_vd, batch, kv_head, start_k, ADJACENT,
        VECTOR, WIDE,
    )  # fmt: skip
    q = load_rows(q_head, rows, offs_d, there[:, None] & (offs_d[None, :] < d))
    bias_offset, slope = terms_of(options, batch, head)
    scores = HeadScores(options, bias_offset, slope, batch_head)
    mask = mask_of(s_q, s_kv, left, right, bottom_right)
    tiles = key_tiles(mask, start_m, tl.minimum(start_m + BLOCK_M, s_q) - 1, BLOCK_N)
    out, lse = forward_walk(
        q, k_head, v_head, scores, mask, offs_m, tiles, sink_ptr, head, d, d_v,
        EVEN_D, WIDE, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, STAGES,
    )  # fmt: skip
    rows = rows.to(tl.int64)
    out_head = head_of(out_ptr, stride_ob, stride_om, stride_oh, 1, batch, head, 0, True, VECTOR)
    out_ptrs = out_head.base + rows[:, None] * out_head.stride_m + offs_dv[None, :]
    within = there[:, None] & (offs_dv[None, :] < d_v)
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=within)
    tl.store(lse_ptr + batch * stride_lb + head * stride_lh + rows, lse, mask=there)


forward_kernel = compiled_twice(_forward, "q_ptr", "k_ptr", "v_ptr", "out_ptr")
