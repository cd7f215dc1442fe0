"""Attention for heads too wide to hold on chip (`gmem`): accumulators in memory, in fp32.

Products over d run a chunk at a time; a chunk of an accumulator is read, updated and written back
for each tile, by the one program that owns its rows. Workspace: 4 bytes an element of each output
(PyTorch's memory-efficient kernels do the same past their widest tile). Scores are natural, every
tile is masked, and offsets are counted in int64.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernel_workbench.kernels.attention.backward_kernels import gradient_tile, row_statistics
from kernel_workbench.kernels.attention.forward_kernel import finish, softmax_step
from kernel_workbench.kernels.attention.launch import compiled_twice
from kernel_workbench.kernels.attention.scores import (
    HeadScores,
    ScoreOptions,
    batch_in_memory,
    head_of,
    key_tiles,
    mask_of,
    query_block,
    query_tiles,
    sequence,
    terms_of,
)


@triton.jit
def chunked_product(
    a_head, b_head, a_rows, b_rows, a_there, b_there, d,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return a b^T over d, a chunk of BLOCK_C at a time: [ROWS, COLUMNS] in fp32."""
    x = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, d, BLOCK_C):
        offs = start + tl.arange(0, BLOCK_C)
        within = offs < d
        a_ptrs = a_head.base + a_rows[:, None] * a_head.stride_m + offs[None, :] * a_head.stride_d
        b_ptrs = b_head.base + b_rows[None, :] * b_head.stride_m + offs[:, None] * b_head.stride_d
        a = tl.load(a_ptrs, mask=a_there[:, None] & within[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=b_there[None, :] & within[:, None], other=0.0)
        x = tl.dot(a, b, x, input_precision=PRECISION)
    return x


@triton.jit
def add_chunks(
    acc_head, acc_rows, acc_there, weights, factor, b_head, b_rows, b_there, d,
    BLOCK_C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute acc = acc factor + weights b, in memory, a chunk of b's columns at a time."""
    for start in range(0, d, BLOCK_C):
        offs = start + tl.arange(0, BLOCK_C)
        within = offs < d
        b_ptrs = b_head.base + b_rows[:, None] * b_head.stride_m + offs[None, :] * b_head.stride_d
        b = tl.load(b_ptrs, mask=b_there[:, None] & within[None, :], other=0.0)
        acc_ptrs = acc_head.base + acc_rows[:, None] * acc_head.stride_m + offs[None, :]
        mask = acc_there[:, None] & within[None, :]
        acc = tl.load(acc_ptrs, mask=mask, other=0.0) * factor[:, None]
        acc = tl.dot(weights.to(b.dtype), b, acc, input_precision=PRECISION)
        tl.store(acc_ptrs, acc, mask=mask)
    # The next tile's chunk may be read by other threads of the program than those that wrote it.
    tl.debug_barrier()


def _forward_wide(
    q_ptr, stride_qb, stride_qm, stride_qh, stride_qd,
    k_ptr, stride_kb, stride_kn, stride_kh, stride_kd,
    v_ptr, stride_vb, stride_vn, stride_vh, stride_vd,
    acc_ptr, out_ptr, stride_ob, stride_om, stride_oh, lse_ptr, stride_lb, stride_lh,
    bias_ptr, stride_bb, stride_bh, stride_bm, stride_bn, slopes_ptr, sink_ptr, cu_q, cu_k,
    scale, softcap, keep_scale, seed_low, seed_high, threshold, left, right, bottom_right,
    h_q, group, s_q, s_kv, d, d_v,
    SOFTCAP: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    ADJACENT: tl.constexpr, VECTOR: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Compute as `forward_kernel`; acc is fp32 zeros, laid out like out."""
    options = ScoreOptions(
        bias_ptr=bias_ptr, stride_bb=stride_bb, stride_bh=stride_bh, stride_bm=stride_bm,
        stride_bn=stride_bn, slopes_ptr=slopes_ptr, scale=scale, softcap=softcap,
        keep_scale=keep_scale, seed_low=seed_low, seed_high=seed_high, threshold=threshold,
        SOFTCAP=SOFTCAP, DROPOUT=DROPOUT, NATURAL=True,
    )  # fmt: skip
    start_m, batch_head = query_block(s_q, BLOCK_M)
    number = batch_head // h_q
    head = (batch_head % h_q).to(tl.int64)
    start_q, start_k, s_q, s_kv = sequence(cu_q, cu_k, number, s_q, s_kv)
    if start_m >= s_q:
        return
    batch = batch_in_memory(cu_q, number)
    kv_head = head // group
    d, d_v = d * VECTOR, d_v * VECTOR
    offs_m = start_m + tl.arange(0, BLOCK_M)
    there_m = offs_m < s_q
    rows = (start_q + offs_m).to(tl.int64)
    q_head = head_of(
        q_ptr, stride_qb, stride_qm, stride_qh, stride_qd, batch, head, 0, ADJACENT, VECTOR, WIDE
    )
    k_head = head_of(
        k_ptr, stride_kb, stride_kn, stride_kh, stride_kd, batch, kv_head, 0, ADJACENT, VECTOR, WIDE
    )
    v_head = head_of(
        v_ptr, stride_vb, stride_vn, stride_vh, stride_vd, batch, kv_head, 0, ADJACENT, VECTOR, WIDE
    )
    acc_head = head_of(acc_ptr, stride_ob, stride_om, stride_oh, 1, batch, head, 0, True, VECTOR)
    out_head = head_of(out_ptr, stride_ob, stride_om, stride_oh, 1, batch, head, 0, True, VECTOR)
    bias_offset, slope = terms_of(options, batch, head)
    scores = HeadScores(options, bias_offset, slope, batch_head)
    mask = mask_of(s_q, s_kv, left, right, bottom_right)
    tiles = key_tiles(mask, start_m, tl.minimum(start_m + BLOCK_M, s_q) - 1, BLOCK_N)
    m_i = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    for tile in range(tiles.low, tiles.high):
        start_n = tile * BLOCK_N
        keys = start_n + tl.arange(0, BLOCK_N)
        there_n = (keys >= mask.first_key) & (keys < mask.end_key)
        k_rows = (start_k + keys).to(tl.int64)
        x = chunked_product(
            q_head, k_head, rows, k_rows, there_m, there_n, d, BLOCK_M, BLOCK_N, BLOCK_C, PRECISION
        )
        p, m_i, l_i, alpha = softmax_step(
            x, m_i, l_i, scores, mask, offs_m[:, None], start_n, True, BLOCK_M, BLOCK_N
        )
        add_chunks(
            acc_head, rows, there_m, p, alpha, v_head, k_rows, there_n, d_v, BLOCK_C, PRECISION
        )
    inverse, lse = finish(m_i, l_i, sink_ptr, head, options)
    for start in range(0, d_v, BLOCK_C):
        offs = start + tl.arange(0, BLOCK_C)
        within = there_m[:, None] & (offs[None, :] < d_v)
        at = rows[:, None] * out_head.stride_m + offs[None, :]
        acc = tl.load(acc_head.base + at, mask=within, other=0.0) * inverse[:, None]
        tl.store(out_head.base + at, acc.to(out_ptr.dtype.element_ty), mask=within)
    tl.store(lse_ptr + batch * stride_lb + head * stride_lh + rows, lse, mask=there_m)


forward_wide_kernel = compiled_twice(_forward_wide, "q_ptr", "k_ptr", "v_ptr", "acc_ptr", "out_ptr")


def _key_gradients_wide(
    do_ptr, stride_gb, stride_gm, stride_gh, stride_gd,
    q_ptr, stride_qb, stride_qm, stride_qh, stride_qd,
    k_ptr, stride_kb, stride_kn, stride_kh, stride_kd,
    v_ptr, stride_vb, stride_vn, stride_vh, stride_vd,
    dk_ptr, stride_dkb, stride_dkn, stride_dkh, dv_ptr, stride_dvb, stride_dvn, stride_dvh,
    lse_ptr, delta_ptr, stride_lb, stride_lh,
    bias_ptr, stride_bb, stride_bh, stride_bm, stride_bn, slopes_ptr, cu_q, cu_k,
    scale, softcap, keep_scale, seed_low, seed_high, threshold, left, right, bottom_right,
    h_q, group, s_q, s_kv, d, d_v,
    SOFTCAP: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    ADJACENT: tl.constexpr, VECTOR: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv in fp32, in memory that starts as zeros: a block of keys a program."""
    options = ScoreOptions(
        bias_ptr=bias_ptr, stride_bb=stride_bb, stride_bh=stride_bh, stride_bm=stride_bm,
        stride_bn=stride_bn, slopes_ptr=slopes_ptr, scale=scale, softcap=softcap,
        keep_scale=keep_scale, seed_low=seed_low, seed_high=seed_high, threshold=threshold,
        SOFTCAP=SOFTCAP, DROPOUT=DROPOUT, NATURAL=True,
    )  # fmt: skip
    d, d_v = d * VECTOR, d_v * VECTOR
    h_kv = h_q // group
    blocks_n = tl.cdiv(s_kv, BLOCK_N)
    start_n = (tl.program_id(0) % blocks_n) * BLOCK_N
    batch_head = tl.program_id(0) // blocks_n
    number = batch_head // h_kv
    kv_head = (batch_head % h_kv).to(tl.int64)
    start_q, start_k, s_q, s_kv = sequence(cu_q, cu_k, number, s_q, s_kv)
    if start_n >= s_kv:
        return
    batch = batch_in_memory(cu_q, number)
    mask = mask_of(s_q, s_kv, left, right, bottom_right)
    keys = start_n + tl.arange(0, BLOCK_N)
    there_n = (keys >= mask.first_key) & (keys < mask.end_key)
    k_rows = (start_k + keys).to(tl.int64)
    k_head = head_of(
        k_ptr, stride_kb, stride_kn, stride_kh, stride_kd, batch, kv_head, 0, ADJACENT, VECTOR, WIDE
    )
    v_head = head_of(
        v_ptr, stride_vb, stride_vn, stride_vh, stride_vd, batch, kv_head, 0, ADJACENT, VECTOR, WIDE
    )
    dk_head = head_of(
        dk_ptr, stride_dkb, stride_dkn, stride_dkh, 1, batch, kv_head, 0, True, VECTOR
    )
    dv_head = head_of(
        dv_ptr, stride_dvb, stride_dvn, stride_dvh, 1, batch, kv_head, 0, True, VECTOR
    )
    tiles = query_tiles(mask, start_n, BLOCK_M, BLOCK_N)
    ones = tl.full((BLOCK_N,), 1.0, tl.float32)
    for member in range(group):
        head = kv_head * group + member
        q_head = head_of(
            q_ptr, stride_qb, stride_qm, stride_qh, stride_qd, batch, head, 0, ADJACENT, VECTOR,
            WIDE,
        )  # fmt: skip
        do_head = head_of(
            do_ptr, stride_gb, stride_gm, stride_gh, stride_gd, batch, head, 0, ADJACENT, VECTOR,
            WIDE,
        )  # fmt: skip
        statistics = batch * stride_lb + head * stride_lh + start_q
        bias_offset, slope = terms_of(options, batch, head)
        scores = HeadScores(options, bias_offset, slope, number * h_q + head.to(tl.int32))
        for tile in range(tiles.low, tiles.high):
            start_m = tile * BLOCK_M
            offs_m = start_m + tl.arange(0, BLOCK_M)
            there_m = offs_m < s_q
            rows = (start_q + offs_m).to(tl.int64)
            lse, delta = row_statistics(lse_ptr + statistics, delta_ptr + statistics, offs_m, s_q)
            x = chunked_product(
                q_head, k_head, rows, k_rows, there_m, there_n, d,
                BLOCK_M, BLOCK_N, BLOCK_C, PRECISION,
            )  # fmt: skip
            dp = chunked_product(
                do_head, v_head, rows, k_rows, there_m, there_n, d_v,
                BLOCK_M, BLOCK_N, BLOCK_C, PRECISION,
            )  # fmt: skip
            weights, _ds, dx = gradient_tile(
                x, dp, lse[:, None], delta[:, None], scores, mask, start_m, start_n,
                True, False, BLOCK_M, BLOCK_N,
            )  # fmt: skip
            add_chunks(
                dv_head, k_rows, there_n, tl.trans(weights), ones, do_head, rows, there_m, d_v,
                BLOCK_C, PRECISION,
            )  # fmt: skip
            add_chunks(
                dk_head, k_rows, there_n, tl.trans(dx) * scale, ones, q_head, rows, there_m, d,
                BLOCK_C, PRECISION,
            )  # fmt: skip


key_gradients_wide_kernel = compiled_twice(
    _key_gradients_wide, "do_ptr", "q_ptr", "k_ptr", "v_ptr", "dk_ptr", "dv_ptr"
)


def _query_gradients_wide(
    do_ptr, stride_gb, stride_gm, stride_gh, stride_gd,
    q_ptr, stride_qb, stride_qm, stride_qh, stride_qd,
    k_ptr, stride_kb, stride_kn, stride_kh, stride_kd,
    v_ptr, stride_vb, stride_vn, stride_vh, stride_vd,
    dq_ptr, stride_dqb, stride_dqm, stride_dqh, lse_ptr, delta_ptr, stride_lb, stride_lh,
    bias_ptr, stride_bb, stride_bh, stride_bm, stride_bn, slopes_ptr, cu_q, cu_k,
    scale, softcap, keep_scale, seed_low, seed_high, threshold, left, right, bottom_right,
    h_q, group, s_q, s_kv, d, d_v,
    SOFTCAP: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    ADJACENT: tl.constexpr, VECTOR: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Compute dq in fp32, in memory that starts as zeros: a block of queries a program."""
    options = ScoreOptions(
        bias_ptr=bias_ptr, stride_bb=stride_bb, stride_bh=stride_bh, stride_bm=stride_bm,
        stride_bn=stride_bn, slopes_ptr=slopes_ptr, scale=scale, softcap=softcap,
        keep_scale=keep_scale, seed_low=seed_low, seed_high=seed_high, threshold=threshold,
        SOFTCAP=SOFTCAP, DROPOUT=DROPOUT, NATURAL=True,
    )  # fmt: skip
    start_m, batch_head = query_block(s_q, BLOCK_M)
    number = batch_head // h_q
    head = (batch_head % h_q).to(tl.int64)
    start_q, start_k, s_q, s_kv = sequence(cu_q, cu_k, number, s_q, s_kv)
    if start_m >= s_q:
        return
    batch = batch_in_memory(cu_q, number)
    kv_head = head // group
    d, d_v = d * VECTOR, d_v * VECTOR
    offs_m = start_m + tl.arange(0, BLOCK_M)
    there_m = offs_m < s_q
    rows = (start_q + offs_m).to(tl.int64)
    q_head = head_of(
        q_ptr, stride_qb, stride_qm, stride_qh, stride_qd, batch, head, 0, ADJACENT, VECTOR, WIDE
    )
    do_head = head_of(
        do_ptr, stride_gb, stride_gm, stride_gh, stride_gd, batch, head, 0, ADJACENT, VECTOR, WIDE
    )
    k_head = head_of(
        k_ptr, stride_kb, stride_kn, stride_kh, stride_kd, batch, kv_head, 0, ADJACENT, VECTOR, WIDE
    )
    v_head = head_of(
        v_ptr, stride_vb, stride_vn, stride_vh, stride_vd, batch, kv_head, 0, ADJACENT, VECTOR, WIDE
    )
    dq_head = head_of(dq_ptr, stride_dqb, stride_dqm, stride_dqh, 1, batch, head, 0, True, VECTOR)
    statistics = batch * stride_lb + head * stride_lh + start_q
    bias_offset, slope = terms_of(options, batch, head)
    scores = HeadScores(options, bias_offset, slope, batch_head)
    lse, delta = row_statistics(lse_ptr + statistics, delta_ptr + statistics, offs_m, s_q)
    mask = mask_of(s_q, s_kv, left, right, bottom_right)
    tiles = key_tiles(mask, start_m, tl.minimum(start_m + BLOCK_M, s_q) - 1, BLOCK_N)
    ones = tl.full((BLOCK_M,), 1.0, tl.float32)
    for tile in range(tiles.low, tiles.high):
        start_n = tile * BLOCK_N
        keys = start_n + tl.arange(0, BLOCK_N)
        there_n = (keys >= mask.first_key) & (keys < mask.end_key)
        k_rows = (start_k + keys).to(tl.int64)
        x = chunked_product(
            q_head, k_head, rows, k_rows, there_m, there_n, d, BLOCK_M, BLOCK_N, BLOCK_C, PRECISION
        )
        dp = chunked_product(
            do_head, v_head, rows, k_rows, there_m, there_n, d_v,
            BLOCK_M, BLOCK_N, BLOCK_C, PRECISION,
        )  # fmt: skip
        _weights, _ds, dx = gradient_tile(
            x, dp, lse[:, None], delta[:, None], scores, mask, start_m, start_n,
            True, False, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        add_chunks(
            dq_head, rows, there_m, dx * scale, ones, k_head, k_rows, there_n, d, BLOCK_C, PRECISION
        )


query_gradients_wide_kernel = compiled_twice(
    _query_gradients_wide, "do_ptr", "q_ptr", "k_ptr", "v_ptr", "dq_ptr"
)
