"""Attention forward on Hopper, in Gluon: a loading warp, and groups of warps that compute.

The warp brings q, k and v into shared memory by TMA, as far ahead as there are STAGES; barriers say
what is there (`full`) and what may be written again (`empty`). Each group of four warps has 64
queries of a block. It asks the tensor cores for the scores of a tile of keys and for the product of
the tile before with v, and does a tile's softmax while they work. Between two tiles the weights p
are held as pairs in 32-bit words: Triton 3.6 takes two instructions more for each pair to carry
halves around a loop.

A program stays for several blocks of queries. They come in pairs of one head, the first block with
the last one and so on, so that under a causal mask all pairs take the same time.

Design after FlashAttention-3 (Shah et al. 2024).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper

# Triton 3.6's names, which 3.9 hasn't any more, and 3.9's.
load_box = getattr(hopper.tma, "async_load", hopper.tma.async_copy_global_to_shared)
store_box = getattr(hopper.tma, "async_store", hopper.tma.async_copy_shared_to_global)


class Memory(NamedTuple):
    """Shared memory: [GROUPS, 1, 1, rows, D] of q and out, [STAGES, 1, 1, keys, D] of k and v."""

    q: Any
    k: Any
    v: Any
    out: Any


class Barriers(NamedTuple):
    """One for the q of each group, and one for each stage of k and of v."""

    q_full: Any
    q_empty: Any
    k_full: Any
    k_empty: Any
    v_full: Any
    v_empty: Any


class Sizes(NamedTuple):
    """Blocks of queries of a head, heads of all batches, and lengths of a sequence.

    Query i may attend to keys 0 to i + shift under a causal mask, and to none from `keys` on.
    """

    blocks: Any
    heads: Any
    h_q: Any
    s_q: Any
    keys: Any
    shift: Any


@gluon.constexpr_function
def out_in_q(d):
    """Whether out takes q's place in shared memory: heads of 256 leave it no other."""
    return d == 256


@gluon.jit
def _block(item, sizes):
    """An item's block of queries, its head, and how many items this program had before."""
    programs = gl.num_programs(0)
    turn = item // programs
    pairs = (sizes.blocks + 1) // 2
    pair = item - turn * programs + (turn // 2) * programs
    head = pair // pairs
    block = pair - head * pairs
    mirrored = sizes.blocks - 1 - block
    if turn % 2 == 0:
        block = mirrored
    elif block == mirrored:
        block = sizes.blocks  # which has no queries: the block in the middle is done once
    return block, head, turn


@gluon.jit
def _items(sizes):
    """Where this program's items end; they are a grid apart."""
    pairs = (sizes.blocks + 1) // 2 * sizes.heads
    return 2 * gl.cdiv(pairs - gl.program_id(0), gl.num_programs(0)) * gl.num_programs(0)


@gluon.jit
def _tiles(
    start_m, sizes, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr
):  # fmt: skip
    """Tiles of keys of a block of queries, one at least, and how many of the first need no mask."""
    keys = sizes.keys
    if start_m >= sizes.s_q:
        keys = 0
    if CAUSAL:
        last = gl.minimum(start_m + BLOCK_M, sizes.s_q) + sizes.shift
        tiles = gl.cdiv(gl.minimum(gl.maximum(last, 0), keys), BLOCK_N)
        full = gl.minimum(gl.maximum(start_m + sizes.shift + 1, 0), keys) // BLOCK_N
    else:
        tiles = gl.cdiv(keys, BLOCK_N)
        full = keys // BLOCK_N
    return gl.maximum(tiles, 1), full


@gluon.jit
def _load(loading, CAUSAL: gl.constexpr):
    """What the loading warp does: q of each item, then its tiles of k and v, the last one first."""
    descriptors, memory, barriers, sizes, group = loading
    q_desc, k_desc, v_desc = descriptors
    GROUPS: gl.constexpr = memory.q.shape[0]
    ROWS: gl.constexpr = memory.q.shape[3]
    STAGES: gl.constexpr = memory.k.shape[0]
    BLOCK_M: gl.constexpr = GROUPS * ROWS
    BLOCK_N: gl.constexpr = memory.k.shape[3]
    loaded = 0
    for item in range(gl.program_id(0), _items(sizes), gl.num_programs(0)):
        block, head, turn = _block(item, sizes)
        b = head // sizes.h_q
        h = head - b * sizes.h_q
        start_m = block * BLOCK_M
        tiles, _ = _tiles(start_m, sizes, CAUSAL, BLOCK_M, BLOCK_N)
        for g in gl.static_range(GROUPS):
            row = start_m + g * ROWS
            hopper.mbarrier.wait(barriers.q_empty.index(g), (turn & 1) ^ 1)
            hopper.mbarrier.expect(barriers.q_full.index(g), q_desc.block_type.nbytes)
            load_box(q_desc, [b, h, row, 0], barriers.q_full.index(g), memory.q.index(g))
        for i in range(tiles):
            place = [b, h // group, (tiles - 1 - i) * BLOCK_N, 0]
            stage = loaded % STAGES
            phase = ((loaded // STAGES) & 1) ^ 1
            hopper.mbarrier.wait(barriers.k_empty.index(stage), phase)
            hopper.mbarrier.expect(barriers.k_full.index(stage), k_desc.block_type.nbytes)
            load_box(k_desc, place, barriers.k_full.index(stage), memory.k.index(stage))
            hopper.mbarrier.wait(barriers.v_empty.index(stage), phase)
            hopper.mbarrier.expect(barriers.v_full.index(stage), v_desc.block_type.nbytes)
            load_box(v_desc, place, barriers.v_full.index(stage), memory.v.index(stage))
            loaded += 1


@gluon.jit
def _softmax(
    s, m_i, l_i, scale, offs_m, start_n, sizes,
    MASKED: gl.constexpr, CAUSAL: gl.constexpr, BLOCK_N: gl.constexpr, S_LAYOUT: gl.constexpr,
):  # fmt: skip
    """A tile's weights, the new m (in base 2) and l, and the accumulator's factor."""
    if MASKED:
        offs_n = start_n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, S_LAYOUT))
        keep = offs_n[None, :] < sizes.keys
        if CAUSAL:
            keep = keep & (offs_n[None, :] <= offs_m[:, None] + sizes.shift)
        s = gl.where(keep, s, float("-inf"))
    m_new = gl.maximum(m_i, gl.max(s, 1) * scale)
    m_used = m_new
    if MASKED:
        m_used = gl.where(m_new == float("-inf"), 0.0, m_new)
    p = gl.exp2(s * scale - m_used[:, None])
    alpha = gl.exp2(m_i - m_used)
    return p, m_new, l_i * alpha + gl.sum(p, 1), alpha


@gluon.jit
def packed(p, DTYPE: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr):
    """Weights rounded to halves, two neighbours in a word."""
    low, high = gl.split(p.reshape((ROWS, BLOCK_N // 2, 2)))
    ASM: gl.constexpr = "cvt.rn.%s.f32 $0, $2, $1;" % ("bf16x2" if DTYPE.is_bf16() else "f16x2")
    return gl.inline_asm_elementwise(
        ASM, "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def unpacked(
    words, DTYPE: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, LAYOUT: gl.constexpr
):
    """The weights of `packed`, as an operand of a product."""
    pairs = gl.join(words.to(gl.int16), (words >> 16).to(gl.int16))
    return gl.convert_layout(pairs.reshape((ROWS, BLOCK_N)).to(DTYPE, bitcast=True), LAYOUT)


@gluon.jit
def _compute(computing, G: gl.constexpr, CAUSAL: gl.constexpr, SCALE_FIRST: gl.constexpr):
    """What group G does: out and lse of its rows of each item."""
    out_desc, lse_ptr, memory, barriers, sizes, scale = computing
    ROWS: gl.constexpr = memory.q.shape[3]
    D: gl.constexpr = memory.q.shape[4]
    STAGES: gl.constexpr = memory.k.shape[0]
    BLOCK_M: gl.constexpr = memory.q.shape[0] * ROWS
    BLOCK_N: gl.constexpr = memory.k.shape[3]
    OUT_IN_Q: gl.constexpr = out_in_q(D)
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    S_ROWS: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    O_ROWS: gl.constexpr = gl.SliceLayout(1, O_LAYOUT)
    DTYPE: gl.constexpr = memory.q.dtype
    # Where the scale isn't positive, a masked score times it is not -inf.
    factor = scale
    if SCALE_FIRST:
        factor = 1.0
    taken = 0  # tiles, of all items
    q = memory.q.index(G).reshape((ROWS, D))
    zeros = gl.zeros((ROWS, BLOCK_N), gl.float32, S_LAYOUT)
    for item in range(gl.program_id(0), _items(sizes), gl.num_programs(0)):
        block, head, turn = _block(item, sizes)
        b = head // sizes.h_q
        h = head - b * sizes.h_q
        start_m = block * BLOCK_M
        tiles, full = _tiles(start_m, sizes, CAUSAL, BLOCK_M, BLOCK_N)
        offs_m = start_m + G * ROWS + gl.arange(0, ROWS, S_ROWS)
        m_i = gl.full((ROWS,), float("-inf"), gl.float32, S_ROWS)
        l_i = gl.zeros((ROWS,), gl.float32, S_ROWS)
        acc = gl.zeros((ROWS, D), gl.float32, O_LAYOUT)
        hopper.mbarrier.wait(barriers.q_full.index(G), turn & 1)
        stage = taken % STAGES
        hopper.mbarrier.wait(barriers.k_full.index(stage), (taken // STAGES) & 1)
        k = memory.k.index(stage).reshape((BLOCK_N, D)).permute((1, 0))
        s = hopper.warpgroup_mma(q, k, zeros, use_acc=False, is_async=True)
        s = hopper.warpgroup_mma_wait(0, deps=[s])
        hopper.mbarrier.arrive(barriers.k_empty.index(stage), count=1)
        if SCALE_FIRST:
            s = s * scale
        p, m_i, l_i, alpha = _softmax(
            s, m_i, l_i, factor, offs_m, (tiles - 1) * BLOCK_N, sizes, True, CAUSAL, BLOCK_N,
            S_LAYOUT,
        )  # fmt: skip
        words = packed(p, DTYPE, ROWS, BLOCK_N)
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
                hopper.mbarrier.wait(barriers.k_full.index(stage), (taken // STAGES) & 1)
                k = memory.k.index(stage).reshape((BLOCK_N, D)).permute((1, 0))
                s = hopper.warpgroup_mma(q, k, zeros, use_acc=False, is_async=True)
                hopper.mbarrier.wait(barriers.v_full.index(before), ((taken - 1) // STAGES) & 1)
                weights = unpacked(words, DTYPE, ROWS, BLOCK_N, P_LAYOUT)
                v = memory.v.index(before).reshape((BLOCK_N, D))
                product = hopper.warpgroup_mma(weights, v, acc, is_async=True)
                s = hopper.warpgroup_mma_wait(1, deps=[s])
                hopper.mbarrier.arrive(barriers.k_empty.index(stage), count=1)
                if SCALE_FIRST:
                    s = s * scale
                p, m_i, l_i, alpha = _softmax(
                    s, m_i, l_i, factor, offs_m, (tiles - 1 - i) * BLOCK_N, sizes, masked == 0,
                    CAUSAL, BLOCK_N, S_LAYOUT,
                )  # fmt: skip
                acc, weights, p = hopper.warpgroup_mma_wait(0, deps=[product, weights, p])
                hopper.mbarrier.arrive(barriers.v_empty.index(before), count=1)
                words = packed(p, DTYPE, ROWS, BLOCK_N)
                acc = acc * gl.convert_layout(alpha, O_ROWS)[:, None]
                taken += 1
        if not OUT_IN_Q:
            hopper.mbarrier.arrive(barriers.q_empty.index(G), count=1)
        before = (taken - 1) % STAGES
        hopper.mbarrier.wait(barriers.v_full.index(before), ((taken - 1) // STAGES) & 1)
        weights = unpacked(words, DTYPE, ROWS, BLOCK_N, P_LAYOUT)
        v = memory.v.index(before).reshape((BLOCK_N, D))
        product = hopper.warpgroup_mma(weights, v, acc, is_async=True)
        acc, weights = hopper.warpgroup_mma_wait(0, deps=[product, weights])
        hopper.mbarrier.arrive(barriers.v_empty.index(before), count=1)
        m_used = gl.where(m_i == float("-inf"), 0.0, m_i)
        lse = m_used * 0.6931471805599453 + gl.log(l_i)  # -inf for a row without keys
        inverse = gl.where(l_i == 0.0, 0.0, 1.0 / gl.where(l_i == 0.0, 1.0, l_i))
        out = acc * gl.convert_layout(inverse, O_ROWS)[:, None]
        if not OUT_IN_Q:
            hopper.tma.store_wait(0)
        memory.out.index(G).reshape((ROWS, D)).store(out.to(DTYPE))
        hopper.fence_async_shared()
        store_box(out_desc, [b, h, start_m + G * ROWS, 0], memory.out.index(G))
        gl.store(lse_ptr + head.to(gl.int64) * sizes.s_q + offs_m, lse, mask=offs_m < sizes.s_q)
        if OUT_IN_Q:
            hopper.tma.store_wait(0)
            hopper.mbarrier.arrive(barriers.q_empty.index(G), count=1)
    hopper.tma.store_wait(0)


@gluon.jit
def new_barriers(NUMBER: gl.constexpr, COUNT: gl.constexpr):
    """So many barriers, each of which waits for COUNT arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], hopper.mbarrier.MBarrierLayout())
    for i in gl.static_range(NUMBER):
        hopper.mbarrier.init(made.index(i), count=COUNT)
    return made


@gluon.jit
def hopper_kernel(
    q_desc, k_desc, v_desc, out_desc, lse_ptr, blocks, heads, h_q, group, s_q, keys, shift, scale,
    CAUSAL: gl.constexpr, SCALE_FIRST: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr,
    REGISTERS: gl.constexpr,
):  # fmt: skip
    """out [b, h_q, s_q, d] by its descriptor, and lse [b, h_q, s_q]; scale is in base 2."""
    ROWS: gl.constexpr = q_desc.block_type.shape[2]
    D: gl.constexpr = q_desc.block_type.shape[3]
    BLOCK_N: gl.constexpr = k_desc.block_type.shape[2]
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [GROUPS, 1, 1, ROWS, D], q_desc.layout)
    out_smem = q_smem
    if not out_in_q(D):
        out_smem = gl.allocate_shared_memory(q_desc.dtype, [GROUPS, 1, 1, ROWS, D], q_desc.layout)
    k_smem = gl.allocate_shared_memory(k_desc.dtype, [STAGES, 1, 1, BLOCK_N, D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(v_desc.dtype, [STAGES, 1, 1, BLOCK_N, D], v_desc.layout)
    memory = Memory(q_smem, k_smem, v_smem, out_smem)
    barriers = Barriers(
        new_barriers(GROUPS, 1), new_barriers(GROUPS, 1), new_barriers(STAGES, 1),
        new_barriers(STAGES, GROUPS), new_barriers(STAGES, 1), new_barriers(STAGES, GROUPS),
    )  # fmt: skip
    hopper.fence_async_shared()
    descriptors = (q_desc, k_desc, v_desc)
    sizes = Sizes(blocks, heads, h_q, s_q, keys, shift)
    loading = (descriptors, memory, barriers, sizes, group)
    computing = (out_desc, lse_ptr, memory, barriers, sizes, scale)
    # Constants stay constants only where they stand in the call.
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_compute, (computing, 0, CAUSAL, SCALE_FIRST)),
                (_compute, (computing, 1, CAUSAL, SCALE_FIRST)),
                (_load, (loading, CAUSAL)),
            ],
            [4, 1],
            [REGISTERS, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_compute, (computing, 0, CAUSAL, SCALE_FIRST)),
                (_compute, (computing, 1, CAUSAL, SCALE_FIRST)),
                (_compute, (computing, 2, CAUSAL, SCALE_FIRST)),
                (_load, (loading, CAUSAL)),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, 24],
        )
