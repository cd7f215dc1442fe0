"""A trial of attention's forward on Hopper in Gluon, as a file of a user's kernel.

`nox -s bench -- --kernels=studies/hopper_forward.py --kernel hopper_forward`; accuracy likewise.
It isn't one of kernels/ yet. It serves sm 90, halves, heads of 64, 128 and 256, and no option but
causal masks and grouped heads.

A program has a warp that loads, and two or three groups of four warps that compute. The warp brings
q, k and v into shared memory by TMA, as far ahead as there are STAGES; barriers say what is there
(`full`) and what may be written again (`empty`). Each group has 64 queries of a block. It asks the
tensor cores for the scores of a tile of keys and for the product of the tile before with v, and
does a tile's softmax while they work. Between two tiles the weights p are held as pairs in 32-bit
words: Triton 3.6 takes two instructions more for each pair to carry halves around a loop.

A program stays for several blocks of queries. They come in pairs of one head, the first block with
the last one and so on, so that under a causal mask all pairs take the same time.

Design after FlashAttention-3 (Shah et al. 2024).
"""

from __future__ import annotations

import math

import torch
import triton
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
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.attention.served import load_bytes_of
from kernels.device import on_device_of, real_multiprocessors
from kernels.registry import Domain, kernel
from oracles import ATTENTION_FORWARD, OPS
from oracles.op import Case, Numerics

# By head: groups of warps that compute, keys of a tile, registers of their threads.
_CUTS = {64: (3, 128, 160), 128: (2, 128, 240), 256: (2, 64, 240)}
_ROWS = 64  # queries of a group
_STAGES = 2


@gluon.constexpr_function
def _out_in_q(d):
    """Whether out takes q's place in shared memory: heads of 256 leave it no other."""
    return d == 256


@gluon.jit
def _block(item, blocks):
    """An item's block of queries, its head, and how many items this program had before."""
    programs = gl.num_programs(0)
    turn = item // programs
    pairs = (blocks + 1) // 2
    pair = item - turn * programs + (turn // 2) * programs
    head = pair // pairs
    block = pair - head * pairs
    mirrored = blocks - 1 - block
    if turn % 2 == 0:
        block = mirrored
    elif block == mirrored:
        block = blocks  # which has no queries: the block in the middle is done once
    return block, head, turn


@gluon.jit
def _items(blocks, heads):
    """Where this program's items end; they are a grid apart."""
    pairs = (blocks + 1) // 2 * heads
    return 2 * gl.cdiv(pairs - gl.program_id(0), gl.num_programs(0)) * gl.num_programs(0)


@gluon.jit
def _tiles(
    start_m, s_q, keys, shift,
    CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
):  # fmt: skip
    """Tiles of keys of a block of queries, one at least, and how many of the first need no mask."""
    if start_m >= s_q:
        keys = 0
    if CAUSAL:
        last = gl.minimum(start_m + BLOCK_M, s_q) + shift
        tiles = gl.cdiv(gl.minimum(gl.maximum(last, 0), keys), BLOCK_N)
        full = gl.minimum(gl.maximum(start_m + shift + 1, 0), keys) // BLOCK_N
    else:
        tiles = gl.cdiv(keys, BLOCK_N)
        full = keys // BLOCK_N
    return gl.maximum(tiles, 1), full


@gluon.jit
def _load(
    descriptors, memory, barriers, sizes, group, CAUSAL: gl.constexpr
):  # fmt: skip
    """What the loading warp does: q of each item, then its tiles of k and v, the last one first."""
    q_desc, k_desc, v_desc = descriptors
    q_smem, k_smem, v_smem, _out_smem = memory
    q_full, q_empty, k_full, k_empty, v_full, v_empty = barriers
    blocks, heads, h_q, s_q, keys, shift = sizes
    GROUPS: gl.constexpr = q_smem.shape[0]
    ROWS: gl.constexpr = q_smem.shape[3]
    STAGES: gl.constexpr = k_smem.shape[0]
    BLOCK_M: gl.constexpr = GROUPS * ROWS
    BLOCK_N: gl.constexpr = k_smem.shape[3]
    loaded = 0
    for item in range(gl.program_id(0), _items(blocks, heads), gl.num_programs(0)):
        block, head, turn = _block(item, blocks)
        b = head // h_q
        h = head - b * h_q
        start_m = block * BLOCK_M
        tiles, _ = _tiles(start_m, s_q, keys, shift, CAUSAL, BLOCK_M, BLOCK_N)
        for g in gl.static_range(GROUPS):
            row = start_m + g * ROWS
            mbarrier.wait(q_empty.index(g), (turn & 1) ^ 1)
            mbarrier.expect(q_full.index(g), q_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(
                q_desc, [b, h, row, 0], q_full.index(g), q_smem.index(g)
            )
        for i in range(tiles):
            place = [b, h // group, (tiles - 1 - i) * BLOCK_N, 0]
            stage = loaded % STAGES
            phase = ((loaded // STAGES) & 1) ^ 1
            mbarrier.wait(k_empty.index(stage), phase)
            mbarrier.expect(k_full.index(stage), k_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(k_desc, place, k_full.index(stage), k_smem.index(stage))
            mbarrier.wait(v_empty.index(stage), phase)
            mbarrier.expect(v_full.index(stage), v_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(v_desc, place, v_full.index(stage), v_smem.index(stage))
            loaded += 1


@gluon.jit
def _softmax(
    s, m_i, l_i, scale, offs_m, start_n, keys, shift,
    MASKED: gl.constexpr, CAUSAL: gl.constexpr, BLOCK_N: gl.constexpr, S_LAYOUT: gl.constexpr,
):  # fmt: skip
    """A tile's weights, the new m (in base 2) and l, and the accumulator's factor."""
    if MASKED:
        offs_n = start_n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, S_LAYOUT))
        keep = offs_n[None, :] < keys
        if CAUSAL:
            keep = keep & (offs_n[None, :] <= offs_m[:, None] + shift)
        s = gl.where(keep, s, float("-inf"))
    m_new = gl.maximum(m_i, gl.max(s, 1) * scale)
    m_used = m_new
    if MASKED:
        m_used = gl.where(m_new == float("-inf"), 0.0, m_new)
    p = gl.exp2(s * scale - m_used[:, None])
    alpha = gl.exp2(m_i - m_used)
    return p, m_new, l_i * alpha + gl.sum(p, 1), alpha


@gluon.jit
def _packed(p, DTYPE: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr):
    """Weights rounded to halves, two neighbours in a word."""
    low, high = gl.split(p.reshape((ROWS, BLOCK_N // 2, 2)))
    ASM: gl.constexpr = "cvt.rn.%s.f32 $0, $2, $1;" % ("bf16x2" if DTYPE.is_bf16() else "f16x2")
    return gl.inline_asm_elementwise(
        ASM, "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def _unpacked(
    words, DTYPE: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, LAYOUT: gl.constexpr
):
    """The weights of `_packed`, as an operand of a product."""
    pairs = gl.join(words.to(gl.int16), (words >> 16).to(gl.int16))
    return gl.convert_layout(pairs.reshape((ROWS, BLOCK_N)).to(DTYPE, bitcast=True), LAYOUT)


@gluon.jit
def _compute(
    out_desc, lse_ptr, memory, barriers, sizes, scale, G: gl.constexpr, CAUSAL: gl.constexpr
):  # fmt: skip
    """What group G does: out and lse of its rows of each item."""
    q_smem, k_smem, v_smem, out_smem = memory
    q_full, q_empty, k_full, k_empty, v_full, v_empty = barriers
    blocks, heads, h_q, s_q, keys, shift = sizes
    ROWS: gl.constexpr = q_smem.shape[3]
    D: gl.constexpr = q_smem.shape[4]
    STAGES: gl.constexpr = k_smem.shape[0]
    BLOCK_M: gl.constexpr = q_smem.shape[0] * ROWS
    BLOCK_N: gl.constexpr = k_smem.shape[3]
    OUT_IN_Q: gl.constexpr = _out_in_q(D)
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    S_ROWS: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    O_ROWS: gl.constexpr = gl.SliceLayout(1, O_LAYOUT)
    DTYPE: gl.constexpr = q_smem.dtype
    taken = 0  # tiles, of all items
    q = q_smem.index(G).reshape((ROWS, D))
    zeros = gl.zeros((ROWS, BLOCK_N), gl.float32, S_LAYOUT)
    for item in range(gl.program_id(0), _items(blocks, heads), gl.num_programs(0)):
        block, head, turn = _block(item, blocks)
        b = head // h_q
        h = head - b * h_q
        start_m = block * BLOCK_M
        tiles, full = _tiles(start_m, s_q, keys, shift, CAUSAL, BLOCK_M, BLOCK_N)
        offs_m = start_m + G * ROWS + gl.arange(0, ROWS, S_ROWS)
        m_i = gl.full((ROWS,), float("-inf"), gl.float32, S_ROWS)
        l_i = gl.zeros((ROWS,), gl.float32, S_ROWS)
        acc = gl.zeros((ROWS, D), gl.float32, O_LAYOUT)
        mbarrier.wait(q_full.index(G), turn & 1)
        stage = taken % STAGES
        mbarrier.wait(k_full.index(stage), (taken // STAGES) & 1)
        k = k_smem.index(stage).reshape((BLOCK_N, D)).permute((1, 0))
        s = warpgroup_mma(q, k, zeros, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, deps=[s])
        mbarrier.arrive(k_empty.index(stage), count=1)
        p, m_i, l_i, alpha = _softmax(
            s, m_i, l_i, scale, offs_m, (tiles - 1) * BLOCK_N, keys, shift, True, CAUSAL, BLOCK_N,
            S_LAYOUT,
        )  # fmt: skip
        words = _packed(p, DTYPE, ROWS, BLOCK_N)
        taken += 1
        # The tiles that need a mask, then the others.
        for masked in gl.static_range(2):
            if masked == 0:
                first = 1
                end = gl.maximum(tiles - full, 1)
            else:
                first = gl.maximum(tiles - full, 1)
                end = tiles
            for i in range(first, end):
                stage = taken % STAGES
                before = (taken - 1) % STAGES
                mbarrier.wait(k_full.index(stage), (taken // STAGES) & 1)
                k = k_smem.index(stage).reshape((BLOCK_N, D)).permute((1, 0))
                s = warpgroup_mma(q, k, zeros, use_acc=False, is_async=True)
                mbarrier.wait(v_full.index(before), ((taken - 1) // STAGES) & 1)
                weights = _unpacked(words, DTYPE, ROWS, BLOCK_N, P_LAYOUT)
                v = v_smem.index(before).reshape((BLOCK_N, D))
                product = warpgroup_mma(weights, v, acc, is_async=True)
                s = warpgroup_mma_wait(1, deps=[s])
                mbarrier.arrive(k_empty.index(stage), count=1)
                p, m_i, l_i, alpha = _softmax(
                    s, m_i, l_i, scale, offs_m, (tiles - 1 - i) * BLOCK_N, keys, shift,
                    masked == 0, CAUSAL, BLOCK_N, S_LAYOUT,
                )  # fmt: skip
                acc, weights, p = warpgroup_mma_wait(0, deps=[product, weights, p])
                mbarrier.arrive(v_empty.index(before), count=1)
                words = _packed(p, DTYPE, ROWS, BLOCK_N)
                acc = acc * gl.convert_layout(alpha, O_ROWS)[:, None]
                taken += 1
        if not OUT_IN_Q:
            mbarrier.arrive(q_empty.index(G), count=1)
        before = (taken - 1) % STAGES
        mbarrier.wait(v_full.index(before), ((taken - 1) // STAGES) & 1)
        weights = _unpacked(words, DTYPE, ROWS, BLOCK_N, P_LAYOUT)
        v = v_smem.index(before).reshape((BLOCK_N, D))
        product = warpgroup_mma(weights, v, acc, is_async=True)
        acc, weights = warpgroup_mma_wait(0, deps=[product, weights])
        mbarrier.arrive(v_empty.index(before), count=1)
        m_used = gl.where(m_i == float("-inf"), 0.0, m_i)
        lse = m_used * 0.6931471805599453 + gl.log(l_i)  # -inf for a row without keys
        inverse = gl.where(l_i == 0.0, 0.0, 1.0 / gl.where(l_i == 0.0, 1.0, l_i))
        out = acc * gl.convert_layout(inverse, O_ROWS)[:, None]
        if not OUT_IN_Q:
            tma.store_wait(0)
        out_smem.index(G).reshape((ROWS, D)).store(out.to(DTYPE))
        fence_async_shared()
        tma.async_copy_shared_to_global(out_desc, [b, h, start_m + G * ROWS, 0], out_smem.index(G))
        gl.store(lse_ptr + head.to(gl.int64) * s_q + offs_m, lse, mask=offs_m < s_q)
        if OUT_IN_Q:
            tma.store_wait(0)
            mbarrier.arrive(q_empty.index(G), count=1)
    tma.store_wait(0)


@gluon.jit
def _barriers(NUMBER: gl.constexpr, COUNT: gl.constexpr):
    """So many barriers, each of which waits for COUNT arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUMBER):
        mbarrier.init(made.index(i), count=COUNT)
    return made


@gluon.jit
def _forward(
    q_desc, k_desc, v_desc, out_desc, lse_ptr, blocks, heads, h_q, group, s_q, keys, shift, scale,
    CAUSAL: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """out [b, h_q, s_q, d] by its descriptor, and lse [b, h_q, s_q]; scale is in base 2."""
    ROWS: gl.constexpr = q_desc.block_type.shape[2]
    D: gl.constexpr = q_desc.block_type.shape[3]
    BLOCK_N: gl.constexpr = k_desc.block_type.shape[2]
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [GROUPS, 1, 1, ROWS, D], q_desc.layout)
    out_smem = q_smem
    if not _out_in_q(D):
        out_smem = gl.allocate_shared_memory(q_desc.dtype, [GROUPS, 1, 1, ROWS, D], q_desc.layout)
    k_smem = gl.allocate_shared_memory(k_desc.dtype, [STAGES, 1, 1, BLOCK_N, D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(v_desc.dtype, [STAGES, 1, 1, BLOCK_N, D], v_desc.layout)
    memory = (q_smem, k_smem, v_smem, out_smem)
    barriers = (
        _barriers(GROUPS, 1), _barriers(GROUPS, 1), _barriers(STAGES, 1),
        _barriers(STAGES, GROUPS), _barriers(STAGES, 1), _barriers(STAGES, GROUPS),
    )  # fmt: skip
    fence_async_shared()
    descriptors = (q_desc, k_desc, v_desc)
    sizes = (blocks, heads, h_q, s_q, keys, shift)
    # Constants stay constants only where they stand in the call.
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_compute, (out_desc, lse_ptr, memory, barriers, sizes, scale, 0, CAUSAL)),
                (_compute, (out_desc, lse_ptr, memory, barriers, sizes, scale, 1, CAUSAL)),
                (_load, (descriptors, memory, barriers, sizes, group, CAUSAL)),
            ],
            [4, 1],
            [REGISTERS, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_compute, (out_desc, lse_ptr, memory, barriers, sizes, scale, 0, CAUSAL)),
                (_compute, (out_desc, lse_ptr, memory, barriers, sizes, scale, 1, CAUSAL)),
                (_compute, (out_desc, lse_ptr, memory, barriers, sizes, scale, 2, CAUSAL)),
                (_load, (descriptors, memory, barriers, sizes, group, CAUSAL)),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, 24],
        )


def _descriptor(tensor: Tensor, rows: int, there: int | None = None) -> TensorDescriptor:
    """Boxes of so many rows of a head of [b, s, h, d]; rows from `there` on read as 0."""
    b, s, h, d = tensor.shape
    shape = [b, h, s if there is None else there, d]
    # An axis of one element may have any stride; TMA wants multiples of 16 bytes.
    axes = tensor.transpose(1, 2)
    strides = [
        stride if size > 1 else d
        for size, stride in zip(axes.shape[:3], axes.stride()[:3], strict=True)
    ]
    element = gl.bfloat16 if tensor.dtype == torch.bfloat16 else gl.float16
    box = [1, 1, rows, d]
    layout = gl.NVMMASharedLayout.get_default_for(box, element)
    return TensorDescriptor(tensor, shape, [*strides, 1], box, layout)


def _refusal(case: Case) -> str | None:
    if case.size("d") not in _CUTS or case.size("d") != case.size("d_v"):
        return "serves d = d_v of 64, 128 or 256"
    places = OPS[case.op].geometry(case)
    if any(load_bytes_of(places[name]) < 16 for name in "qkv"):
        return "needs 16-byte pointers, strides and rows"
    return None


@kernel(
    ATTENTION_FORWARD,
    Domain(
        dtypes=(torch.float16, torch.bfloat16),
        features=frozenset({"causal", "bottom_right", "gqa"}),
        sm=(90, 90),
        interpretable=False,
        also=_refusal,
    ),
    numerics=Numerics(
        key_tile=64, accumulation_roundoff=2.0**-23, batch_invariant=True, device_independent=True
    ),
    priority=1,
)
def hopper_forward(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, corner: str = "top_left"
) -> tuple[Tensor, Tensor]:
    """out [b, s_q, h_q, d] like q and lse [b, h_q, s_q] in fp32, of q, k and v [b, s, h, d]."""
    b, s_q, h_q, d = q.shape
    s_kv, h_kv = k.shape[1:3]
    out = q.new_empty(q.shape)
    lse = q.new_empty((b, h_q, s_q), dtype=torch.float32)
    shift = s_kv - s_q if corner == "bottom_right" else 0
    # What lies past the last key that some query may attend to is never read.
    keys = min(s_kv, max(s_q + shift, 0)) if causal else s_kv
    if not lse.numel():
        return out, lse
    if not keys:
        return out.zero_(), lse.fill_(float("-inf"))
    groups, tile, registers = _CUTS[d]
    rows = groups * _ROWS
    blocks, heads = triton.cdiv(s_q, rows), b * h_q
    programs = min((blocks + 1) // 2 * heads, real_multiprocessors(q.device))
    with on_device_of(q):
        _forward[(programs,)](
            _descriptor(q, _ROWS), _descriptor(k, tile, keys), _descriptor(v, tile, keys),
            _descriptor(out, _ROWS), lse, blocks, heads, h_q, h_q // h_kv, s_q, keys, shift,
            math.log2(math.e) / math.sqrt(d), CAUSAL=causal, STAGES=_STAGES, GROUPS=groups,
            REGISTERS=registers, num_warps=4,
        )  # fmt: skip
    return out, lse
