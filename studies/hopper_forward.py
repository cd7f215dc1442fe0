"""What comes next for `hopper` (kernels/attention), on trial: a file of a user's kernel.

`nox -s accuracy -- --kernels=studies/hopper_forward.py --kernel hopper_next`; bench likewise. It
has been compiled, and run on a CPU, and not on a GPU. Beside what `hopper` does:

- A window, a scale and a sink. One loop over the tiles of keys asks of each whether it needs a
  mask, and a mask takes one comparison a score.
- A tile's softmax is done before the product of the tile before with v is waited for. ptxas moves
  that wait up otherwise, whatever the PTX says: between the two stands a barrier of a warp whose
  mask follows from the softmax's sum, and which is always full.
- hopper_next_in_turn: the groups take turns to ask for products, as FlashAttention-3's do.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Unpack

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper

from kernels.attention.hopper import CUTS, DTYPES, ROWS, STAGES, descriptor, refusal
from kernels.attention.hopper_kernel import Memory, new_barriers, out_in_q, packed, unpacked
from kernels.attention.problem import Given, Options, Problem
from kernels.attention.scores import UNLIMITED
from kernels.device import multiprocessors, on_device_of
from kernels.registry import Domain, kernel
from oracles import ATTENTION_FORWARD
from oracles.op import Numerics

LN2 = gl.constexpr(0.6931471805599453)
LOG2E = gl.constexpr(1.4426950408889634)


class Barriers(NamedTuple):
    """One for each group's q, and for each stage of k and v."""

    q_full: Any
    q_empty: Any
    k_full: Any
    k_empty: Any
    v_full: Any
    v_empty: Any
    turns: Any


class Band(NamedTuple):
    """Which keys a query may attend to: from i + behind to i + ahead, both included, below keys."""

    s_q: Any
    keys: Any
    behind: Any
    ahead: Any
    BEHIND: Any  # whether there is a limit behind, and ahead
    AHEAD: Any


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
def _tiles(start_m, band, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """The first tile of keys of a block of queries, and the one after the last."""
    last = band.keys
    first = 0
    if band.AHEAD:
        row = gl.minimum(start_m + BLOCK_M, band.s_q) - 1
        last = gl.minimum(gl.maximum(row + band.ahead + 1, 0), last)
    if band.BEHIND:
        first = gl.maximum(start_m + band.behind, 0) // BLOCK_N
    last = gl.cdiv(last, BLOCK_N)
    if (start_m >= band.s_q) | (last <= first):
        # One tile past all keys, which reads as zeros.
        first = gl.cdiv(band.keys, BLOCK_N)
        last = first + 1
    return first, last


@gluon.jit
def _load(descriptors, memory, barriers, band, blocks, heads, h_q, group):
    """What the loading warp does: q of each item, then its tiles of k and v, the last one first."""
    q_desc, k_desc, v_desc = descriptors
    GROUPS: gl.constexpr = memory.q.shape[0]
    ROWS: gl.constexpr = memory.q.shape[3]
    STAGES: gl.constexpr = memory.k.shape[0]
    BLOCK_M: gl.constexpr = GROUPS * ROWS
    BLOCK_N: gl.constexpr = memory.k.shape[3]
    loaded = 0
    for item in range(gl.program_id(0), _items(blocks, heads), gl.num_programs(0)):
        block, head, turn = _block(item, blocks)
        b = head // h_q
        h = head - b * h_q
        start_m = block * BLOCK_M
        first, last = _tiles(start_m, band, BLOCK_M, BLOCK_N)
        for g in gl.static_range(GROUPS):
            hopper.mbarrier.wait(barriers.q_empty.index(g), (turn & 1) ^ 1)
            hopper.mbarrier.expect(barriers.q_full.index(g), q_desc.block_type.nbytes)
            hopper.tma.async_copy_global_to_shared(
                q_desc, [b, h, start_m + g * ROWS, 0], barriers.q_full.index(g), memory.q.index(g)
            )
        for i in range(first, last):
            place = [b, h // group, (last - 1 - i + first) * BLOCK_N, 0]
            stage = loaded % STAGES
            phase = ((loaded // STAGES) & 1) ^ 1
            hopper.mbarrier.wait(barriers.k_empty.index(stage), phase)
            hopper.mbarrier.expect(barriers.k_full.index(stage), k_desc.block_type.nbytes)
            hopper.tma.async_copy_global_to_shared(
                k_desc, place, barriers.k_full.index(stage), memory.k.index(stage)
            )
            hopper.mbarrier.wait(barriers.v_empty.index(stage), phase)
            hopper.mbarrier.expect(barriers.v_full.index(stage), v_desc.block_type.nbytes)
            hopper.tma.async_copy_global_to_shared(
                v_desc, place, barriers.v_full.index(stage), memory.v.index(stage)
            )
            loaded += 1


@gluon.jit
def _masked(s, start_n, row, band, ROWS: gl.constexpr, BLOCK_N: gl.constexpr):
    """A tile's scores, -inf where a query may not attend; row: the tile's first query."""
    LAYOUT: gl.constexpr = s.type.layout
    inside = start_n + BLOCK_N <= band.keys
    if band.AHEAD:
        inside = inside & (start_n + BLOCK_N <= row + band.ahead + 1)
    if band.BEHIND:
        inside = inside & (start_n >= row + ROWS - 1 + band.behind)
    if not inside:
        offs_m = row + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
        offs_n = start_n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, LAYOUT))
        end = gl.zeros_like(offs_m) + (band.keys - 1)
        if band.AHEAD:
            end = gl.minimum(end, offs_m + band.ahead)
        keep = offs_n[None, :] <= end[:, None]
        if band.BEHIND:
            keep = keep & (offs_n[None, :] >= (offs_m + band.behind)[:, None])
        s = gl.where(keep, s, float("-inf"))
    return s


@gluon.jit
def _softmax(s, m_i, l_i, scale):
    """A tile's weights, the new m (in base 2) and l, and the accumulator's factor."""
    m_new = gl.maximum(m_i, gl.max(s, 1) * scale)
    m_used = gl.where(m_new == float("-inf"), 0.0, m_new)
    p = gl.exp2(s * scale - m_used[:, None])
    alpha = gl.exp2(m_i - m_used)
    return p, m_new, l_i * alpha + gl.sum(p, 1), alpha


@gluon.jit
def _held(x):
    """x, computed before what comes next."""
    ASM: gl.constexpr = (
        "{ .reg .pred p; .reg .b32 m; .reg .f32 t; add.f32 t, $2, $3; setp.lt.f32 p, t, 0fBF800000;"
        " selp.b32 m, 0x7fffffff, 0xffffffff, p; bar.warp.sync m; mov.b32 $0, $2; mov.b32 $1, $3; }"
    )
    return gl.inline_asm_elementwise(ASM, "=f,=f,f,f", [x], dtype=gl.float32, is_pure=False, pack=2)


@gluon.jit
def _compute(computing, G: gl.constexpr, TURNS: gl.constexpr):
    """What group G does: out and lse of its rows of each item."""
    out_desc, lse_ptr, sink_ptr, memory, barriers, band, blocks, heads, h_q, scale = computing
    GROUPS: gl.constexpr = memory.q.shape[0]
    ROWS: gl.constexpr = memory.q.shape[3]
    D: gl.constexpr = memory.q.shape[4]
    STAGES: gl.constexpr = memory.k.shape[0]
    BLOCK_M: gl.constexpr = GROUPS * ROWS
    BLOCK_N: gl.constexpr = memory.k.shape[3]
    OUT_IN_Q: gl.constexpr = out_in_q(D)
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    S_ROWS: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    O_ROWS: gl.constexpr = gl.SliceLayout(1, O_LAYOUT)
    DTYPE: gl.constexpr = memory.q.dtype
    taken = 0  # tiles, of all items
    turns_taken = 0
    q = memory.q.index(G).reshape((ROWS, D))
    zeros = gl.zeros((ROWS, BLOCK_N), gl.float32, S_LAYOUT)
    for item in range(gl.program_id(0), _items(blocks, heads), gl.num_programs(0)):
        block, head, turn = _block(item, blocks)
        b = head // h_q
        h = head - b * h_q
        start_m = block * BLOCK_M
        row = start_m + G * ROWS
        first, last = _tiles(start_m, band, BLOCK_M, BLOCK_N)
        m_i = gl.full((ROWS,), float("-inf"), gl.float32, S_ROWS)
        l_i = gl.zeros((ROWS,), gl.float32, S_ROWS)
        acc = gl.zeros((ROWS, D), gl.float32, O_LAYOUT)
        hopper.mbarrier.wait(barriers.q_full.index(G), turn & 1)
        stage = taken % STAGES
        hopper.mbarrier.wait(barriers.k_full.index(stage), (taken // STAGES) & 1)
        k = memory.k.index(stage).reshape((BLOCK_N, D)).permute((1, 0))
        if TURNS:
            hopper.mbarrier.wait(barriers.turns.index(G), turns_taken & 1)
            turns_taken += 1
        s = hopper.warpgroup_mma(q, k, zeros, use_acc=False, is_async=True)
        s = hopper.warpgroup_mma_wait(0, deps=[s])
        if TURNS:
            hopper.mbarrier.arrive(barriers.turns.index((G + 1) % GROUPS), count=1)
        hopper.mbarrier.arrive(barriers.k_empty.index(stage), count=1)
        s = _masked(s, (last - 1) * BLOCK_N, row, band, ROWS, BLOCK_N)
        p, m_i, l_i, alpha = _softmax(s, m_i, l_i, scale)
        words = packed(p, DTYPE, ROWS, BLOCK_N)
        taken += 1
        for i in range(first + 1, last):
            stage = taken % STAGES
            before = (taken - 1) % STAGES
            if TURNS:
                hopper.mbarrier.wait(barriers.turns.index(G), turns_taken & 1)
                turns_taken += 1
            hopper.mbarrier.wait(barriers.k_full.index(stage), (taken // STAGES) & 1)
            k = memory.k.index(stage).reshape((BLOCK_N, D)).permute((1, 0))
            s = hopper.warpgroup_mma(q, k, zeros, use_acc=False, is_async=True)
            hopper.mbarrier.wait(barriers.v_full.index(before), ((taken - 1) // STAGES) & 1)
            weights = unpacked(words, DTYPE, ROWS, BLOCK_N, P_LAYOUT)
            v = memory.v.index(before).reshape((BLOCK_N, D))
            product = hopper.warpgroup_mma(weights, v, acc, is_async=True)
            if TURNS:
                hopper.mbarrier.arrive(barriers.turns.index((G + 1) % GROUPS), count=1)
            s = hopper.warpgroup_mma_wait(1, deps=[s])
            hopper.mbarrier.arrive(barriers.k_empty.index(stage), count=1)
            s = _masked(s, (last - 1 - i + first) * BLOCK_N, row, band, ROWS, BLOCK_N)
            p, m_i, l_i, alpha = _softmax(s, m_i, l_i, scale)
            l_i = _held(l_i)
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
        factor = gl.full((ROWS,), 1.0, gl.float32, S_ROWS)
        m_used = gl.where(m_i == float("-inf"), 0.0, m_i)
        if sink_ptr is not None:
            sink = gl.load(sink_ptr + h) * LOG2E
            m_new = gl.maximum(m_i, sink)
            m_used = gl.where(m_new == float("-inf"), 0.0, m_new)
            factor = gl.exp2(m_i - m_used)
            l_i = l_i * factor + gl.exp2(sink - m_used)
        lse = m_used * LN2 + gl.log(l_i)  # -inf for a row without keys
        inverse = gl.where(l_i == 0.0, 0.0, factor / gl.where(l_i == 0.0, 1.0, l_i))
        out = acc * gl.convert_layout(inverse, O_ROWS)[:, None]
        if not OUT_IN_Q:
            hopper.tma.store_wait(0)
        memory.out.index(G).reshape((ROWS, D)).store(out.to(DTYPE))
        hopper.fence_async_shared()
        hopper.tma.async_copy_shared_to_global(out_desc, [b, h, row, 0], memory.out.index(G))
        offs_m = row + gl.arange(0, ROWS, S_ROWS)
        gl.store(lse_ptr + head.to(gl.int64) * band.s_q + offs_m, lse, mask=offs_m < band.s_q)
        if OUT_IN_Q:
            hopper.tma.store_wait(0)
            hopper.mbarrier.arrive(barriers.q_empty.index(G), count=1)
    hopper.tma.store_wait(0)


@gluon.jit
def hopper_kernel(
    q_desc, k_desc, v_desc, out_desc, lse_ptr, sink_ptr, blocks, heads, h_q, group, s_q, keys,
    behind, ahead, scale, BEHIND: gl.constexpr, AHEAD: gl.constexpr, STAGES: gl.constexpr,
    GROUPS: gl.constexpr, REGISTERS: gl.constexpr, TURNS: gl.constexpr,
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
        new_barriers(GROUPS, 1),
    )  # fmt: skip
    if TURNS:
        hopper.mbarrier.arrive(barriers.turns.index(0), count=1)  # fmt: skip
    hopper.fence_async_shared()
    descriptors = (q_desc, k_desc, v_desc)
    band = Band(s_q, keys, behind, ahead, BEHIND, AHEAD)
    loading = (descriptors, memory, barriers, band, blocks, heads, h_q, group)
    computing = (out_desc, lse_ptr, sink_ptr, memory, barriers, band, blocks, heads, h_q, scale)
    # Constants stay constants only where they stand in the call.
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_compute, (computing, 0, TURNS)),
                (_compute, (computing, 1, TURNS)),
                (_load, loading),
            ],
            [4, 1],
            [REGISTERS, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_compute, (computing, 0, TURNS)),
                (_compute, (computing, 1, TURNS)),
                (_compute, (computing, 2, TURNS)),
                (_load, loading),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, 24],
        )


def _run(problem: Problem, *, turns: bool) -> tuple[Tensor, Tensor]:
    """out [b, s_q, h_q, d] like q and lse [b, h_q, s_q] in fp32."""
    q, sink = problem.q, problem.options.sink
    b, s_q, h_q, s_kv, d = problem.b, problem.s_q, problem.h_q, problem.s_kv, problem.d
    out = q.new_empty(q.shape)
    lse = q.new_empty((b, h_q, s_q), dtype=torch.float32)
    shift = s_kv - s_q if problem.options.corner == "bottom_right" else 0
    behind, ahead = problem.left < UNLIMITED, problem.right < UNLIMITED
    # Keys that no query may attend to are never read.
    first = min(max(shift - problem.left, 0), s_kv) if behind else 0
    end = max(min(s_kv, s_q + shift + problem.right), first) if ahead else s_kv
    if not lse.numel():
        return out, lse
    if first == end:
        lse.fill_(float("-inf"))
        return out.zero_(), lse if sink is None else lse.copy_(sink[:, None].expand_as(lse))
    k, v, keys, shift = problem.k[:, first:], problem.v[:, first:], end - first, shift - first
    cut = CUTS[d]
    blocks = triton.cdiv(s_q, cut.groups * ROWS)
    programs = min((blocks + 1) // 2 * b * h_q, multiprocessors(q.device))
    with on_device_of(q):
        hopper_kernel[(programs,)](
            descriptor(q, ROWS), descriptor(k, cut.keys, keys), descriptor(v, cut.keys, keys),
            descriptor(out, ROWS), lse, sink, blocks, b * h_q, h_q, problem.group, s_q, keys,
            shift - problem.left if behind else 0, shift + problem.right if ahead else 0,
            problem.scale * math.log2(math.e), BEHIND=behind, AHEAD=ahead, STAGES=STAGES,
            GROUPS=cut.groups, REGISTERS=cut.registers, TURNS=turns, num_warps=4,
        )  # fmt: skip
    return out, lse


_DOMAIN = Domain(
    dtypes=DTYPES,
    features=frozenset({"causal", "bottom_right", "gqa", "window", "scale", "sink"}),
    sm=(90, 90),
    relations=("d_v == d",),
    also=refusal,
)
_NUMERICS = Numerics(
    key_tile=64, accumulation_roundoff=2.0**-23, batch_invariant=True, device_independent=True
)


@kernel(ATTENTION_FORWARD, _DOMAIN, numerics=_NUMERICS)
def hopper_next(q: Tensor, k: Tensor, v: Tensor, **given: Unpack[Given]) -> tuple[Tensor, Tensor]:
    """As this file's head says."""
    return _run(Problem.of(q, k, v, Options(**given)), turns=False)


@kernel(ATTENTION_FORWARD, _DOMAIN, numerics=_NUMERICS)
def hopper_next_in_turn(
    q: Tensor, k: Tensor, v: Tensor, **given: Unpack[Given]
) -> tuple[Tensor, Tensor]:
    """Its groups take turns."""
    return _run(Problem.of(q, k, v, Options(**given)), turns=True)
