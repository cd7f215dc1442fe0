"""Attention forward on Hopper, in Gluon: a loading warp, and groups of warps that compute.

The warp brings q, k, v and a bias into shared memory by TMA, as far ahead as there are STAGES;
barriers say what is there (`full`) and what may be written again (`empty`); a tile's bias shares
the barriers of k. Each group of four warps has 64 queries of a block. It asks the tensor cores for
the scores of a tile of keys and for the product of the tile before with v, and does a tile's
softmax while they work. Between two tiles the weights p are held as pairs in 32-bit words: Triton
3.6 takes two instructions more for each pair to carry halves around a loop.

A program stays for several blocks of queries. They come in pairs of one head, the first block with
the last one and so on, so that under a causal mask all pairs take the same time.

Design after FlashAttention-3 (Shah et al. 2024).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper

from kernel_workbench.kernels.attention.hopper_dropout import Dropout, drawn, is_kept
from kernel_workbench.kernels.attention.scores import LN2, LOG2E

# Triton 3.6's names, which 3.9 hasn't any more, and 3.9's.
load_box = getattr(hopper.tma, "async_load", hopper.tma.async_copy_global_to_shared)
store_box = getattr(hopper.tma, "async_store", hopper.tma.async_copy_shared_to_global)


class ForwardMemory(NamedTuple):
    """Shared memory: [GROUPS, 1, 1, rows, D] of q and out, [STAGES, 1, 1, keys, D] of k and v.

    bias is [STAGES GROUPS, 1, 1, rows, keys].
    """

    q: Any
    k: Any
    v: Any
    out: Any
    bias: Any


class ForwardBarriers(NamedTuple):
    """A barrier for the q of each group, and one for each stage of k and of v."""

    q_full: Any
    q_empty: Any
    k_full: Any
    k_empty: Any
    v_full: Any
    v_empty: Any


class ForwardSizes(NamedTuple):
    """Blocks of queries of a head, heads of all batches, and lengths of a sequence.

    Query i may attend to no key from `keys` on; under a causal mask to keys up to i + shift, in a
    window to keys i + shift - left to i + shift + right.
    """

    blocks: Any
    heads: Any
    h_q: Any
    s_q: Any
    keys: Any
    shift: Any
    left: Any
    right: Any


class ScoreTerms(NamedTuple):
    """The terms of a score in base 2: scale (q.k - per_slope slope |i + shift - j|).

    Under a softcap the first term is cap tanh(scale q.k ln 2 / 2), and the second has no scale; a
    tile's scores are then lower by cap, which lse adds again. With a bias the second has no scale
    either. Slopes and sinks [h_q] are natural; without ALiBi, or a sink, the address is never read.
    """

    scale: Any
    cap: Any
    per_slope: Any
    slopes_ptr: Any
    sink_ptr: Any


class BiasPlace(NamedTuple):
    """A bias's first column for the first key, and its strides over batches and heads.

    The strides are in boxes, 0 or 1, or, if all queries share a row at `ptr`, in elements.
    """

    ptr: Any
    first_key: Any
    stride_b: Any
    stride_h: Any


class KeyTiles(NamedTuple):
    """Tiles of keys: from low up to high; tiles from full_low up to full_high need no mask."""

    low: Any
    full_low: Any
    full_high: Any
    high: Any


@gluon.constexpr_function
def has(terms, name):
    """Return True if a term is among those of TERMS."""
    return name in terms.split()


@gluon.constexpr_function
def has_bias(terms):
    """Return True if there is a bias with a row of its own for each query, or one row for all."""
    return has(terms, "bias") or has(terms, "bias_row")


@gluon.constexpr_function
def has_lead(terms):
    """Return True if tiles may begin before the first key; see `lead_of` in hopper.py."""
    return has(terms, "bias") or has(terms, "dropout")


@gluon.constexpr_function
def out_in_q(d, terms):
    """Return True if out takes q's place in shared memory, because there is no other."""
    return d == 256 or (d == 128 and has(terms, "bias"))


@gluon.jit
def _block(item, sizes):
    """Return an item's block of queries, its head, and the number of earlier items."""
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
    """Return the end of this program's items; they are a grid apart."""
    pairs = (sizes.blocks + 1) // 2 * sizes.heads
    return 2 * gl.cdiv(pairs - gl.program_id(0), gl.num_programs(0)) * gl.num_programs(0)


@gluon.jit
def _tiles(
    start_m, sizes, MASK: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr
):  # fmt: skip
    """Return the tiles of keys of a block of queries."""
    keys = sizes.keys
    if start_m >= sizes.s_q:
        keys = 0
    low = 0
    full_low = 0
    full_high = keys // BLOCK_N
    high = gl.cdiv(keys, BLOCK_N)
    if MASK != "none":
        first = start_m + sizes.shift
        last = gl.minimum(start_m + BLOCK_M, sizes.s_q) - 1 + sizes.shift
        right = 0
        if MASK == "window":
            right = sizes.right
        full_high = gl.minimum(gl.maximum(first + right + 1, 0), keys) // BLOCK_N
        high = gl.cdiv(gl.minimum(gl.maximum(last + right + 1, 0), keys), BLOCK_N)
        if MASK == "window":
            low = gl.minimum(gl.maximum(first - sizes.left, 0) // BLOCK_N, high)
            full_low = gl.minimum(gl.cdiv(gl.maximum(last - sizes.left, 0), BLOCK_N), high)
            full_high = gl.maximum(full_high, full_low)
    return KeyTiles(low, full_low, full_high, high)


@gluon.jit
def _counted(tiles):
    """Return the number of a block's tiles, at least 1, and of those that need a mask."""
    count = gl.maximum(tiles.high - tiles.low, 1)
    return count, count - (tiles.full_high - tiles.full_low)


@gluon.jit
def _start(tiles, i, MASK: gl.constexpr, BLOCK_N: gl.constexpr):
    """Return the first key of a block's tile i.

    Tiles run from the last one on; tiles without a mask come last.
    """
    number = tiles.high - 1 - i
    if MASK == "window":
        _, masked = _counted(tiles)
        if i >= masked:
            number = tiles.full_high - 1 - (i - masked)
        elif i >= tiles.high - tiles.full_high:
            number -= tiles.full_high - tiles.full_low
    return gl.maximum(number, 0) * BLOCK_N


@gluon.jit
def _load(loading, MASK: gl.constexpr, TERMS: gl.constexpr):
    """Run the loading warp: q of each item, then its tiles of k and v, the last one first."""
    descriptors, memory, barriers, sizes, group, lead, bias_place = loading
    q_desc, k_desc, v_desc, bias_desc = descriptors
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
        tiles = _tiles(start_m, sizes, MASK, BLOCK_M, BLOCK_N)
        count, _ = _counted(tiles)
        for g in gl.static_range(GROUPS):
            row = start_m + g * ROWS
            hopper.mbarrier.wait(barriers.q_empty.index(g), (turn & 1) ^ 1)
            hopper.mbarrier.expect(barriers.q_full.index(g), q_desc.block_type.nbytes)
            load_box(q_desc, [b, h, row, 0], barriers.q_full.index(g), memory.q.index(g))
        for i in range(count):
            start_n = _start(tiles, i, MASK, BLOCK_N)
            column = bias_place.first_key + start_n
            if has_lead(TERMS):
                start_n -= lead
            place = [b, h // group, start_n, 0]
            stage = loaded % STAGES
            phase = ((loaded // STAGES) & 1) ^ 1
            hopper.mbarrier.wait(barriers.k_empty.index(stage), phase)
            k_full = barriers.k_full.index(stage)
            if has(TERMS, "bias"):
                BOTH: gl.constexpr = k_desc.block_type.nbytes + GROUPS * bias_desc.block_type.nbytes
                hopper.mbarrier.expect(k_full, BOTH)
                for g in gl.static_range(GROUPS):
                    bias = memory.bias.index(stage * GROUPS + g)
                    corner = [
                        b * bias_place.stride_b, h * bias_place.stride_h, start_m + g * ROWS, column
                    ]  # fmt: skip
                    load_box(bias_desc, corner, k_full, bias)
            else:
                hopper.mbarrier.expect(k_full, k_desc.block_type.nbytes)
            load_box(k_desc, place, k_full, memory.k.index(stage))
            hopper.mbarrier.wait(barriers.v_empty.index(stage), phase)
            hopper.mbarrier.expect(barriers.v_full.index(stage), v_desc.block_type.nbytes)
            load_box(v_desc, place, barriers.v_full.index(stage), memory.v.index(stage))
            loaded += 1


@gluon.jit
def as_numbers(offs):
    """Return whole numbers from -2^22 up to 2^22 in fp32, plus 3 2^22, by one addition."""
    return (offs + 0x4B400000).to(gl.float32, bitcast=True)


@gluon.constexpr_function
def _in_pairs(begin, end):
    """Return PTX: begin makes y of each of two x; end makes out of u, which is -1 / y.

    An SM has 16 reciprocals and exponentials a clock, and 128 products: two share a reciprocal.
    """
    text = "{ .reg .f32 r, u, y<2>; "
    text += "".join(begin.format(y=f"y{i}", x=f"${2 + i}") for i in range(2))
    text += "mul.rn.ftz.f32 r, y0, y1; neg.f32 r, r; rcp.approx.ftz.f32 r, r; "
    for i in range(2):
        text += f"mul.rn.ftz.f32 u, r, y{1 - i}; " + end.format(out=f"${i}")
    return text + "}"


@gluon.jit
def bent(x):
    """Return -2^31 / (1 + exp2(x)), which is 2^30 (tanh(x ln 2 / 2) - 1), with `tanh`'s error.

    A NaN makes both numbers of its pair NaN.
    """
    # 2^-31 (1 + exp2(x)), at most 1: two of these have a product and a reciprocal.
    ASM: gl.constexpr = _in_pairs(
        "ex2.approx.ftz.f32 {y}, {x}; fma.rn.ftz.sat.f32 {y}, {y}, 0f30000000, 0f30000000; ",
        "mov.f32 {out}, u; ",
    )
    return gl.inline_asm_elementwise(
        ASM, "=&f,=&f,f,f", [x], dtype=gl.float32, is_pure=True, pack=2
    )


@gluon.jit
def tanh(x):
    """Return the tanh of x ln 2 / 2: right at both infinities, and 1 for NaN.

    The absolute error is 2^-21.5, or 2^-20.7 if ex2 and rcp have the errors that PTX allows.
    """
    # (1 + exp2(x)) / 2, of x no larger than 31.
    ASM: gl.constexpr = _in_pairs(
        "min.ftz.f32 {y}, {x}, 0f41F80000; ex2.approx.ftz.f32 {y}, {y}; "
        "fma.rn.ftz.f32 {y}, {y}, 0f3F000000, 0f3F000000; ",
        "add.rn.ftz.f32 {out}, u, 0f3F800000; ",
    )
    return gl.inline_asm_elementwise(
        ASM, "=&f,=&f,f,f", [x], dtype=gl.float32, is_pure=True, pack=2
    )


@gluon.jit
def _softmax(
    s, m_i, l_i, terms, slope, bias, offs_m, start_n, sizes,
    MASKED: gl.constexpr, MASK: gl.constexpr, TERMS: gl.constexpr, BLOCK_N: gl.constexpr,
    S_LAYOUT: gl.constexpr,
):  # fmt: skip
    """Return a tile's weights, the new m (in base 2) and l, and the accumulator's factor."""
    offs_n = start_n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, S_LAYOUT))
    if MASKED:
        keep = offs_n[None, :] < sizes.keys
        if MASK == "causal":
            keep = keep & (offs_n[None, :] <= offs_m[:, None] + sizes.shift)
        if MASK == "window":
            centre = offs_m + sizes.shift
            keep = keep & (offs_n[None, :] <= (centre + sizes.right)[:, None])
            keep = keep & (offs_n[None, :] >= (centre - sizes.left)[:, None])
    # Scores come in units of the scale where that is positive, so that the largest is the largest.
    factor = terms.scale
    if has(TERMS, "softcap"):
        factor = terms.cap * 2.0**-30
        s = s * terms.scale
        if MASKED:
            # Keys that a row doesn't see stay out of its reciprocals; a NaN that it sees stays.
            x = gl.where(keep, s, 0.0)
            s = gl.where(x == x, bent(x), x)  # noqa: PLR0124  (NaN isn't)
        else:
            s = bent(s)
    elif has(TERMS, "first") or has_bias(TERMS):
        factor = 1.0
        s = s * terms.scale
    if has(TERMS, "softcap") and (has(TERMS, "alibi") or has_bias(TERMS)):
        s *= factor
        factor = 1.0
    if has_bias(TERMS):
        s += bias.to(gl.float32) * LOG2E
    if has(TERMS, "alibi"):
        rows = as_numbers(offs_m + sizes.shift)
        s -= slope * gl.abs(rows[:, None] - as_numbers(offs_n)[None, :])
    if MASKED:
        s = gl.where(keep, s, float("-inf"))
    m_new = gl.maximum(m_i, gl.max(s, 1) * factor)
    m_used = m_new
    if MASKED or has_bias(TERMS):  # which may be -inf
        m_used = gl.where(m_new == float("-inf"), 0.0, m_new)
    p = gl.exp2(s * factor - m_used[:, None])
    alpha = gl.exp2(m_i - m_used)
    return p, m_new, l_i * alpha + gl.sum(p, 1), alpha


@gluon.jit
def _bias(
    memory, bias_place, sizes, b, h, place, start_n, TERMS: gl.constexpr, S_LAYOUT: gl.constexpr
):  # fmt: skip
    """Return a tile's bias, from its place in shared memory or from the row of all queries."""
    ROWS: gl.constexpr = memory.q.shape[3]
    KEYS: gl.constexpr = memory.k.shape[3]
    bias = 0.0
    if has(TERMS, "bias"):
        bias = memory.bias.index(place).reshape((ROWS, KEYS)).load(S_LAYOUT)
    if has(TERMS, "bias_row"):
        offs_n = start_n + gl.arange(0, KEYS, gl.SliceLayout(0, S_LAYOUT))
        head = b.to(gl.int64) * bias_place.stride_b + h.to(gl.int64) * bias_place.stride_h
        row_ptr = bias_place.ptr + head + bias_place.first_key
        bias = gl.load(row_ptr + offs_n, mask=offs_n < sizes.keys, other=0.0)[None, :]
    return bias


@gluon.jit
def packed(p, DTYPE: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr):
    """Return weights rounded to halves, two neighbours in a word."""
    low, high = gl.split(p.reshape((ROWS, BLOCK_N // 2, 2)))
    ASM: gl.constexpr = "cvt.rn.%s.f32 $0, $2, $1;" % ("bf16x2" if DTYPE.is_bf16() else "f16x2")
    return gl.inline_asm_elementwise(
        ASM, "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def unpacked(
    words, DTYPE: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, LAYOUT: gl.constexpr
):
    """Return the weights of `packed`, as an operand of a product."""
    pairs = gl.join(words.to(gl.int16), (words >> 16).to(gl.int16))
    return gl.convert_layout(pairs.reshape((ROWS, BLOCK_N)).to(DTYPE, bitcast=True), LAYOUT)


@gluon.jit
def _compute(computing, G: gl.constexpr, MASK: gl.constexpr, TERMS: gl.constexpr):
    """Run group G: out and lse of its rows of each item."""
    out_desc, lse_ptr, memory, barriers, sizes, terms, bias_place, dropout = computing
    ROWS: gl.constexpr = memory.q.shape[3]
    D: gl.constexpr = memory.q.shape[4]
    STAGES: gl.constexpr = memory.k.shape[0]
    GROUPS: gl.constexpr = memory.q.shape[0]
    BLOCK_M: gl.constexpr = GROUPS * ROWS
    BLOCK_N: gl.constexpr = memory.k.shape[3]
    OUT_IN_Q: gl.constexpr = out_in_q(D, TERMS)
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    S_ROWS: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    O_ROWS: gl.constexpr = gl.SliceLayout(1, O_LAYOUT)
    DTYPE: gl.constexpr = memory.q.dtype
    passed = 0  # tiles, of all items
    q = memory.q.index(G).reshape((ROWS, D))
    zeros = gl.zeros((ROWS, BLOCK_N), gl.float32, S_LAYOUT)
    for item in range(gl.program_id(0), _items(sizes), gl.num_programs(0)):
        block, head, turn = _block(item, sizes)
        b = head // sizes.h_q
        h = head - b * sizes.h_q
        start_m = block * BLOCK_M
        tiles = _tiles(start_m, sizes, MASK, BLOCK_M, BLOCK_N)
        count, masked_count = _counted(tiles)
        slope = 0.0
        if has(TERMS, "alibi"):
            slope = gl.load(terms.slopes_ptr + h) * terms.per_slope
        offs_m = start_m + G * ROWS + gl.arange(0, ROWS, S_ROWS)
        m_i = gl.full((ROWS,), float("-inf"), gl.float32, S_ROWS)
        l_i = gl.zeros((ROWS,), gl.float32, S_ROWS)
        acc = gl.zeros((ROWS, D), gl.float32, O_LAYOUT)
        hopper.mbarrier.wait(barriers.q_full.index(G), turn & 1)
        stage = passed % STAGES
        hopper.mbarrier.wait(barriers.k_full.index(stage), (passed // STAGES) & 1)
        k = memory.k.index(stage).reshape((BLOCK_N, D)).permute((1, 0))
        s = hopper.warpgroup_mma(q, k, zeros, use_acc=False, is_async=True)
        start_n = _start(tiles, 0, MASK, BLOCK_N)
        place = stage * GROUPS + G
        bias = _bias(memory, bias_place, sizes, b, h, place, start_n, TERMS, S_LAYOUT)
        if has(TERMS, "dropout"):
            bits = drawn(dropout, head, start_m + G * ROWS, start_n, ROWS, BLOCK_N)
        s = hopper.warpgroup_mma_wait(0, deps=[s])
        hopper.mbarrier.arrive(barriers.k_empty.index(stage), count=1)
        p, m_i, l_i, alpha = _softmax(
            s, m_i, l_i, terms, slope, bias, offs_m, start_n, sizes, True, MASK, TERMS, BLOCK_N,
            S_LAYOUT,
        )  # fmt: skip
        if has(TERMS, "dropout"):
            p = gl.where(is_kept(bits, ROWS, BLOCK_N, S_LAYOUT), p, 0.0)
        words = packed(p, DTYPE, ROWS, BLOCK_N)
        passed += 1
        # The tiles that need a mask, then the others.
        for masked in gl.static_range(2):
            if masked == 0:
                first = 1
                end = gl.maximum(masked_count, 1)
            else:
                first = gl.maximum(masked_count, 1)
                end = count
            for i in range(first, end):
                stage = passed % STAGES
                before = (passed - 1) % STAGES
                hopper.mbarrier.wait(barriers.k_full.index(stage), (passed // STAGES) & 1)
                k = memory.k.index(stage).reshape((BLOCK_N, D)).permute((1, 0))
                s = hopper.warpgroup_mma(q, k, zeros, use_acc=False, is_async=True)
                hopper.mbarrier.wait(barriers.v_full.index(before), ((passed - 1) // STAGES) & 1)
                weights = unpacked(words, DTYPE, ROWS, BLOCK_N, P_LAYOUT)
                v = memory.v.index(before).reshape((BLOCK_N, D))
                product = hopper.warpgroup_mma(weights, v, acc, is_async=True)
                # The tensor cores work meanwhile.
                start_n = _start(tiles, i, MASK, BLOCK_N)
                place = stage * GROUPS + G
                bias = _bias(memory, bias_place, sizes, b, h, place, start_n, TERMS, S_LAYOUT)
                if has(TERMS, "dropout"):
                    bits = drawn(dropout, head, start_m + G * ROWS, start_n, ROWS, BLOCK_N)
                s = hopper.warpgroup_mma_wait(1, deps=[s])
                hopper.mbarrier.arrive(barriers.k_empty.index(stage), count=1)
                p, m_i, l_i, alpha = _softmax(
                    s, m_i, l_i, terms, slope, bias, offs_m, start_n, sizes, masked == 0, MASK,
                    TERMS, BLOCK_N, S_LAYOUT,
                )  # fmt: skip
                if has(TERMS, "dropout"):
                    p = gl.where(is_kept(bits, ROWS, BLOCK_N, S_LAYOUT), p, 0.0)
                acc, weights, p = hopper.warpgroup_mma_wait(0, deps=[product, weights, p])
                hopper.mbarrier.arrive(barriers.v_empty.index(before), count=1)
                words = packed(p, DTYPE, ROWS, BLOCK_N)
                acc = acc * gl.convert_layout(alpha, O_ROWS)[:, None]
                passed += 1
        if not OUT_IN_Q:
            hopper.mbarrier.arrive(barriers.q_empty.index(G), count=1)
        before = (passed - 1) % STAGES
        hopper.mbarrier.wait(barriers.v_full.index(before), ((passed - 1) // STAGES) & 1)
        weights = unpacked(words, DTYPE, ROWS, BLOCK_N, P_LAYOUT)
        v = memory.v.index(before).reshape((BLOCK_N, D))
        product = hopper.warpgroup_mma(weights, v, acc, is_async=True)
        acc, weights = hopper.warpgroup_mma_wait(0, deps=[product, weights])
        hopper.mbarrier.arrive(barriers.v_empty.index(before), count=1)
        if has(TERMS, "softcap"):
            m_i += terms.cap
        m_used = gl.where(m_i == float("-inf"), 0.0, m_i)
        largest = m_used * LN2
        share = 1.0
        if has(TERMS, "sink"):
            natural = gl.load(terms.sink_ptr + h)
            sink = natural * LOG2E
            m_new = gl.maximum(m_i, sink)
            m_used = gl.where(m_new == float("-inf"), 0.0, m_new)
            share = gl.exp2(m_i - m_used)
            # A sink above all scores is exp2(0), though sink - m_used may be an FMA of natural.
            is_above = m_i < sink
            l_i = l_i * share + gl.where(is_above, 1.0, gl.exp2(sink - m_used))
            # A row without keys has the sink itself.
            largest = gl.where(is_above, natural, m_used * LN2)
        lse = largest + gl.log(l_i)  # -inf for a row without keys, and without a sink
        inverse = gl.where(l_i == 0.0, 0.0, share / gl.where(l_i == 0.0, 1.0, l_i))
        if has(TERMS, "dropout"):
            inverse *= dropout.keep_scale
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
    """Return NUMBER barriers, each of which waits for COUNT arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], hopper.mbarrier.MBarrierLayout())
    for i in gl.static_range(NUMBER):
        hopper.mbarrier.init(barriers.index(i), count=COUNT)
    return barriers


@gluon.jit(do_not_specialize=["seed_low", "seed_high", "threshold", "first_key", "lead"])
def hopper_kernel(
    q_desc, k_desc, v_desc, out_desc, lse_ptr, slopes_ptr, sink_ptr, blocks, heads, h_q, group,
    s_q, keys, shift, left, right, scale, cap, per_slope, first_key, bias_desc, bias_ptr,
    bias_stride_b, bias_stride_h, lead, seed_low, seed_high, threshold, keep_scale,
    MASK: gl.constexpr, TERMS: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr,
    REGISTERS: gl.constexpr,
):  # fmt: skip
    """Compute out [b, h_q, s_q, d] by its descriptor, and lse [b, h_q, s_q].

    MASK: none, causal or window. TERMS: the present terms among alibi, sink, softcap, bias,
    bias_row (all queries share a row), dropout and first (scores are scaled before the search for
    the largest), separated by spaces; numbers as in `ScoreTerms`, `BiasPlace` and `Dropout`.
    Columns count keys from first_key on; the first `lead` of them aren't read.
    """
    ROWS: gl.constexpr = q_desc.block_type.shape[2]
    D: gl.constexpr = q_desc.block_type.shape[3]
    BLOCK_N: gl.constexpr = k_desc.block_type.shape[2]
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [GROUPS, 1, 1, ROWS, D], q_desc.layout)
    out_smem = q_smem
    if not out_in_q(D, TERMS):
        out_smem = gl.allocate_shared_memory(q_desc.dtype, [GROUPS, 1, 1, ROWS, D], q_desc.layout)
    k_smem = gl.allocate_shared_memory(k_desc.dtype, [STAGES, 1, 1, BLOCK_N, D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(v_desc.dtype, [STAGES, 1, 1, BLOCK_N, D], v_desc.layout)
    bias_smem = q_smem
    if has(TERMS, "bias"):
        bias_smem = gl.allocate_shared_memory(
            q_desc.dtype, [STAGES * GROUPS, 1, 1, ROWS, BLOCK_N], bias_desc.layout
        )
    memory = ForwardMemory(q_smem, k_smem, v_smem, out_smem, bias_smem)
    barriers = ForwardBarriers(
        new_barriers(GROUPS, 1), new_barriers(GROUPS, 1), new_barriers(STAGES, 1),
        new_barriers(STAGES, GROUPS), new_barriers(STAGES, 1), new_barriers(STAGES, GROUPS),
    )  # fmt: skip
    hopper.fence_async_shared()
    descriptors = (q_desc, k_desc, v_desc, bias_desc)
    sizes = ForwardSizes(blocks, heads, h_q, s_q, keys, shift, left, right)
    bias_place = BiasPlace(bias_ptr, first_key, bias_stride_b, bias_stride_h)
    terms = ScoreTerms(scale, cap, per_slope, slopes_ptr, sink_ptr)
    dropout = Dropout(seed_low, seed_high, threshold, 0, first_key, keep_scale)
    loading = (descriptors, memory, barriers, sizes, group, lead, bias_place)
    computing = (out_desc, lse_ptr, memory, barriers, sizes, terms, bias_place, dropout)
    # Constants stay constants only where they stand in the call.
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_compute, (computing, 0, MASK, TERMS)),
                (_compute, (computing, 1, MASK, TERMS)),
                (_load, (loading, MASK, TERMS)),
            ],
            [4, 1],
            [REGISTERS, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_compute, (computing, 0, MASK, TERMS)),
                (_compute, (computing, 1, MASK, TERMS)),
                (_compute, (computing, 2, MASK, TERMS)),
                (_load, (loading, MASK, TERMS)),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, 24],
        )
