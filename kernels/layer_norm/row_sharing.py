"""Layer-norm backward for wide rows: several programs share a row, and read it once.

A program owns BLOCK_N columns. With the others of its group, which own the rest, it walks over the
rows, BLOCK_M at a time: it keeps x and dy of its columns in registers, leaves its part of the two
sums of each row, sum(g) and sum(g x^), in memory, and stores dx once the parts of all owners are
there. Before it waits for them it has read its next rows and left their parts, so that what it
waits for was left a whole turn ago. dweight and dbias gather in fp32 registers, a partial row for
each group, which finalize.py folds. Parts are added in a fixed tree: bitwise repeatable on one
device, and on every device where the number of groups is fixed (device_independent).

Programs of a group wait for one another, so all of them have to run at the same time. They take
their places in the order in which they start (an atomic count), one group after the other: then
the first group that isn't done always runs as a whole, where the device runs as many programs as a
row has owners. So a row has at most MOST_OWNERS, and a device of fewer SMs is refused.

An interpreter runs one program after the other: there a first launch leaves all parts, and a second
one does the rest.

Design after the cooperating thread blocks of NVIDIA's apex (fast layer norm, CTAS_PER_ROW).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.device import multiprocessors, real_multiprocessors
from kernels.integers import cdiv, next_power_of_2
from kernels.layer_norm.call import Call, Given, Gradients, compiled_twice, domain
from kernels.layer_norm.tiles import leave_partials, offsets, weight_of
from kernels.registry import kernel
from oracles import LAYER_NORM_BACKWARD
from oracles.op import Numerics


@triton.jit
def _tile(
    ptr, rows, offs_n, mask, stride_m, stride_n, ADJACENT: tl.constexpr, VECTOR: tl.constexpr
):
    """Rows of a matrix in this program's columns."""
    row = rows.to(tl.int64)[:, None]
    offs = offsets(row, offs_n, stride_m, stride_n, ADJACENT, VECTOR)
    return tl.load(ptr + offs, mask=mask, other=0.0, eviction_policy="evict_first")


@triton.jit
def _now(words):
    """Words of 64 bits at these addresses, which other programs may be writing."""
    return tl.inline_asm_elementwise(
        "ld.relaxed.gpu.global.b64 $0, [$1];", "=l,l", [words.to(tl.int64, bitcast=True)],
        dtype=tl.int64, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _waited_for(parts, words):
    """`parts`, or where it is -1 what is at its address once it is something else."""
    return tl.inline_asm_elementwise(
        "{ .reg .pred p; mov.b64 $0, $1; AGAIN: setp.ne.s64 p, $0, -1; @p bra DONE;"
        " ld.relaxed.gpu.global.b64 $0, [$2]; bra AGAIN; DONE: }",
        "=&l,l,l", [parts, words.to(tl.int64, bitcast=True)], dtype=tl.int64, is_pure=False,
        pack=1,
    )  # fmt: skip


@triton.jit
def _total(halves):
    """The sums of parts [BLOCK_M, BLOCK_O] of rows, from their bits: [BLOCK_M, 1] or, of one row, a number.

    A number has no layout: of a tensor the compiler would give each thread as many words of
    others as it has columns.
    """
    total = tl.sum(halves.to(tl.int32).to(tl.float32, bitcast=True), axis=1)
    if total.shape[0] == 1:
        return tl.sum(total, axis=0)
    else:
        return total[:, None]


def _shares(
    dy_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, dresidual_ptr, words_ptr, dx_ptr,
    dweight_part_ptr, dbias_part_ptr, m, n_vectors, groups, stride_dym, stride_dyn, stride_xm,
    stride_xn, stride_rm, stride_rn, inverse_n,
    ZERO_CENTRED: tl.constexpr, ADJACENT: tl.constexpr, VECTOR: tl.constexpr, OWNERS: tl.constexpr,
    LEAVES: tl.constexpr, FINISHES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_O: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    # words_ptr: [m, OWNERS] parts of the two sums, then how many places are taken, less one; -1
    # where nothing is yet. A word is written and read whole, so nothing else has to be in order.
    n = n_vectors * VECTOR
    place = tl.atomic_add(words_ptr + m.to(tl.int64) * OWNERS, 1, sem="relaxed") + 1
    place = (place % (groups * OWNERS)).to(tl.int32)
    group = place // OWNERS
    owner = place % OWNERS
    offs_m = tl.arange(0, BLOCK_M)
    offs_n = owner * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_o = tl.arange(0, BLOCK_O)
    mask_n = offs_n[None, :] < n
    if weight_ptr is not None:
        weight = weight_of(weight_ptr, offs_n, n, ZERO_CENTRED)
    dweight = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    dbias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    blocks = tl.cdiv(m, BLOCK_M)
    g_before = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    x_hat_before = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    rstd_before = tl.zeros((BLOCK_M, 1), tl.float32)
    rows = group * BLOCK_M + offs_m
    if STAGES == 1:
        mask = (rows < m)[:, None] & mask_n
        dy_next = _tile(dy_ptr, rows, offs_n, mask, stride_dym, stride_dyn, ADJACENT, VECTOR)
        x_next = _tile(x_ptr, rows, offs_n, mask, stride_xm, stride_xn, ADJACENT, VECTOR)
    # A turn leaves the parts of a block of rows and finishes the one before. It reads the next one
    # into registers, or with several stages those to come into shared memory.
    for block in tl.range(group, blocks + groups, groups, num_stages=STAGES):
        rows = block * BLOCK_M + offs_m
        if STAGES == 1:
            x = x_next
            dy = dy_next
            rows += groups * BLOCK_M
        mask = (rows < m)[:, None] & mask_n
        dy_next = _tile(dy_ptr, rows, offs_n, mask, stride_dym, stride_dyn, ADJACENT, VECTOR)
        x_next = _tile(x_ptr, rows, offs_n, mask, stride_xm, stride_xn, ADJACENT, VECTOR)
        if STAGES > 1:
            x = x_next
            dy = dy_next
        rows = block * BLOCK_M + offs_m
        mask_m = rows < m
        rstd = tl.load(rstd_ptr + rows, mask=mask_m, other=0.0)[:, None]
        # Early: as a rule the parts of the block before are all there.
        before = block - groups
        parts_rows = before * BLOCK_M + offs_m
        parts_mask = (parts_rows < m)[:, None] & (offs_o < OWNERS)[None, :] & (before >= 0)
        parts_offs = parts_rows.to(tl.int64)[:, None] * OWNERS + offs_o[None, :]
        parts_ptr = words_ptr + tl.where(parts_mask, parts_offs, 0)
        if FINISHES:
            parts = _now(parts_ptr) if LEAVES else tl.load(parts_ptr)
            parts = tl.where(parts_mask, parts, 0)
        dy = dy.to(tl.float32)
        if mean_ptr is None:
            x_hat = x.to(tl.float32) * rstd
        else:
            mean = tl.load(mean_ptr + rows, mask=mask_m, other=0.0)[:, None]
            x_hat = (x.to(tl.float32) - mean) * rstd
        g = dy
        if weight_ptr is not None:
            g = dy * weight
        if LEAVES:
            sum_gx, sum_g = tl.split(tl.sum(tl.join(g * x_hat, g), axis=1))
            high = sum_gx.to(tl.int32, bitcast=True).to(tl.int64) << 32
            word = high | (sum_g.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)
            # Two NaN of all ones would read as a word that isn't there: another NaN does as well.
            word = tl.where(word == -1, -2, word)
            words = words_ptr + rows.to(tl.int64) * OWNERS + owner
            tl.atomic_xchg(words, word, mask=mask_m, sem="relaxed")
        if dweight_part_ptr is not None:
            dweight += dy * x_hat
        if dbias_part_ptr is not None:
            dbias += dy
        if FINISHES and before >= 0:
            if LEAVES:
                parts = _waited_for(parts, parts_ptr)
            shift = x_hat_before * (_total(parts >> 32) * inverse_n * rstd_before)
            if mean_ptr is not None:
                shift += _total(parts) * inverse_n * rstd_before
            dx = g_before * rstd_before - shift
            mask = (parts_rows < m)[:, None] & mask_n
            if dresidual_ptr is not None:
                dx += _tile(
                    dresidual_ptr, parts_rows, offs_n, mask, stride_rm, stride_rn, ADJACENT, VECTOR
                ).to(tl.float32)
            dx_offs = parts_rows.to(tl.int64)[:, None] * n + offs_n[None, :]
            tl.store(dx_ptr + dx_offs, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        g_before = g
        x_hat_before = x_hat
        rstd_before = rstd
    if FINISHES:
        leave_partials(dweight_part_ptr, dbias_part_ptr, dweight, dbias, group, offs_n, n)


_shares_kernel = compiled_twice(_shares)


@dataclass(frozen=True, slots=True)
class Cut:
    """Rows and columns of a program's block, warps, stages in flight, programs for each SM.

    registers: of a thread, at most.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    programs_per_sm: int
    registers: int


# By element size, and by whether rows are aligned: the fastest of 13 to 30 cuts over 4096 x 16384,
# 2048 x 65536, 128 x 65536 and more on an H200, triton 3.6, 2026-11-22: docs/measured.md. Rows that
# aren't aligned take what spills nowhere: halves would with 168 registers on sm 80.
_CUTS = {
    (2, True): Cut(1, 2048, 4, 1, 3, 168),
    (2, False): Cut(1, 2048, 4, 1, 2, 255),
    (4, True): Cut(1, 2048, 8, 3, 2, 128),
    (4, False): Cut(1, 2048, 8, 3, 2, 128),
}
MOST_OWNERS = 32
WIDEST = 65536
SM = (80, 121)


def row_sharing(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    *,
    aligned: bool,
    device_independent: bool = False,
    cut: Cut | None = None,
    **given: Unpack[Given],
) -> Gradients:
    """dx like x and packed, dweight and dbias [n] in the weight's dtype; see OPTIONS for the rest.

    aligned: every pointer and row is a multiple of 16 bytes, columns are adjacent. cut: the one to
    use in place of the tuned one. Bitwise repeatable. Workspace: 8 bytes for each row and owner,
    8 n for each group. Raises ValueError where the device has fewer SMs
    than a row has owners, since these wait for one another.
    """
    call = Call(dy, x, weight, mean, rstd, aligned=aligned, **given)
    m, n, device = call.m, call.n, x.device
    interpreted = device.type == "cpu"
    if cut is None:
        cut = _interpreted_cut(n) if interpreted else _CUTS[x.element_size(), call.aligned]
    block_n = max(cut.block_n, next_power_of_2(n) // MOST_OWNERS)
    owners = cdiv(n, block_n)
    cores = multiprocessors(device, device_independent=device_independent)
    if not interpreted and owners > (found := real_multiprocessors(device)):
        raise ValueError(
            f"rows of {n} columns have {owners} owners, which have to run at the same time, and "
            f"this device has {found} SMs; use column_owning"
        )
    blocks = cdiv(m, cut.block_m)
    groups = min(blocks, max(1, cores * cut.programs_per_sm // owners))
    call.sum_in(groups)
    if m:
        words = torch.full((m * owners + 1,), -1, dtype=torch.int64, device=device)
        options = {"num_warps": cut.num_warps, "maxnreg": cut.registers}
        for leaves, finishes in ((True, False), (False, True)) if interpreted else ((True, True),):
            call.launch(
                _shares_kernel, (groups * owners,), options, words_ptr=words, groups=groups,
                OWNERS=owners, LEAVES=leaves, FINISHES=finishes, BLOCK_M=cut.block_m,
                BLOCK_N=block_n, BLOCK_O=next_power_of_2(owners), STAGES=cut.num_stages,
            )  # fmt: skip
    return call.gradients()


def _interpreted_cut(n: int) -> Cut:
    """Four owners a row at most: an interpreter pays for each program and trip, of any size.

    Of rows eight, so that there are groups, whose number shows what their sums depend on.
    """
    return Cut(8, max(256, next_power_of_2(n) // 4), 4, 1, 2, 255)


# dweight has a partial for each group; with the option device_independent it doesn't show.
_DECLARED = Numerics(batch_invariant=True, device_independent=False)


@kernel(
    LAYER_NORM_BACKWARD,
    domain(16, WIDEST, sm=SM),
    numerics=_DECLARED,
    priority=28,
    same_code_as="row_sharing",
)
def row_sharing_aligned(dy, x, weight, mean, rstd, **options):
    """Rows shared by programs, 16-byte loads."""
    return row_sharing(dy, x, weight, mean, rstd, aligned=True, **options)


@kernel(
    LAYER_NORM_BACKWARD,
    domain(1, WIDEST, sm=SM),
    numerics=_DECLARED,
    priority=25,
    name="row_sharing",
)
def _row_sharing_any(dy, x, weight, mean, rstd, **options):
    """Rows shared by programs, any strides and offsets."""
    return row_sharing(dy, x, weight, mean, rstd, aligned=False, **options)
