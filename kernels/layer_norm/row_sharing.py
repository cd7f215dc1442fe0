"""Layer-norm backward for wide rows: several programs share a row, and read it once.

A program owns BLOCK_N columns; the other programs of its group own the rest. The group walks over
the rows, BLOCK_M at a time: a program keeps x and dy of its columns in registers, stores its part
of the two sums of each row, sum(g) and sum(g x^), in memory, and stores dx once the parts of all
owners are there. Before it waits for them it reads its next rows and stores their parts, so that
the awaited parts were stored a whole turn ago. dweight and dbias accumulate in fp32 registers, a
partial row for each group, which finalize.py folds. Parts are added in a fixed tree: bitwise
repeatable on one device, and on every device if the number of groups is fixed (device_independent).

Programs of a group wait for one another, so all of them have to run at the same time. They take
their places in the order in which they start (an atomic count), one group after the other: then
the first group that isn't done always runs as a whole, where the device runs as many programs as a
row has owners. So a row has at most MOST_OWNERS, and a device of fewer SMs is refused.

An interpreter runs one program after the other: there a first launch stores all parts, and a second
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

from kernel_workbench.kernels.device import multiprocessors, real_multiprocessors
from kernel_workbench.kernels.integers import cdiv, next_power_of_2
from kernel_workbench.kernels.launch_plan import Filled
from kernel_workbench.kernels.layer_norm.call import (
    BackwardCall,
    Given,
    Gradients,
    compiled_twice,
    domain,
)
from kernel_workbench.kernels.layer_norm.tiles import (
    leave_partials,
    named,
    offsets,
    requested_cut,
    weight_of,
)
from kernel_workbench.kernels.registry import kernel
from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.op import Case, Numerics


@triton.jit
def _tile(
    ptr, rows, offs_n, mask, stride_m, stride_n, ADJACENT: tl.constexpr, VECTOR: tl.constexpr
):
    """Load rows of a matrix in this program's columns."""
    row = rows.to(tl.int64)[:, None]
    offs = offsets(row, offs_n, stride_m, stride_n, ADJACENT, VECTOR)
    return tl.load(ptr + offs, mask=mask, other=0.0, eviction_policy="evict_first")


@triton.jit
def _normalised(x, rows, mask_m, mean_ptr, rstd):
    """Return x^ of a tile, in fp32."""
    x = x.to(tl.float32)
    if mean_ptr is not None:
        x -= tl.load(mean_ptr + rows, mask=mask_m, other=0.0)[:, None]
    return x * rstd


def _shares(
    dy_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, dresidual_ptr, words_ptr, dx_ptr,
    dweight_part_ptr, dbias_part_ptr, m, n_vectors, groups, stride_dym, stride_dyn, stride_xm,
    stride_xn, stride_rm, stride_rn, inverse_n,
    ZERO_CENTRED: tl.constexpr, ADJACENT: tl.constexpr, VECTOR: tl.constexpr, OWNERS: tl.constexpr,
    LEAVES: tl.constexpr, FINISHES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_O: tl.constexpr,
):  # fmt: skip
    # words_ptr: [m, OWNERS] parts of the two sums, then how many places are taken, less one; -1
    # where nothing is yet. A word is written and read whole, so nothing else has to be in order.
    # No barrier may stand where warps wait, as one may see a word before another does.
    tl.static_assert(BLOCK_M * BLOCK_O <= 32 or not (LEAVES and FINISHES))
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
    x_before = tl.zeros((BLOCK_M, BLOCK_N), x_ptr.dtype.element_ty)
    dy_before = tl.zeros((BLOCK_M, BLOCK_N), dy_ptr.dtype.element_ty)
    rows = group * BLOCK_M + offs_m
    mask = (rows < m)[:, None] & mask_n
    dy_next = _tile(dy_ptr, rows, offs_n, mask, stride_dym, stride_dyn, ADJACENT, VECTOR)
    x_next = _tile(x_ptr, rows, offs_n, mask, stride_xm, stride_xn, ADJACENT, VECTOR)
    # A turn reads the next block of rows, leaves the parts of this one and finishes the one before.
    for block in tl.range(group, blocks + groups, groups):
        x = x_next
        dy = dy_next
        rows = (block + groups) * BLOCK_M + offs_m
        mask = (rows < m)[:, None] & mask_n
        dy_next = _tile(dy_ptr, rows, offs_n, mask, stride_dym, stride_dyn, ADJACENT, VECTOR)
        x_next = _tile(x_ptr, rows, offs_n, mask, stride_xm, stride_xn, ADJACENT, VECTOR)
        rows = block * BLOCK_M + offs_m
        mask_m = rows < m
        # Early: as a rule the parts of the block before are all there.
        before = block - groups
        parts_rows = before * BLOCK_M + offs_m
        parts_ptr = words_ptr + parts_rows.to(tl.int64)[:, None] * OWNERS + offs_o[None, :]
        parts_mask = (parts_rows < m)[:, None] & (offs_o < OWNERS)[None, :] & (before >= 0)
        if FINISHES:
            parts = tl.load(parts_ptr, mask=parts_mask, other=0, volatile=True)
        if LEAVES:
            rstd = tl.load(rstd_ptr + rows, mask=mask_m, other=0.0)[:, None]
            g = dy.to(tl.float32)
            if weight_ptr is not None:
                g *= weight
            gx = g * _normalised(x, rows, mask_m, mean_ptr, rstd)
            sum_gx, sum_g = tl.split(tl.sum(tl.join(gx, g), axis=1))
            high = sum_gx.to(tl.int32, bitcast=True).to(tl.int64) << 32
            word = high | (sum_g.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)
            # Two NaN of all ones would read as a word that isn't there: another NaN does as well.
            word = tl.where(word == -1, -2, word)
            words = words_ptr + rows.to(tl.int64) * OWNERS + owner
            tl.atomic_xchg(words, word, mask=mask_m, sem="relaxed")
        if FINISHES and before >= 0:
            while tl.max(tl.max((parts == -1).to(tl.int32), axis=1), axis=0) > 0:
                parts = tl.load(parts_ptr, mask=parts_mask, other=0, volatile=True)
            rows = before * BLOCK_M + offs_m
            mask_m = rows < m
            mask = mask_m[:, None] & mask_n
            rstd = tl.load(rstd_ptr + rows, mask=mask_m, other=0.0)[:, None]
            c2 = (parts >> 32).to(tl.int32).to(tl.float32, bitcast=True)
            x_hat = _normalised(x_before, rows, mask_m, mean_ptr, rstd)
            wide_dy = dy_before.to(tl.float32)
            g = wide_dy
            if weight_ptr is not None:
                g = wide_dy * weight
            shift = x_hat * (tl.sum(c2, axis=1)[:, None] * inverse_n)
            if mean_ptr is not None:
                c1 = parts.to(tl.int32).to(tl.float32, bitcast=True)
                shift += tl.sum(c1, axis=1)[:, None] * inverse_n
            dx = (g - shift) * rstd
            if dresidual_ptr is not None:
                dx += _tile(
                    dresidual_ptr, rows, offs_n, mask, stride_rm, stride_rn, ADJACENT, VECTOR
                ).to(tl.float32)
            dx_offs = rows.to(tl.int64)[:, None] * n + offs_n[None, :]
            tl.store(dx_ptr + dx_offs, dx.to(dx_ptr.dtype.element_ty), mask=mask)
            if dweight_part_ptr is not None:
                dweight += wide_dy * x_hat
            if dbias_part_ptr is not None:
                dbias += wide_dy
        x_before = x
        dy_before = dy
    if FINISHES:
        leave_partials(dweight_part_ptr, dbias_part_ptr, dweight, dbias, group, offs_n, n)


_shares_kernel = compiled_twice(_shares)


@dataclass(frozen=True, slots=True)
class RowSharingCut:
    """Rows and columns of a program's block, warps, programs for each SM, and registers a thread.

    The product of block_m and owners, rounded up to a power of 2, is 32 at most: then the words of
    a block lie in one warp, and each warp waits for them on its own.
    """

    block_m: int
    block_n: int
    num_warps: int
    programs_per_sm: int
    registers: int


# By element size, and by whether rows are aligned: the fastest of 13 to 30 cuts over 4096 x 16384,
# 2048 x 65536, 128 x 65536 and more on an H200, triton 3.6, 2026-11-22: docs/measured.md. Rows that
# aren't aligned take what spills nowhere: halves would with 168 registers on sm 80.
_CUTS = {
    (2, True): RowSharingCut(1, 2048, 4, 3, 168),
    (2, False): RowSharingCut(1, 2048, 4, 2, 255),
    (4, True): RowSharingCut(1, 2048, 8, 2, 128),
    (4, False): RowSharingCut(1, 2048, 8, 2, 128),
}
_FEW_TURNS = 12
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
    cut: RowSharingCut | None = None,
    **given: Unpack[Given],
) -> Gradients:
    """Return dx like x and packed, dweight and dbias [n] in the weight's dtype.

    The gradients are bitwise repeatable. Workspace: 8 bytes for each row and owner, and 8 n bytes
    for each group.

    Args:
        dy: gradient of the output, [m, n].
        x: input, [m, n].
        weight: [n], or None.
        mean: [m] in fp32; None for RMS norm.
        rstd: [m] in fp32.
        aligned: every pointer and row is a multiple of 16 bytes, and columns are adjacent.
        device_independent: split alike on every device.
        cut: replaces the tuned cut.
        **given: see OPTIONS in oracles/layer_norm.

    Raises:
        ValueError: if the device has fewer SMs than a row has owners, which wait for one another.
    """
    call = BackwardCall(dy, x, weight, mean, rstd, aligned=aligned, **given)
    m, n, device = call.m, call.n, x.device
    interpreted = device.type == "cpu"
    cut = cut or requested_cut(_CUTS.values())
    if cut is None:
        cut = _interpreted_cut(n) if interpreted else _CUTS[x.element_size(), call.aligned]
    block_n = max(cut.block_n, next_power_of_2(n) // MOST_OWNERS)
    owners = cdiv(n, block_n)
    cores = multiprocessors(device, device_independent=device_independent)
    if not interpreted and owners > (available := real_multiprocessors(device)):
        raise ValueError(
            f"rows of {n} columns have {owners} owners, which have to run at the same time, and "
            f"this device has {available} SMs; use column_owning"
        )
    blocks = cdiv(m, cut.block_m)
    groups = _groups(blocks, owners, cores, cut)
    call.sum_in(groups)
    if m:
        words = torch.full((m * owners + 1,), -1, dtype=torch.int64, device=device)
        call.recorded.filled.append(Filled(words, -1))
        options = {"num_warps": cut.num_warps, "maxnreg": cut.registers}
        for leaves, finishes in ((True, False), (False, True)) if interpreted else ((True, True),):
            call.launch(
                _shares_kernel, (groups * owners,), options, words_ptr=words, groups=groups,
                OWNERS=owners, LEAVES=leaves, FINISHES=finishes, BLOCK_M=cut.block_m,
                BLOCK_N=block_n, BLOCK_O=next_power_of_2(owners),
            )  # fmt: skip
    return call.gradients()


def _groups(blocks: int, owners: int, cores: int, cut: RowSharingCut) -> int:
    """Return the number of groups, each with a program for every block of a row's columns.

    If each group has few blocks of rows, fewer groups leave less to fold afterwards.
    """
    groups = max(1, cores * cut.programs_per_sm // owners)
    if blocks < _FEW_TURNS * groups:
        groups = max(1, cores * min(cut.programs_per_sm, 2) // owners)
    return min(blocks, groups)


def _interpreted_cut(n: int) -> RowSharingCut:
    """Return a cut of at most four owners a row: an interpreter pays for each program and trip.

    Use 8 rows, so that several groups form and a dependence of the sums on their number shows.
    """
    return RowSharingCut(8, max(256, next_power_of_2(n) // 4), 4, 2, 255)


# dweight has a partial for each group; with the option device_independent it doesn't show.
_DECLARED = Numerics(batch_invariant=True, device_independent=False)


def _configurations(case: Case, sm: int) -> tuple[str, ...]:
    del case, sm
    return tuple(named(_CUTS.values()))


@kernel(
    LAYER_NORM_BACKWARD,
    domain(16, WIDEST, sm=SM),
    numerics=_DECLARED,
    priority=28,
    same_code_as="row_sharing",
    configurations=_configurations,
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
    configurations=_configurations,
)
def _row_sharing_any(dy, x, weight, mean, rstd, **options):
    """Compute the gradients with rows shared by programs, for any strides and offsets."""
    return row_sharing(dy, x, weight, mean, rstd, aligned=False, **options)
