"""Layer-norm backward for wide rows: programs own columns, and rows go by twice.

A first kernel reads x and dy and leaves, for each row and chunk of columns, the two sums of the
row: sum(g) and sum(g x^). A second one owns BLOCK_N columns and a share of the rows: it folds the
row's sums over the chunks in their order, reads x and dy again, stores dx, and gathers dweight
and dbias of its columns over its rows. Where several programs share the columns, their partials
are folded by finalize.py. The rows are walked backwards the second time, so that those read last
are still in L2. No atomics: bitwise repeatable, and device_independent fixes both splits.

For few rows and any width: nothing in it grows with n but the number of programs. x and dy are
read twice, so its roof is 3/5 of the copy's where they don't fit in L2, all of it where they do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import torch
import triton.language as tl
from torch import Tensor

from kernel_workbench.kernels.device import multiprocessors
from kernel_workbench.kernels.integers import cdiv, next_power_of_2
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


def _sums(
    dy_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, sum_g_ptr, sum_gx_ptr, m, n_vectors, tiles,
    stride_dym, stride_dyn, stride_xm, stride_xn,
    ZERO_CENTRED: tl.constexpr, ADJACENT: tl.constexpr, VECTOR: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    n = n_vectors * VECTOR
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_m = rows < m
    row = rows.to(tl.int64)[:, None]
    rstd = tl.load(rstd_ptr + rows, mask=mask_m, other=0.0)[:, None]
    if mean_ptr is not None:
        mean = tl.load(mean_ptr + rows, mask=mask_m, other=0.0)[:, None]
    sum_g = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    sum_gx = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    first = tl.program_id(1) * tiles
    last = tl.minimum(first + tiles, tl.cdiv(n, BLOCK_N))
    for tile in tl.range(first, last, num_stages=STAGES):
        # A product with BLOCK_N: so it is known that columns may be loaded as vectors.
        offs_n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        mask = mask_m[:, None] & (offs_n < n)[None, :]
        dy_offs = offsets(row, offs_n, stride_dym, stride_dyn, ADJACENT, VECTOR)
        x_offs = offsets(row, offs_n, stride_xm, stride_xn, ADJACENT, VECTOR)
        g = tl.load(dy_ptr + dy_offs, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + x_offs, mask=mask, other=0.0).to(tl.float32)
        if weight_ptr is not None:
            g *= weight_of(weight_ptr, offs_n, n, ZERO_CENTRED)
        if mean_ptr is None:
            x_hat = x * rstd
        else:
            x_hat = (x - mean) * rstd
        sum_g += g
        sum_gx += g * x_hat
    offs = tl.program_id(1).to(tl.int64) * m + rows
    tl.store(sum_g_ptr + offs, tl.sum(sum_g, axis=1), mask=mask_m)
    tl.store(sum_gx_ptr + offs, tl.sum(sum_gx, axis=1), mask=mask_m)


def _columns(
    dy_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, dresidual_ptr, sum_g_ptr, sum_gx_ptr, dx_ptr,
    dweight_part_ptr, dbias_part_ptr, m, n_vectors, chunks, stride_dym, stride_dyn, stride_xm,
    stride_xn, stride_rm, stride_rn, inverse_n,
    ZERO_CENTRED: tl.constexpr, ADJACENT: tl.constexpr, VECTOR: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_S: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    n = n_vectors * VECTOR
    offs_m = tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_s = tl.arange(0, BLOCK_S)
    mask_n = offs_n[None, :] < n
    if weight_ptr is not None:
        weight = weight_of(weight_ptr, offs_n, n, ZERO_CENTRED)
    dweight = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    dbias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    step = tl.num_programs(1) * BLOCK_M
    for start in tl.range(tl.program_id(1) * BLOCK_M, m, step, num_stages=STAGES):
        rows = m - 1 - (start + offs_m)  # backwards: the rows read last by _sums come first
        mask_m = rows >= 0
        row = rows.to(tl.int64)[:, None]
        mask = mask_m[:, None] & mask_n
        rstd = tl.load(rstd_ptr + rows, mask=mask_m, other=0.0)[:, None]
        sum_offs = offs_s.to(tl.int64)[None, :] * m + row
        sum_mask = mask_m[:, None] & (offs_s < chunks)[None, :]
        c2 = tl.load(sum_gx_ptr + sum_offs, mask=sum_mask, other=0.0)
        c2 = tl.sum(c2, axis=1)[:, None] * inverse_n
        dy_offs = offsets(row, offs_n, stride_dym, stride_dyn, ADJACENT, VECTOR)
        x_offs = offsets(row, offs_n, stride_xm, stride_xn, ADJACENT, VECTOR)
        dy = tl.load(dy_ptr + dy_offs, mask=mask, other=0.0, eviction_policy="evict_first")
        x = tl.load(x_ptr + x_offs, mask=mask, other=0.0, eviction_policy="evict_first")
        dy = dy.to(tl.float32)
        g = dy
        if weight_ptr is not None:
            g = dy * weight
        if mean_ptr is None:
            x_hat = x.to(tl.float32) * rstd
            dx = (g - x_hat * c2) * rstd
        else:
            mean = tl.load(mean_ptr + rows, mask=mask_m, other=0.0)[:, None]
            c1 = tl.load(sum_g_ptr + sum_offs, mask=sum_mask, other=0.0)
            c1 = tl.sum(c1, axis=1)[:, None] * inverse_n
            x_hat = (x.to(tl.float32) - mean) * rstd
            dx = (g - (x_hat * c2 + c1)) * rstd
        if dresidual_ptr is not None:
            r_offs = offsets(row, offs_n, stride_rm, stride_rn, ADJACENT, VECTOR)
            dx += tl.load(dresidual_ptr + r_offs, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx_ptr + row * n + offs_n[None, :], dx.to(dx_ptr.dtype.element_ty), mask=mask)
        if dweight_part_ptr is not None:
            dweight += dy * x_hat
        if dbias_part_ptr is not None:
            dbias += dy
    leave_partials(dweight_part_ptr, dbias_part_ptr, dweight, dbias, tl.program_id(1), offs_n, n)


_sums_kernel, _columns_kernel = compiled_twice(_sums), compiled_twice(_columns)


@dataclass(frozen=True, slots=True)
class ColumnOwningCut:
    """The split of the work: tiles of both kernels, and programs for each SM.

    sums_n, sums_m        columns and rows of a tile of the first kernel
    columns_n, columns_m  columns and rows of a tile of the second kernel
    num_warps, num_stages  of both kernels
    programs_per_sm       number of programs of each kernel for each SM
    """

    sums_n: int
    sums_m: int
    columns_n: int
    columns_m: int
    num_warps: int
    num_stages: int
    programs_per_sm: int


# By element size: the best over 4096 x 16384, 2048 x 65536 and 128 x 65536 of 64 cuts each, on an
# H200, triton 3.6, 2026-11-21: docs/measured.md.
_CUTS = {
    2: ColumnOwningCut(2048, 1, 1024, 2, 4, 3, 2),
    4: ColumnOwningCut(2048, 1, 512, 2, 4, 2, 4),
}
# An interpreter pays for each program and trip, whatever their size.
_INTERPRETED_CUT = ColumnOwningCut(1024, 4, 1024, 4, 4, 1, 4)
_INTERPRETED_WIDE_CUT = ColumnOwningCut(4096, 4, 4096, 4, 4, 1, 4)
_MOST_CHUNKS = 64
_WIDEST = 2**30


def column_owning(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    *,
    aligned: bool,
    device_independent: bool = False,
    cut: ColumnOwningCut | None = None,
    **given: Unpack[Given],
) -> Gradients:
    """Return dx like x and packed, dweight and dbias [n] in the weight's dtype.

    The gradients are bitwise repeatable. Workspace: 8 bytes for each row and chunk (at most 64),
    and 8 n bytes for each split of the rows.

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
    """
    call = BackwardCall(dy, x, weight, mean, rstd, aligned=aligned, **given)
    m, n, device = call.m, call.n, x.device
    cut = cut or requested_cut(_CUTS.values())
    if cut is None:
        interpreted = _INTERPRETED_CUT if n <= 8192 else _INTERPRETED_WIDE_CUT
        cut = interpreted if device.type == "cpu" else _CUTS[x.element_size()]
    target = multiprocessors(device, device_independent=device_independent) * cut.programs_per_sm
    row_tiles = cdiv(m, cut.sums_m)
    column_tiles = cdiv(n, cut.sums_n)
    wanted = cdiv(target, max(row_tiles, 1))
    tiles_each = cdiv(column_tiles, min(wanted, column_tiles, _MOST_CHUNKS))
    chunks = cdiv(column_tiles, tiles_each)
    owners = cdiv(n, cut.columns_n)
    splits = min(cdiv(target, owners), cdiv(m, cut.columns_m))
    call.sum_in(splits)
    if m:
        sum_g = torch.empty((chunks, m), dtype=torch.float32, device=device)
        sums = {"sum_g_ptr": sum_g, "sum_gx_ptr": torch.empty_like(sum_g)}
        call.recorded.scratch += sums.values()
        options = {"num_warps": cut.num_warps}
        call.launch(
            _sums_kernel, (row_tiles, chunks), options, **sums, tiles=tiles_each,
            BLOCK_M=cut.sums_m, BLOCK_N=cut.sums_n, STAGES=cut.num_stages,
        )  # fmt: skip
        call.launch(
            _columns_kernel, (owners, splits), options, **sums, chunks=chunks,
            BLOCK_M=cut.columns_m, BLOCK_N=cut.columns_n, BLOCK_S=next_power_of_2(chunks),
            STAGES=cut.num_stages,
        )  # fmt: skip
    return call.gradients()


# A row's sums are split over as many programs as the rows leave idle.
_DECLARED = Numerics(batch_invariant=False, device_independent=False)


def _configurations(case: Case, sm: int) -> tuple[str, ...]:
    del case, sm
    return tuple(named(_CUTS.values()))


@kernel(
    LAYER_NORM_BACKWARD,
    domain(16, _WIDEST),
    numerics=_DECLARED,
    priority=20,
    same_code_as="column_owning",
    configurations=_configurations,
)
def column_owning_aligned(dy, x, weight, mean, rstd, **options):
    """Columns owned by programs, 16-byte loads."""
    return column_owning(dy, x, weight, mean, rstd, aligned=True, **options)


@kernel(
    LAYER_NORM_BACKWARD,
    domain(1, _WIDEST),
    numerics=_DECLARED,
    priority=10,
    name="column_owning",
    configurations=_configurations,
)
def _column_owning_any(dy, x, weight, mean, rstd, **options):
    """Columns owned by programs, any strides and offsets."""
    return column_owning(dy, x, weight, mean, rstd, aligned=False, **options)
