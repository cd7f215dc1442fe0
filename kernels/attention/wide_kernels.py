"""Attention for heads too wide to hold on chip (`gmem`): accumulators in memory, in fp32.

Products over d run a chunk at a time; a chunk of an accumulator is read, updated and written back
for each tile, by the one program that owns its rows. Workspace: 4 bytes an element of each output
(PyTorch's memory-efficient kernels do the same past their widest tile).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.backward_kernels import gradient_tile, row_statistics
from kernels.attention.forward_kernel import finish, softmax_step
from kernels.attention.scores import attended, compiled_twice, key_tiles, query_tiles, sequence


@triton.jit
def chunked_product(
    a_base,
    b_base,
    a_rows,
    b_rows,
    a_there,
    b_there,
    stride_am,
    stride_ad,
    stride_bm,
    stride_bd,
    d,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """a b^T over d, a chunk of BLOCK_C at a time: [ROWS, COLUMNS] in fp32."""
    x = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, d, BLOCK_C):
        offs = start + tl.arange(0, BLOCK_C)
        within = offs < d
        a_ptrs = a_base + a_rows[:, None] * stride_am + offs[None, :] * stride_ad
        b_ptrs = b_base + b_rows[None, :] * stride_bm + offs[:, None] * stride_bd
        a = tl.load(a_ptrs, mask=a_there[:, None] & within[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=b_there[None, :] & within[:, None], other=0.0)
        x = tl.dot(a, b, x, input_precision=PRECISION)
    return x


@triton.jit
def add_chunks(
    acc_base,
    stride_acc,
    acc_rows,
    acc_there,
    weights,
    factor,
    b_base,
    b_rows,
    b_there,
    stride_bm,
    stride_bd,
    d,
    BLOCK_C: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """acc = acc factor + weights b, in memory, a chunk of b's columns at a time."""
    for start in range(0, d, BLOCK_C):
        offs = start + tl.arange(0, BLOCK_C)
        within = offs < d
        b_ptrs = b_base + b_rows[:, None] * stride_bm + offs[None, :] * stride_bd
        b = tl.load(b_ptrs, mask=b_there[:, None] & within[None, :], other=0.0)
        acc_ptrs = acc_base + acc_rows[:, None] * stride_acc + offs[None, :]
        mask = acc_there[:, None] & within[None, :]
        acc = tl.load(acc_ptrs, mask=mask, other=0.0) * factor[:, None]
        acc = tl.dot(weights.to(b.dtype), b, acc, input_precision=PRECISION)
        tl.store(acc_ptrs, acc, mask=mask)
    # The next tile's chunk may be read by other threads of the program than those that wrote it.
    tl.debug_barrier()


def _forward_wide(
    q_ptr,
    k_ptr,
    v_ptr,
    bias_ptr,
    slopes_ptr,
    sink_ptr,
    cu_q,
    cu_k,
    acc_ptr,
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
    PRECISION: tl.constexpr,
    ADJACENT: tl.constexpr,
    VECTOR: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """As `forward_kernel`; acc is fp32 zeros, laid out like out.

    All strides but the last, d and d_v arrive divided by VECTOR. Offsets are counted in int64.
    """
    stride_qb, stride_qm, stride_qh = stride_qb * VECTOR, stride_qm * VECTOR, stride_qh * VECTOR
    stride_kb, stride_kn, stride_kh = stride_kb * VECTOR, stride_kn * VECTOR, stride_kh * VECTOR
    stride_vb, stride_vn, stride_vh = stride_vb * VECTOR, stride_vn * VECTOR, stride_vh * VECTOR
    stride_ob, stride_om, stride_oh = stride_ob * VECTOR, stride_om * VECTOR, stride_oh * VECTOR
    d, d_v = d * VECTOR, d_v * VECTOR
    if ADJACENT:
        stride_qd, stride_kd, stride_vd = 1, 1, 1
    blocks_m = tl.cdiv(s_q, BLOCK_M)
    pid = tl.program_id(0)
    start_m = (blocks_m - 1 - pid % blocks_m) * BLOCK_M
    batch_head = pid // blocks_m
    batch = batch_head // h_q
    head = (batch_head % h_q).to(tl.int64)
    start_q, start_k, s_q, s_kv = sequence(cu_q, cu_k, batch, s_q, s_kv)
    if start_m >= s_q:
        return
    memory_batch = batch.to(tl.int64)
    if cu_q is not None:
        memory_batch = memory_batch * 0
    shift = (s_kv - s_q) * bottom_right
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    there_m = offs_m < s_q
    rows = (start_q + offs_m).to(tl.int64)
    kv_head = head // group
    q_base = q_ptr + memory_batch * stride_qb + head * stride_qh
    k_base = k_ptr + memory_batch * stride_kb + kv_head * stride_kh
    v_base = v_ptr + memory_batch * stride_vb + kv_head * stride_vh
    bias_base = bias_ptr
    if bias_ptr is not None:
        bias_base += memory_batch * stride_bb + head * stride_bh
    slope = 0.0
    if slopes_ptr is not None:
        slope = tl.load(slopes_ptr + head)
    out_offs = memory_batch * stride_ob + head * stride_oh
    acc_base = acc_ptr + out_offs
    first_key, end_key = attended(s_q, s_kv, shift, left, right)
    low, _, _, high = key_tiles(start_m, s_q, s_kv, shift, left, right, BLOCK_M, BLOCK_N)
    m_i = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    for tile in range(low, high):
        start_n = tile * BLOCK_N
        keys = start_n + offs_n
        there_n = (keys >= first_key) & (keys < end_key)
        k_rows = (start_k + keys).to(tl.int64)
        x = chunked_product(
            q_base, k_base, rows, k_rows, there_m, there_n, stride_qm, stride_qd, stride_kn,
            stride_kd, d, BLOCK_M, BLOCK_N, BLOCK_C, PRECISION,
        )  # fmt: skip
        p, m_i, l_i, alpha = softmax_step(
            x, m_i, l_i, bias_base, slope, seed_low, seed_high, threshold, batch_head,
            offs_m[:, None], start_n, shift,
            left, right, first_key, end_key, stride_bm, stride_bn, scale, softcap,
            bias_ptr is not None, slopes_ptr is not None, SOFTCAP, DROPOUT, True, True,
            BLOCK_M, BLOCK_N, s_q,
        )  # fmt: skip
        add_chunks(
            acc_base, stride_om, rows, there_m, p, alpha, v_base, k_rows, there_n, stride_vn,
            stride_vd, d_v, BLOCK_C, PRECISION,
        )  # fmt: skip
    inverse, lse = finish(m_i, l_i, sink_ptr, head, True)
    if DROPOUT:
        inverse *= keep_scale
    for start in range(0, d_v, BLOCK_C):
        offs = start + tl.arange(0, BLOCK_C)
        mask = there_m[:, None] & (offs[None, :] < d_v)
        at = rows[:, None] * stride_om + offs[None, :]
        acc = tl.load(acc_base + at, mask=mask, other=0.0) * inverse[:, None]
        tl.store(out_ptr + out_offs + at, acc.to(out_ptr.dtype.element_ty), mask=mask)
    lse_ptrs = lse_ptr + memory_batch * stride_lb + head * stride_lh + rows
    tl.store(lse_ptrs, lse, mask=there_m)


forward_wide_kernel = compiled_twice(_forward_wide, "q_ptr", "k_ptr", "v_ptr", "acc_ptr", "out_ptr")


def _key_gradients_wide(
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
    dk_acc_ptr,
    dv_acc_ptr,
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
    SOFTCAP: tl.constexpr,
    DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr,
    ADJACENT: tl.constexpr,
    VECTOR: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """dk and dv in fp32, gathered in memory that holds zeros: a block of keys a program.

    All strides but the last, d and d_v arrive divided by VECTOR.
    """
    stride_gb, stride_gm, stride_gh = stride_gb * VECTOR, stride_gm * VECTOR, stride_gh * VECTOR
    stride_qb, stride_qm, stride_qh = stride_qb * VECTOR, stride_qm * VECTOR, stride_qh * VECTOR
    stride_kb, stride_kn, stride_kh = stride_kb * VECTOR, stride_kn * VECTOR, stride_kh * VECTOR
    stride_vb, stride_vn, stride_vh = stride_vb * VECTOR, stride_vn * VECTOR, stride_vh * VECTOR
    stride_dkb, stride_dkn = stride_dkb * VECTOR, stride_dkn * VECTOR
    stride_dvb, stride_dvn = stride_dvb * VECTOR, stride_dvn * VECTOR
    stride_dkh, stride_dvh = stride_dkh * VECTOR, stride_dvh * VECTOR
    d, d_v = d * VECTOR, d_v * VECTOR
    if ADJACENT:
        stride_gd, stride_qd, stride_kd, stride_vd = 1, 1, 1, 1
    h_kv = h_q // group
    blocks_n = tl.cdiv(s_kv, BLOCK_N)
    start_n = (tl.program_id(0) % blocks_n) * BLOCK_N
    batch_head = tl.program_id(0) // blocks_n
    batch = batch_head // h_kv
    kv_head = (batch_head % h_kv).to(tl.int64)
    start_q, start_k, s_q, s_kv = sequence(cu_q, cu_k, batch, s_q, s_kv)
    if start_n >= s_kv:
        return
    memory_batch = batch.to(tl.int64)
    if cu_q is not None:
        memory_batch = memory_batch * 0
    shift = (s_kv - s_q) * bottom_right
    keys = start_n + tl.arange(0, BLOCK_N)
    first_key, end_key = attended(s_q, s_kv, shift, left, right)
    there_n = (keys >= first_key) & (keys < end_key)
    k_rows = (start_k + keys).to(tl.int64)
    k_base = k_ptr + memory_batch * stride_kb + kv_head * stride_kh
    v_base = v_ptr + memory_batch * stride_vb + kv_head * stride_vh
    dk_base = dk_acc_ptr + memory_batch * stride_dkb + kv_head * stride_dkh
    dv_base = dv_acc_ptr + memory_batch * stride_dvb + kv_head * stride_dvh
    low, _, _, high = query_tiles(start_n, s_q, s_kv, shift, left, right, BLOCK_M, BLOCK_N)
    ones = tl.full((BLOCK_N,), 1.0, tl.float32)
    for member in range(group):
        head = kv_head * group + member
        q_base = q_ptr + memory_batch * stride_qb + head * stride_qh
        g_base = do_ptr + memory_batch * stride_gb + head * stride_gh
        statistics = memory_batch * stride_lb + head * stride_lh + start_q
        bias_base = bias_ptr
        if bias_ptr is not None:
            bias_base += memory_batch * stride_bb + head * stride_bh
        slope = 0.0
        if slopes_ptr is not None:
            slope = tl.load(slopes_ptr + head)
        for tile in range(low, high):
            start_m = tile * BLOCK_M
            offs_m = start_m + tl.arange(0, BLOCK_M)
            there_m = offs_m < s_q
            rows = (start_q + offs_m).to(tl.int64)
            lse, delta = row_statistics(lse_ptr + statistics, delta_ptr + statistics, offs_m, s_q)
            x = chunked_product(
                q_base, k_base, rows, k_rows, there_m, there_n, stride_qm, stride_qd, stride_kn,
                stride_kd, d, BLOCK_M, BLOCK_N, BLOCK_C, PRECISION,
            )  # fmt: skip
            dp = chunked_product(
                g_base, v_base, rows, k_rows, there_m, there_n, stride_gm, stride_gd, stride_vn,
                stride_vd, d_v, BLOCK_M, BLOCK_N, BLOCK_C, PRECISION,
            )  # fmt: skip
            weights, _ds, dx = gradient_tile(
                x, dp, lse[:, None], delta[:, None], bias_base, slope, seed_low, seed_high,
                threshold, keep_scale,
                batch * h_q + head.to(tl.int32), start_m, start_n, shift, left, right, s_q,
                first_key, end_key, stride_bm, stride_bn, scale, softcap, bias_ptr is not None,
                slopes_ptr is not None, SOFTCAP, DROPOUT, True, True, False, BLOCK_M, BLOCK_N,
            )  # fmt: skip
            add_chunks(
                dv_base, stride_dvn, k_rows, there_n, tl.trans(weights), ones, g_base, rows,
                there_m, stride_gm, stride_gd, d_v, BLOCK_C, PRECISION,
            )  # fmt: skip
            add_chunks(
                dk_base, stride_dkn, k_rows, there_n, tl.trans(dx) * scale, ones, q_base, rows,
                there_m, stride_qm, stride_qd, d, BLOCK_C, PRECISION,
            )  # fmt: skip


key_gradients_wide_kernel = compiled_twice(
    _key_gradients_wide, "do_ptr", "q_ptr", "k_ptr", "v_ptr", "dk_acc_ptr", "dv_acc_ptr"
)


def _query_gradients_wide(
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
    dq_acc_ptr,
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
    PRECISION: tl.constexpr,
    ADJACENT: tl.constexpr,
    VECTOR: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """dq in fp32, gathered in memory that holds zeros: a block of queries a program.

    All strides but the last, d and d_v arrive divided by VECTOR.
    """
    stride_gb, stride_gm, stride_gh = stride_gb * VECTOR, stride_gm * VECTOR, stride_gh * VECTOR
    stride_qb, stride_qm, stride_qh = stride_qb * VECTOR, stride_qm * VECTOR, stride_qh * VECTOR
    stride_kb, stride_kn, stride_kh = stride_kb * VECTOR, stride_kn * VECTOR, stride_kh * VECTOR
    stride_vb, stride_vn, stride_vh = stride_vb * VECTOR, stride_vn * VECTOR, stride_vh * VECTOR
    stride_dqb, stride_dqm = stride_dqb * VECTOR, stride_dqm * VECTOR
    stride_dqh = stride_dqh * VECTOR
    d, d_v = d * VECTOR, d_v * VECTOR
    if ADJACENT:
        stride_gd, stride_qd, stride_kd, stride_vd = 1, 1, 1, 1
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
    offs_m = start_m + tl.arange(0, BLOCK_M)
    there_m = offs_m < s_q
    rows = (start_q + offs_m).to(tl.int64)
    kv_head = head // group
    q_base = q_ptr + memory_batch * stride_qb + head * stride_qh
    g_base = do_ptr + memory_batch * stride_gb + head * stride_gh
    k_base = k_ptr + memory_batch * stride_kb + kv_head * stride_kh
    v_base = v_ptr + memory_batch * stride_vb + kv_head * stride_vh
    statistics = memory_batch * stride_lb + head * stride_lh + start_q
    bias_base = bias_ptr
    if bias_ptr is not None:
        bias_base += memory_batch * stride_bb + head * stride_bh
    slope = 0.0
    if slopes_ptr is not None:
        slope = tl.load(slopes_ptr + head)
    dq_base = dq_acc_ptr + memory_batch * stride_dqb + head * stride_dqh
    lse, delta = row_statistics(lse_ptr + statistics, delta_ptr + statistics, offs_m, s_q)
    first_key, end_key = attended(s_q, s_kv, shift, left, right)
    low, _, _, high = key_tiles(start_m, s_q, s_kv, shift, left, right, BLOCK_M, BLOCK_N)
    ones = tl.full((BLOCK_M,), 1.0, tl.float32)
    for tile in range(low, high):
        start_n = tile * BLOCK_N
        keys = start_n + tl.arange(0, BLOCK_N)
        there_n = (keys >= first_key) & (keys < end_key)
        k_rows = (start_k + keys).to(tl.int64)
        x = chunked_product(
            q_base, k_base, rows, k_rows, there_m, there_n, stride_qm, stride_qd, stride_kn,
            stride_kd, d, BLOCK_M, BLOCK_N, BLOCK_C, PRECISION,
        )  # fmt: skip
        dp = chunked_product(
            g_base, v_base, rows, k_rows, there_m, there_n, stride_gm, stride_gd, stride_vn,
            stride_vd, d_v, BLOCK_M, BLOCK_N, BLOCK_C, PRECISION,
        )  # fmt: skip
        _weights, _ds, dx = gradient_tile(
            x, dp, lse[:, None], delta[:, None], bias_base, slope, seed_low, seed_high, threshold,
            keep_scale,
            batch_head, start_m, start_n, shift, left, right, s_q, first_key, end_key, stride_bm,
            stride_bn, scale, softcap, bias_ptr is not None, slopes_ptr is not None, SOFTCAP,
            DROPOUT, True, True, False, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        add_chunks(
            dq_base, stride_dqm, rows, there_m, dx * scale, ones, k_base, k_rows, there_n,
            stride_kn, stride_kd, d, BLOCK_C, PRECISION,
        )  # fmt: skip


query_gradients_wide_kernel = compiled_twice(
    _query_gradients_wide, "do_ptr", "q_ptr", "k_ptr", "v_ptr", "dq_acc_ptr"
)
