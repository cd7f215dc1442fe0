"""A trial of attention's backward on Hopper in Gluon, as a file of a user's kernel.

`nox -s bench -- --kernels=studies/hopper_backward.py --kernel hopper_backward`; accuracy likewise.
It has been compiled, and run on a CPU, and not on a GPU. It serves sm 90, halves, heads of 64 and
128, and no option but causal masks and grouped heads.

Three kernels. The first writes what a row of queries needs: lse in base 2, and delta; and zeros
where dq is added up. The second makes dk and dv, and adds shares of dq up in memory, in no order.
The third rounds dq.

A program of the second has a block of 128 keys of a head, and walks over tiles of 64 queries of
each query head that shares it. A warp loads by TMA; two groups of four warps compute, each with 64
of the keys. They hold s and dp with keys as rows: so p and ds are, as they leave registers, the
operands of dv and dk. ds goes through shared memory too, for dq, of which a group has half of the
columns. Products are asked for ahead, so that tensor cores work while warps do:

    products        dp_j         dv_j              dq_j    dk_j      s_j+1
    warps           p_j of s_j   ds_j, stored      wait    dq_j to memory

The sum of dq lies in memory as threads hold it, 16 bytes of each next to another's.

Design after FlashAttention-3 (Shah et al. 2024).
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.attention.hopper import WHOLE, descriptor
from kernels.attention.hopper_kernel import new_barriers
from kernels.attention.served import load_bytes_of
from kernels.device import on_device_of
from kernels.registry import Domain, kernel
from oracles import ATTENTION_BACKWARD, OPS
from oracles.op import Case, Numerics

_ROWS = 64  # queries of a tile
_KEYS = 128  # of a block
_STAGES = {64: 3, 128: 3}
_WARPS = 8


@gluon.jit
def _queries(
    start_n, s_q, keys, shift, CAUSAL: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr
):
    """A block of keys' first tile of queries, the first that needs no mask, and the tiles' end."""
    tiles = gl.cdiv(s_q, ROWS)
    first = 0
    free = 0
    if CAUSAL:
        first = gl.minimum(gl.maximum(start_n - shift, 0) // ROWS, tiles)
        free = gl.minimum(gl.cdiv(gl.maximum(start_n + KEYS - 1 - shift, 0), ROWS), tiles)
    if start_n >= keys:
        first = tiles
    if start_n + KEYS > keys:
        free = tiles
    return first, gl.maximum(free, first), tiles


@gluon.jit
def _place(blocks, h_kv):
    """This program's block of keys, its key head and its batch; the longest blocks first."""
    head = gl.program_id(0) // blocks
    b = head // h_kv
    return gl.program_id(0) - head * blocks, head - b * h_kv, b


@gluon.jit
def _load(descriptors, memory, barriers, sizes, CAUSAL: gl.constexpr):
    """What the loading warp does: k and v, then tiles of q and do, and a q that nobody uses."""
    q_desc, do_desc, k_desc, v_desc, _dk_desc, _dv_desc = descriptors
    q_smem, do_smem, k_smem, v_smem, _ds_smem, _rows_smem = memory
    q_full, do_full, kv_full, empty = barriers
    blocks, h_kv, group, s_q, keys, shift = sizes
    STAGES: gl.constexpr = q_smem.shape[0]
    ROWS: gl.constexpr = q_smem.shape[3]
    KEYS: gl.constexpr = k_smem.shape[3]
    block, kv_head, b = _place(blocks, h_kv)
    start_n = block * KEYS
    first, _, tiles = _queries(start_n, s_q, keys, shift, CAUSAL, ROWS, KEYS)
    mbarrier.expect(kv_full, 2 * k_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(k_desc, [b, kv_head, start_n, 0], kv_full, k_smem.index(0))
    tma.async_copy_global_to_shared(v_desc, [b, kv_head, start_n, 0], kv_full, v_smem.index(0))
    count = (tiles - first) * group
    head = kv_head * group
    tile = first
    for i in range(count + 1):
        stage = i % STAGES
        place = [b, head, tile * ROWS, 0]
        mbarrier.wait(empty.index(stage), ((i // STAGES) & 1) ^ 1)
        mbarrier.expect(q_full.index(stage), q_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(q_desc, place, q_full.index(stage), q_smem.index(stage))
        if i < count:
            mbarrier.expect(do_full.index(stage), do_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(
                do_desc, place, do_full.index(stage), do_smem.index(stage)
            )
        tile += 1
        if (tile == tiles) & (i + 1 < count):
            tile = first
            head += 1


@gluon.jit
def _add(dq, dq_ptr, ROWS: gl.constexpr, D: gl.constexpr):
    """Add a tile's share of dq to the sum in memory, which lies there as threads hold it."""
    # Of a row: a warp, its upper or lower half, and 8; of a column: a group of warps, 8 columns, 4
    # threads and 2 neighbours. What a thread holds of both halves is what it adds at a time.
    parts = dq.reshape((4, 2, 8, 2, D // 16, 4, 2))
    uppers, lowers = gl.split(gl.permute(parts, (0, 3, 4, 2, 5, 6, 1)))
    FOURS: gl.constexpr = ROWS * D // 4
    a, b = gl.split(uppers.reshape((FOURS, 2)))
    c, d = gl.split(lowers.reshape((FOURS, 2)))
    offs = gl.arange(0, FOURS, layout=a.type.layout) * 4
    gl.inline_asm_elementwise(
        "red.global.add.v4.f32 [$1], {$2, $3, $4, $5}; mov.b32 $0, 0;", "=r,l,f,f,f,f",
        [(dq_ptr + offs).to(gl.int64), a, b, c, d], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def _compute(
    descriptors, rows_ptr, sum_ptr, memory, barriers, sizes, scale, scale_log2, CAUSAL: gl.constexpr
):
    """What the warps that compute do: dk and dv of the block, and its shares of dq."""
    _q_desc, _do_desc, _k_desc, _v_desc, dk_desc, dv_desc = descriptors
    q_smem, do_smem, k_smem, v_smem, ds_smem, rows_smem = memory
    q_full, do_full, kv_full, empty = barriers
    blocks, h_kv, group, s_q, keys, shift = sizes
    STAGES: gl.constexpr = q_smem.shape[0]
    ROWS: gl.constexpr = q_smem.shape[3]
    D: gl.constexpr = q_smem.shape[4]
    KEYS: gl.constexpr = k_smem.shape[3]
    DTYPE: gl.constexpr = q_smem.dtype
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, ROWS, 16])
    K_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, D, 16])
    Q_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, D // 2, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, K_LAYOUT, 2)
    S_ROWS: gl.constexpr = gl.SliceLayout(0, S_LAYOUT)
    FLAT: gl.constexpr = gl.BlockedLayout([1], [32], [8], [0])
    block, kv_head, b = _place(blocks, h_kv)
    start_n = block * KEYS
    first, free, tiles = _queries(start_n, s_q, keys, shift, CAUSAL, ROWS, KEYS)
    k = k_smem.index(0).reshape((KEYS, D))
    v = v_smem.index(0).reshape((KEYS, D))
    offs_n = start_n + gl.arange(0, KEYS, gl.SliceLayout(1, S_LAYOUT))
    no_s = gl.zeros((KEYS, ROWS), gl.float32, S_LAYOUT)
    no_dq = gl.zeros((ROWS, D), gl.float32, Q_LAYOUT)
    dk = gl.zeros((KEYS, D), gl.float32, K_LAYOUT)
    dv = gl.zeros((KEYS, D), gl.float32, K_LAYOUT)
    offs_rows = gl.arange(0, 2 * ROWS, FLAT)
    head = (b * h_kv + kv_head) * group
    count = (tiles - first) * group
    row_tile = head * tiles + gl.minimum(first, tiles - 1)
    rows_smem.store(gl.load(rows_ptr + row_tile.to(gl.int64) * (2 * ROWS) + offs_rows))
    mbarrier.wait(kv_full, 0)
    mbarrier.wait(q_full.index(0), 0)
    q = q_smem.index(0).reshape((ROWS, D))
    s = warpgroup_mma(k, q.permute((1, 0)), no_s, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=[s])
    i = 0
    for member in range(group):
        for masked in gl.static_range(2):
            if masked == 0:
                begin = first
                end = free
            else:
                begin = free
                end = tiles
            for tile in range(begin, end):
                # Always 0, which the compiler doesn't know: else it keeps each address of these.
                zero = i >> 30
                k_now = k_smem.index(zero).reshape((KEYS, D))
                v_now = v_smem.index(zero).reshape((KEYS, D))
                ds_now = ds_smem.index(zero)
                stage = i % STAGES
                phase = (i // STAGES) & 1
                row_tile = (head + member) * tiles + tile
                # What the next tile's rows need; of a head's last tile, the next head's.
                after = gl.where(tile + 1 < tiles, row_tile + 1, row_tile + 1 + first)
                after = gl.where(i + 1 < count, after, row_tile)
                rows = gl.load(rows_ptr + after.to(gl.int64) * (2 * ROWS) + offs_rows)
                do = do_smem.index(stage).reshape((ROWS, D))
                q = q_smem.index(stage).reshape((ROWS, D))
                minus_delta = rows_smem.slice(ROWS, ROWS).load(S_ROWS)
                dp, _ = gl.broadcast(minus_delta[None, :], no_s)
                mbarrier.wait(do_full.index(stage), phase)
                dp = warpgroup_mma(v_now, do.permute((1, 0)), dp, is_async=True)
                lse = rows_smem.slice(0, ROWS).load(S_ROWS)
                p = gl.exp2(s * scale_log2 - lse[None, :])
                if masked == 0:
                    offs_m = tile * ROWS + gl.arange(0, ROWS, S_ROWS)
                    keep = offs_n[:, None] < keys
                    if CAUSAL:
                        keep = keep & (offs_n[:, None] <= offs_m[None, :] + shift)
                    p = gl.where(keep, p, 0.0)
                weights = gl.convert_layout(p.to(DTYPE), P_LAYOUT)
                dv = warpgroup_mma(weights, do, dv, is_async=True)
                dp = warpgroup_mma_wait(1, deps=[dp])
                ds = p * dp
                halves = ds.to(DTYPE)
                ds_now.store(halves)
                fence_async_shared()
                shares = gl.convert_layout(halves, P_LAYOUT)
                ds_t = ds_now.permute((1, 0))
                dq = warpgroup_mma(ds_t, k_now, no_dq, use_acc=False, is_async=True)
                dk = warpgroup_mma(shares, q, dk, is_async=True)
                dv, weights, dq = warpgroup_mma_wait(1, deps=[dv, weights, dq])
                i += 1
                stage_next = i % STAGES
                mbarrier.wait(q_full.index(stage_next), (i // STAGES) & 1)
                q_next = q_smem.index(stage_next).reshape((ROWS, D))
                s = warpgroup_mma(k_now, q_next.permute((1, 0)), no_s, use_acc=False, is_async=True)
                _add(dq, sum_ptr + row_tile.to(gl.int64) * (ROWS * D), ROWS, D)
                dk, shares, s = warpgroup_mma_wait(0, deps=[dk, shares, s])
                rows_smem.store(rows)
                mbarrier.arrive(empty.index(stage), count=1)
    k.store((dk * scale).to(DTYPE))
    v.store(dv.to(DTYPE))
    fence_async_shared()
    tma.async_copy_shared_to_global(dk_desc, [b, kv_head, start_n, 0], k_smem.index(0))
    tma.async_copy_shared_to_global(dv_desc, [b, kv_head, start_n, 0], v_smem.index(0))
    tma.store_wait(0)


@gluon.jit
def _gradients(
    q_desc, do_desc, k_desc, v_desc, dk_desc, dv_desc, rows_ptr, sum_ptr, blocks, h_kv, group, s_q,
    keys, shift, scale, scale_log2, CAUSAL: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """dk and dv [b, h_kv, s_kv, d] by their descriptors; dq, without scale, added to sum_ptr."""
    ROWS: gl.constexpr = q_desc.block_type.shape[2]
    D: gl.constexpr = q_desc.block_type.shape[3]
    KEYS: gl.constexpr = k_desc.block_type.shape[2]
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, ROWS], q_desc.dtype)
    rows_layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    memory = (
        gl.allocate_shared_memory(q_desc.dtype, [STAGES, 1, 1, ROWS, D], q_desc.layout),
        gl.allocate_shared_memory(q_desc.dtype, [STAGES, 1, 1, ROWS, D], q_desc.layout),
        gl.allocate_shared_memory(k_desc.dtype, [1, 1, 1, KEYS, D], k_desc.layout),
        gl.allocate_shared_memory(v_desc.dtype, [1, 1, 1, KEYS, D], v_desc.layout),
        gl.allocate_shared_memory(q_desc.dtype, [1, KEYS, ROWS], ds_layout),
        gl.allocate_shared_memory(gl.float32, [2 * ROWS], rows_layout),
    )
    barriers = (
        new_barriers(STAGES, 1),
        new_barriers(STAGES, 1),
        new_barriers(1, 1).index(0),
        new_barriers(STAGES, 1),
    )
    fence_async_shared()
    descriptors = (q_desc, do_desc, k_desc, v_desc, dk_desc, dv_desc)
    sizes = (blocks, h_kv, group, s_q, keys, shift)
    gl.warp_specialize(
        [
            (
                _compute,
                (
                    descriptors, rows_ptr, sum_ptr, memory, barriers, sizes, scale, scale_log2,
                    CAUSAL,
                ),
            ),
            (_load, (descriptors, memory, barriers, sizes, CAUSAL)),
        ],
        [1],
        [24],
    )  # fmt: skip


@triton.jit
def _rows_kernel(
    out_ptr, do_ptr, lse_ptr, rows_ptr, sum_ptr, h, s,
    stride_ob, stride_os, stride_oh, stride_od, stride_db, stride_ds, stride_dh, stride_dd,
    stride_lb, stride_lh, stride_ls, ROWS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """A tile's lse in base 2, inf for rows without keys, its -delta, and zeros for dq's sum."""
    tile = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
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
    lse = tl.where(lse == float("-inf"), float("inf"), lse * 1.4426950408889634)
    delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
    place = head * tl.num_programs(0) + tile
    rows_ptr += place * 2 * ROWS + tl.arange(0, ROWS)
    tl.store(rows_ptr, lse)
    tl.store(rows_ptr + ROWS, -delta)
    zeros = tl.zeros((ROWS * D,), tl.float32)
    tl.store(sum_ptr + place * (ROWS * D) + tl.arange(0, ROWS * D), zeros)


@triton.jit
def _rounded_kernel(
    sum_ptr, dq_ptr, h, s, scale, stride_b, stride_s, stride_h,
    ROWS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """dq of a tile, from its sum as `_add` laid it."""
    tile = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    b = head // h
    place = head * tl.num_programs(0) + tile
    dq = tl.load(sum_ptr + place * (ROWS * D) + tl.arange(0, ROWS * D)) * scale
    dq = tl.permute(dq.reshape((4, 2, D // 16, 8, 4, 2, 2)), (0, 5, 3, 1, 2, 4, 6))
    offs_m = tile * ROWS + tl.arange(0, ROWS)
    dq_ptr += b * stride_b + (head - b * h) * stride_h
    tl.store(
        dq_ptr + offs_m[:, None] * stride_s + tl.arange(0, D)[None, :],
        dq.reshape((ROWS, D)).to(dq_ptr.dtype.element_ty), mask=(offs_m < s)[:, None],
    )  # fmt: skip


def _refusal(case: Case) -> str | None:
    if case.size("d") not in _STAGES or case.size("d") != case.size("d_v"):
        return "serves d = d_v of 64 or 128"
    places = OPS[case.op].geometry(case)
    if any(load_bytes_of(places[name]) < WHOLE for name in ("q", "k", "v", "do")):
        return "needs 16-byte pointers, strides and rows"
    return None


@kernel(
    ATTENTION_BACKWARD,
    Domain(
        dtypes=(torch.float16, torch.bfloat16),
        features=frozenset({"causal", "bottom_right", "gqa"}),
        sm=(90, 90),
        also=_refusal,
    ),
    numerics=Numerics(
        key_tile=64,
        accumulation_roundoff=2.0**-23,
        bitwise_repeatable=False,
        batch_invariant=False,
        device_independent=False,
    ),
    priority=1,
)
def hopper_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    causal: bool = False,
    corner: str = "top_left",
) -> tuple[Tensor, Tensor, Tensor, None, None]:
    """dq, dk and dv like q, k and v [b, s, h, d], of a forward's out and lse [b, h_q, s_q]."""
    b, s_q, h_q, d = q.shape
    s_kv, h_kv = k.shape[1:3]
    dq, dk, dv = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    shift = s_kv - s_q if corner == "bottom_right" else 0
    # Keys past the last one that some query may attend to, and queries that may attend to none, are
    # never read.
    keys = min(s_kv, max(s_q + shift, 0)) if causal else s_kv
    unseen = max(-shift, 0) if causal else 0
    if not (q.numel() and keys):
        return dq.zero_(), dk.zero_(), dv.zero_(), None, None
    dq[:, :unseen].zero_()
    q, do, out, made, lse = (
        q[:, unseen:], do[:, unseen:], out[:, unseen:], dq[:, unseen:], lse[:, :, unseen:],
    )  # fmt: skip
    rows = s_q - unseen
    tiles = triton.cdiv(rows, _ROWS)
    blocks = triton.cdiv(s_kv, _KEYS)
    scale = 1 / math.sqrt(d)
    total = torch.empty(b * h_q * tiles * _ROWS * d, dtype=torch.float32, device=q.device)
    of_rows = torch.empty(b * h_q * tiles * _ROWS * 2, dtype=torch.float32, device=q.device)
    with on_device_of(q):
        _rows_kernel[(tiles, b * h_q)](
            out, do, lse, of_rows, total, h_q, rows, *out.stride(), *do.stride(), *lse.stride(),
            ROWS=_ROWS, D=d, num_warps=4,
        )  # fmt: skip
        _gradients[(blocks * h_kv * b,)](
            descriptor(q, _ROWS), descriptor(do, _ROWS), descriptor(k, _KEYS, keys),
            descriptor(v, _KEYS, keys), descriptor(dk, _KEYS), descriptor(dv, _KEYS), of_rows,
            total, blocks, h_kv, h_q // h_kv, rows, keys, shift + unseen, scale,
            scale * math.log2(math.e), CAUSAL=causal, STAGES=_STAGES[d], num_warps=_WARPS,
        )  # fmt: skip
        _rounded_kernel[(tiles, b * h_q)](
            total, made, h_q, rows, scale, *made.stride()[:3], ROWS=_ROWS, D=d, num_warps=4
        )
    return dq, dk, dv, None, None
