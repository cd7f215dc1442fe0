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

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.device import multiprocessors, on_device_of
from kernels.layer_norm.finalize import finalize, gradient_like
from kernels.layer_norm.matrices import (
    as_matrix,
    packed_vector,
    packed_vector_of,
)
from kernels.registry import Domain, kernel
from oracles import LAYER_NORM_BACKWARD
from oracles.op import Numerics


def _sums(
    dy_ptr,
    x_ptr,
    weight_ptr,
    mean_ptr,
    rstd_ptr,
    sum_g_ptr,
    sum_gx_ptr,
    m,
    n_vectors,
    tiles,
    stride_dym,
    stride_dyn,
    stride_xm,
    stride_xn,
    ZERO_CENTRED: tl.constexpr,
    ADJACENT: tl.constexpr,
    VECTOR: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):
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
        if ADJACENT:
            dy_offs = row * (stride_dym * VECTOR) + offs_n[None, :]
            x_offs = row * (stride_xm * VECTOR) + offs_n[None, :]
        else:
            dy_offs = row * stride_dym + offs_n.to(tl.int64)[None, :] * stride_dyn
            x_offs = row * stride_xm + offs_n.to(tl.int64)[None, :] * stride_xn
        g = tl.load(dy_ptr + dy_offs, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + x_offs, mask=mask, other=0.0).to(tl.float32)
        if weight_ptr is not None:
            weight = tl.load(weight_ptr + offs_n, mask=offs_n < n, other=0.0).to(tl.float32)
            if ZERO_CENTRED:
                weight += 1.0
            g *= weight[None, :]
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
    dy_ptr,
    x_ptr,
    weight_ptr,
    mean_ptr,
    rstd_ptr,
    dresidual_ptr,
    sum_g_ptr,
    sum_gx_ptr,
    dx_ptr,
    dweight_part_ptr,
    dbias_part_ptr,
    m,
    n_vectors,
    chunks,
    stride_dym,
    stride_dyn,
    stride_xm,
    stride_xn,
    stride_rm,
    stride_rn,
    inverse_n,
    ZERO_CENTRED: tl.constexpr,
    ADJACENT: tl.constexpr,
    VECTOR: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_S: tl.constexpr,
    STAGES: tl.constexpr,
):
    n = n_vectors * VECTOR
    offs_m = tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_s = tl.arange(0, BLOCK_S)
    mask_n = offs_n[None, :] < n
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + offs_n, mask=offs_n < n, other=0.0).to(tl.float32)
        if ZERO_CENTRED:
            weight += 1.0
        weight = weight[None, :]
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
        if ADJACENT:
            dy_offs = row * (stride_dym * VECTOR) + offs_n[None, :]
            x_offs = row * (stride_xm * VECTOR) + offs_n[None, :]
        else:
            dy_offs = row * stride_dym + offs_n.to(tl.int64)[None, :] * stride_dyn
            x_offs = row * stride_xm + offs_n.to(tl.int64)[None, :] * stride_xn
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
            if ADJACENT:
                r_offs = row * (stride_rm * VECTOR) + offs_n[None, :]
            else:
                r_offs = row * stride_rm + offs_n.to(tl.int64)[None, :] * stride_rn
            dx += tl.load(dresidual_ptr + r_offs, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx_ptr + row * n + offs_n[None, :], dx.to(dx_ptr.dtype.element_ty), mask=mask)
        if dweight_part_ptr is not None:
            dweight += dy * x_hat
        if dbias_part_ptr is not None:
            dbias += dy
    part_offs = tl.program_id(1).to(tl.int64) * n + offs_n
    if dweight_part_ptr is not None:
        tl.store(dweight_part_ptr + part_offs, tl.sum(dweight, axis=0), mask=offs_n < n)
    if dbias_part_ptr is not None:
        tl.store(dbias_part_ptr + part_offs, tl.sum(dbias, axis=0), mask=offs_n < n)


_STRIDES = ["stride_dym", "stride_dyn", "stride_xm", "stride_xn"]
_SUMS_SIZES = ["m", "n_vectors", "tiles", *_STRIDES]
_COLUMNS_SIZES = ["m", "n_vectors", "chunks", *_STRIDES, "stride_rm", "stride_rn", "inverse_n"]
_STATISTICS = ["mean_ptr", "rstd_ptr"]
_INPUTS = ["dy_ptr", "x_ptr", "weight_ptr", *_STATISTICS]
_sums_aligned = triton.jit(
    _sums, do_not_specialize=_SUMS_SIZES, do_not_specialize_on_alignment=_STATISTICS
)
_sums_any = triton.jit(_sums, do_not_specialize=_SUMS_SIZES, do_not_specialize_on_alignment=_INPUTS)
_columns_aligned = triton.jit(
    _columns, do_not_specialize=_COLUMNS_SIZES, do_not_specialize_on_alignment=_STATISTICS
)
_columns_any = triton.jit(
    _columns,
    do_not_specialize=_COLUMNS_SIZES,
    do_not_specialize_on_alignment=[*_INPUTS, "dresidual_ptr"],
)


@dataclass(frozen=True, slots=True)
class Cut:
    """How the work is split: tiles of both kernels, and programs for each SM.

    sums_n, sums_m        columns and rows of a tile of the first kernel
    columns_n, columns_m  columns and rows of a tile of the second
    num_warps, num_stages of both
    programs_per_sm       programs each kernel aims at
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
_CUTS = {2: Cut(2048, 1, 1024, 2, 4, 3, 2), 4: Cut(2048, 1, 512, 2, 4, 2, 4)}
# An interpreter pays for each program and trip, whatever their size.
_INTERPRETED_CUT = Cut(1024, 4, 1024, 4, 4, 1, 4)
_INTERPRETED_WIDE_CUT = Cut(4096, 4, 4096, 4, 4, 1, 4)
_MOST_CHUNKS = 64


def column_owning(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    *,
    aligned: bool,
    dresidual: Tensor | None = None,
    dweight: Tensor | None = None,
    dbias: Tensor | None = None,
    has_bias: bool = True,
    zero_centred: bool = False,
    device_independent: bool = False,
    cut: Cut | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """dx like x and packed, dweight and dbias [n] in the weight's dtype; see OPTIONS for the rest.

    aligned: every pointer and row is a multiple of 16 bytes, columns are adjacent. Bitwise
    repeatable. Workspace: 8 bytes for each row and chunk (at most 64), 8 n for each row split.
    """
    n = x.shape[-1]
    dy_rows, x_rows = as_matrix(dy), as_matrix(x)
    residual = None if dresidual is None else as_matrix(dresidual)
    m = x_rows.data.shape[0]
    device = x.device
    dx = torch.empty(x.shape, dtype=x.dtype, device=device)
    weight_vector, means, rstds = packed_vector(weight), packed_vector(mean), packed_vector_of(rstd)
    if cut is None:
        interpreted = _INTERPRETED_CUT if n <= 8192 else _INTERPRETED_WIDE_CUT
        cut = interpreted if device.type == "cpu" else _CUTS[x.element_size()]
    target = multiprocessors(device, device_independent=device_independent) * cut.programs_per_sm
    row_tiles = triton.cdiv(m, cut.sums_m)
    column_tiles = triton.cdiv(n, cut.sums_n)
    wanted = triton.cdiv(target, max(row_tiles, 1))
    tiles_each = triton.cdiv(column_tiles, min(wanted, column_tiles, _MOST_CHUNKS))
    chunks = triton.cdiv(column_tiles, tiles_each)
    owners = triton.cdiv(n, cut.columns_n)
    splits = min(triton.cdiv(target, owners), triton.cdiv(m, cut.columns_m))
    dweight_parts = dbias_parts = None
    if weight_vector is not None:
        dweight_parts = torch.empty((splits, n), dtype=torch.float32, device=device)
        if has_bias:
            dbias_parts = torch.empty_like(dweight_parts)
    if m:
        vector = 16 // x.element_size() if aligned else 1
        columns = {dy_rows.column, x_rows.column, 1 if residual is None else residual.column}
        sum_g = torch.empty((chunks, m), dtype=torch.float32, device=device)
        sum_gx = torch.empty_like(sum_g)
        sums, owned = (_sums_aligned, _columns_aligned) if aligned else (_sums_any, _columns_any)
        shared = {
            "ZERO_CENTRED": zero_centred,
            "ADJACENT": columns == {1},
            "VECTOR": vector,
            "STAGES": cut.num_stages,
            "num_warps": cut.num_warps,
        }
        strides = (dy_rows.row // vector, dy_rows.column, x_rows.row // vector, x_rows.column)
        sums[(row_tiles, chunks)](
            dy_rows.data,
            x_rows.data,
            weight_vector,
            means,
            rstds,
            sum_g,
            sum_gx,
            m,
            n // vector,
            tiles_each,
            *strides,
            BLOCK_M=cut.sums_m,
            BLOCK_N=cut.sums_n,
            **shared,
        )
        owned[(owners, splits)](
            dy_rows.data,
            x_rows.data,
            weight_vector,
            means,
            rstds,
            None if residual is None else residual.data,
            sum_g,
            sum_gx,
            dx,
            dweight_parts,
            dbias_parts,
            m,
            n // vector,
            chunks,
            *strides,
            0 if residual is None else residual.row // vector,
            0 if residual is None else residual.column,
            1.0 / n,
            BLOCK_M=cut.columns_m,
            BLOCK_N=cut.columns_n,
            BLOCK_S=triton.next_power_of_2(chunks),
            **shared,
        )
    if weight is None or dweight_parts is None:
        return dx, None, None
    accumulate = dweight is not None
    weight_gradient = gradient_like(weight, dweight)
    bias_gradient = gradient_like(weight, dbias) if has_bias else None
    finalize(dweight_parts, dbias_parts, weight_gradient, bias_gradient, accumulate=accumulate)
    return dx, weight_gradient, bias_gradient


# A row's sums are split over as many programs as the rows leave idle.
_DECLARED = Numerics(batch_invariant=False, device_independent=False)


def _domain(alignment: int) -> Domain:
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    return Domain(
        dtypes=dtypes,
        weight_dtypes=dtypes,
        alignment=alignment,
        # Both grids have row tiles in x or, as splits, few in y; a column's index is an int32.
        sizes={"m": (0, 2**31 - 2**20), "n": (1, 2**30)},
        features=frozenset(LAYER_NORM_BACKWARD.options),
    )


@kernel(LAYER_NORM_BACKWARD, _domain(16), numerics=_DECLARED, priority=20)
def column_owning_aligned(dy, x, weight, mean, rstd, **options):
    """Columns owned by programs, 16-byte loads."""
    with on_device_of(x):
        return column_owning(dy, x, weight, mean, rstd, aligned=True, **options)


@kernel(LAYER_NORM_BACKWARD, _domain(1), numerics=_DECLARED, priority=10, name="column_owning")
def _column_owning_any(dy, x, weight, mean, rstd, **options):
    """Columns owned by programs, any strides and offsets."""
    with on_device_of(x):
        return column_owning(dy, x, weight, mean, rstd, aligned=False, **options)
