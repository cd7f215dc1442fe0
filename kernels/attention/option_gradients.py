"""The gradients of a bias and of a sink: each sum has one owner, so both are bitwise repeatable.

    dbias = dS summed over the batches, heads and queries that share an element of the bias
    dsink_h = -sum over batches and queries of exp(sink_h - lse_i) delta_i

A program owns a tile of dbias and computes the scores of each tile that is folded into it once
more: two products a tile, and no memory beyond dbias itself.
"""

from __future__ import annotations

import triton.language as tl

from kernel_workbench.kernels.attention.backward_kernels import gradient_tile, row_statistics
from kernel_workbench.kernels.attention.launch import compiled, compiled_twice
from kernel_workbench.kernels.attention.scores import (
    LOG2E,
    HeadScores,
    ScoreOptions,
    head_of,
    mask_of,
    terms_of,
)
from kernel_workbench.kernels.attention.wide_kernels import chunked_product


def _bias_gradient(
    do_ptr, stride_gb, stride_gm, stride_gh, stride_gd,
    q_ptr, stride_qb, stride_qm, stride_qh, stride_qd,
    k_ptr, stride_kb, stride_kn, stride_kh, stride_kd,
    v_ptr, stride_vb, stride_vn, stride_vh, stride_vd,
    dbias_ptr, stride_dbb, stride_dbh, stride_dbm, lse_ptr, delta_ptr, stride_lb, stride_lh,
    bias_ptr, stride_bb, stride_bh, stride_bm, stride_bn, slopes_ptr,
    scale, softcap, keep_scale, seed_low, seed_high, threshold, left, right, bottom_right,
    h_q, group, s_q, s_kv, d, d_v, b, members,
    OVER_QUERIES: tl.constexpr, SOFTCAP: tl.constexpr, DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr, ADJACENT: tl.constexpr, VECTOR: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Compute packed dbias; b batches and `members` heads are folded into each of its own."""
    options = ScoreOptions(
        bias_ptr=bias_ptr, stride_bb=stride_bb, stride_bh=stride_bh, stride_bm=stride_bm,
        stride_bn=stride_bn, slopes_ptr=slopes_ptr, scale=scale, softcap=softcap,
        keep_scale=keep_scale, seed_low=seed_low, seed_high=seed_high, threshold=threshold,
        SOFTCAP=SOFTCAP, DROPOUT=DROPOUT, NATURAL=True,
    )  # fmt: skip
    d, d_v = d * VECTOR, d_v * VECTOR
    blocks_n = tl.cdiv(s_kv, BLOCK_N)
    blocks_m = tl.cdiv(s_q, BLOCK_M)
    owned_m = blocks_m
    if OVER_QUERIES:
        owned_m = 1
    pid = tl.program_id(0)
    start_n = (pid % blocks_n) * BLOCK_N
    own_tile = (pid // blocks_n) % owned_m
    owned_heads = h_q // members
    own = pid // (blocks_n * owned_m)
    own_head = own % owned_heads
    own_batch = own // owned_heads
    mask = mask_of(s_q, s_kv, left, right, bottom_right)
    keys = start_n + tl.arange(0, BLOCK_N)
    there_n = (keys >= mask.first_key) & (keys < mask.end_key)
    k_rows = keys.to(tl.int64)
    low = own_tile
    high = own_tile + 1
    if OVER_QUERIES:
        low = own_tile * 0
        high = blocks_m
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for folded in range(b * members):
        number = own_batch * b + folded // members
        q_number = own_head * members + folded % members
        batch = number.to(tl.int64)
        head = q_number.to(tl.int64)
        kv_head = (q_number // group).to(tl.int64)
        q_head = head_of(
            q_ptr, stride_qb, stride_qm, stride_qh, stride_qd, batch, head, 0, ADJACENT, VECTOR,
            WIDE,
        )  # fmt: skip
        do_head = head_of(
            do_ptr, stride_gb, stride_gm, stride_gh, stride_gd, batch, head, 0, ADJACENT, VECTOR,
            WIDE,
        )  # fmt: skip
        k_head = head_of(
            k_ptr, stride_kb, stride_kn, stride_kh, stride_kd, batch, kv_head, 0, ADJACENT, VECTOR,
            WIDE,
        )  # fmt: skip
        v_head = head_of(
            v_ptr, stride_vb, stride_vn, stride_vh, stride_vd, batch, kv_head, 0, ADJACENT, VECTOR,
            WIDE,
        )  # fmt: skip
        bias_offset, slope = terms_of(options, batch, head)
        scores = HeadScores(options, bias_offset, slope, number * h_q + q_number)
        statistics = batch * stride_lb + head * stride_lh
        for tile in range(low, high):
            start_m = tile * BLOCK_M
            offs_m = start_m + tl.arange(0, BLOCK_M)
            there_m = offs_m < s_q
            rows = offs_m.to(tl.int64)
            lse, delta = row_statistics(lse_ptr + statistics, delta_ptr + statistics, offs_m, s_q)
            x = chunked_product(
                q_head, k_head, rows, k_rows, there_m, there_n, d,
                BLOCK_M, BLOCK_N, BLOCK_C, PRECISION,
            )  # fmt: skip
            dp = chunked_product(
                do_head, v_head, rows, k_rows, there_m, there_n, d_v,
                BLOCK_M, BLOCK_N, BLOCK_C, PRECISION,
            )  # fmt: skip
            _, ds, _ = gradient_tile(
                x, dp, lse[:, None], delta[:, None], scores, mask, start_m, start_n,
                True, False, BLOCK_M, BLOCK_N,
            )  # fmt: skip
            acc += ds
    base = dbias_ptr + own_batch.to(tl.int64) * stride_dbb + own_head.to(tl.int64) * stride_dbh
    if OVER_QUERIES:
        total = tl.sum(acc, 0)
        tl.store(base + k_rows, total.to(dbias_ptr.dtype.element_ty), mask=keys < s_kv)
    else:
        rows = own_tile * BLOCK_M + tl.arange(0, BLOCK_M)
        ptrs = base + rows.to(tl.int64)[:, None] * stride_dbm + k_rows[None, :]
        within = (rows[:, None] < s_q) & (keys[None, :] < s_kv)
        tl.store(ptrs, acc.to(dbias_ptr.dtype.element_ty), mask=within)


bias_gradient_kernel = compiled_twice(_bias_gradient, "do_ptr", "q_ptr", "k_ptr", "v_ptr")


def _sink_gradient(
    sink_ptr, lse_ptr, delta_ptr, dsink_ptr, stride_lb, stride_lh, b, s_q, BLOCK_M: tl.constexpr
):
    """Compute dsink [h_q]: a program a head, over batches and queries in order."""
    head = tl.program_id(0).to(tl.int64)
    sink = tl.load(sink_ptr + head)
    acc = tl.zeros((BLOCK_M,), tl.float32)
    for batch in range(b):
        base = tl.cast(batch, tl.int64) * stride_lb + head * stride_lh
        for start in range(0, s_q, BLOCK_M):
            offs = start + tl.arange(0, BLOCK_M)
            there = offs < s_q
            lse = tl.load(lse_ptr + base + offs, mask=there, other=float("inf"))
            delta = tl.load(delta_ptr + base + offs, mask=there, other=0.0)
            lse = tl.where(lse == float("-inf"), float("inf"), lse)
            acc += tl.exp2((sink - lse) * LOG2E) * delta
    tl.store(dsink_ptr + head, -tl.sum(acc, 0))


sink_gradient_kernel = compiled(_sink_gradient)
