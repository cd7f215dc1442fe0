"""Layer-norm backward, a row at a time: persistent programs, each holding whole rows in registers.

A program takes tiles of BLOCK_M rows, a grid apart. x and dy are read once and stay in registers;
c1 = mean(g) and c2 = mean(g x^) are reductions inside the program; dx is stored at once, and
dweight and dbias gather in fp32 registers until the program stores one partial row of each. A
second kernel folds the partials (finalize.py). No atomics: bitwise repeatable on one device, and
on every device where the number of programs is fixed (device_independent).

Design after the two-stage fast layer norm of NVIDIA's apex; the formula is in oracles/layer_norm.
Bytes beyond the least: 16 n for each program. Its limit is registers, about six for an element.
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


def _rows(
    dy_ptr,
    x_ptr,
    weight_ptr,
    mean_ptr,
    rstd_ptr,
    dresidual_ptr,
    dx_ptr,
    dweight_part_ptr,
    dbias_part_ptr,
    m,
    n_vectors,
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
    STAGES: tl.constexpr,
):
    # n and the row strides arrive divided by VECTOR: their product with it is known to be a
    # multiple, and so loads are VECTOR elements wide whatever the JIT could see of the number.
    n = n_vectors * VECTOR
    offs_m = tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    mask_n = offs_n[None, :] < n
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + offs_n, mask=offs_n < n, other=0.0).to(tl.float32)
        if ZERO_CENTRED:
            weight += 1.0
        weight = weight[None, :]
    dweight = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    dbias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    step = tl.num_programs(0) * BLOCK_M
    for start in tl.range(tl.program_id(0) * BLOCK_M, m, step, num_stages=STAGES):
        rows = start + offs_m
        mask_m = rows < m
        row = rows.to(tl.int64)[:, None]
        mask = mask_m[:, None] & mask_n
        if ADJACENT:
            dy_offs = row * (stride_dym * VECTOR) + offs_n[None, :]
            x_offs = row * (stride_xm * VECTOR) + offs_n[None, :]
        else:
            dy_offs = row * stride_dym + offs_n.to(tl.int64)[None, :] * stride_dyn
            x_offs = row * stride_xm + offs_n.to(tl.int64)[None, :] * stride_xn
        dy = tl.load(dy_ptr + dy_offs, mask=mask, other=0.0, eviction_policy="evict_first")
        x = tl.load(x_ptr + x_offs, mask=mask, other=0.0, eviction_policy="evict_first")
        rstd = tl.load(rstd_ptr + rows, mask=mask_m, other=0.0)[:, None]
        dy = dy.to(tl.float32)
        if mean_ptr is None:
            x_hat = x.to(tl.float32) * rstd
        else:
            mean = tl.load(mean_ptr + rows, mask=mask_m, other=0.0)[:, None]
            x_hat = (x.to(tl.float32) - mean) * rstd
        g = dy
        if weight_ptr is not None:
            g = dy * weight
        c2 = tl.sum(g * x_hat, axis=1)[:, None] * inverse_n
        if mean_ptr is None:
            dx = (g - x_hat * c2) * rstd
        else:
            c1 = tl.sum(g, axis=1)[:, None] * inverse_n
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
    part_offs = tl.program_id(0).to(tl.int64) * n + offs_n
    if dweight_part_ptr is not None:
        tl.store(dweight_part_ptr + part_offs, tl.sum(dweight, axis=0), mask=offs_n < n)
    if dbias_part_ptr is not None:
        tl.store(dbias_part_ptr + part_offs, tl.sum(dbias, axis=0), mask=offs_n < n)


_SIZES = [
    "m",
    "n_vectors",
    "stride_dym",
    "stride_dyn",
    "stride_xm",
    "stride_xn",
    "stride_rm",
    "stride_rn",
    "inverse_n",
]
_POINTERS = ["dy_ptr", "x_ptr", "weight_ptr", "mean_ptr", "rstd_ptr", "dresidual_ptr"]
_aligned_kernel = triton.jit(
    _rows, do_not_specialize=_SIZES, do_not_specialize_on_alignment=["mean_ptr", "rstd_ptr"]
)
_any_kernel = triton.jit(_rows, do_not_specialize=_SIZES, do_not_specialize_on_alignment=_POINTERS)


@dataclass(frozen=True, slots=True)
class Tile:
    """How the rows are cut: rows of a tile, warps, pipeline stages, programs for each SM."""

    block_m: int
    num_warps: int
    num_stages: int
    programs_per_sm: int


# By element size, by whether rows are aligned, and by the width of the tile (a power of 2 from n).
# The fastest of 8 to 20 tiles each on an H200, triton 3.6, 2026-11-21: docs/measured.md. Rows that
# aren't aligned are loaded an element at a time, and pipelining those costs more than it hides.
_TILES: dict[tuple[int, bool], dict[int, Tile]] = {
    (2, True): {
        64: Tile(64, 4, 3, 2),
        256: Tile(16, 4, 3, 2),
        1024: Tile(4, 4, 3, 2),
        2048: Tile(2, 4, 3, 2),
        4096: Tile(1, 4, 3, 2),
        8192: Tile(1, 8, 3, 1),
    },
    (4, True): {
        64: Tile(64, 8, 3, 1),
        256: Tile(8, 4, 3, 2),
        1024: Tile(2, 4, 3, 2),
        2048: Tile(1, 4, 3, 2),
        4096: Tile(1, 8, 3, 1),
        8192: Tile(1, 8, 3, 1),
    },
    (2, False): {
        64: Tile(32, 4, 1, 4),
        256: Tile(16, 4, 1, 2),
        1024: Tile(4, 4, 1, 2),
        2048: Tile(2, 4, 1, 2),
        4096: Tile(1, 8, 1, 2),
        8192: Tile(1, 8, 1, 1),
    },
    (4, False): {
        64: Tile(32, 4, 1, 4),
        256: Tile(8, 4, 1, 2),
        1024: Tile(2, 4, 1, 2),
        2048: Tile(1, 4, 1, 2),
        4096: Tile(1, 4, 1, 2),
        8192: Tile(1, 8, 1, 1),
    },
}
WIDEST = 8192
_NARROWEST_BLOCK = 16


def _tile(itemsize: int, block_n: int, *, aligned: bool) -> Tile:
    table = _TILES[itemsize, aligned]
    return table[min(width for width in table if width >= block_n)]


def row_persistent(
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
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """dx like x and packed, dweight and dbias [n] in the weight's dtype; see OPTIONS for the rest.

    aligned: every pointer and row is a multiple of 16 bytes, columns are adjacent. tile: the cut
    to use in place of the tuned one. Bitwise repeatable. Workspace: 8 n bytes for each program.
    """
    n = x.shape[-1]
    dy_rows, x_rows = as_matrix(dy), as_matrix(x)
    residual = None if dresidual is None else as_matrix(dresidual)
    m = x_rows.data.shape[0]
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    weight_vector = packed_vector(weight)
    block_n = max(_NARROWEST_BLOCK, triton.next_power_of_2(n))
    cut = tile or _tile(x.element_size(), block_n, aligned=aligned)
    cores = multiprocessors(x.device, device_independent=device_independent)
    programs = min(triton.cdiv(m, cut.block_m), cores * cut.programs_per_sm)
    dweight_parts = dbias_parts = None
    if weight_vector is not None:
        dweight_parts = torch.empty((programs, n), dtype=torch.float32, device=x.device)
        if has_bias:
            dbias_parts = torch.empty_like(dweight_parts)
    if programs:
        vector = 16 // x.element_size() if aligned else 1
        columns = {dy_rows.column, x_rows.column, 1 if residual is None else residual.column}
        launch = _aligned_kernel if aligned else _any_kernel
        launch[(programs,)](
            dy_rows.data,
            x_rows.data,
            weight_vector,
            packed_vector(mean),
            packed_vector_of(rstd),
            None if residual is None else residual.data,
            dx,
            dweight_parts,
            dbias_parts,
            m,
            n // vector,
            dy_rows.row // vector,
            dy_rows.column,
            x_rows.row // vector,
            x_rows.column,
            0 if residual is None else residual.row // vector,
            0 if residual is None else residual.column,
            1.0 / n,
            ZERO_CENTRED=zero_centred,
            ADJACENT=columns == {1},
            VECTOR=vector,
            BLOCK_M=cut.block_m,
            BLOCK_N=block_n,
            STAGES=cut.num_stages,
            num_warps=cut.num_warps,
        )
    if weight is None or dweight_parts is None:
        return dx, None, None
    accumulate = dweight is not None
    weight_gradient = gradient_like(weight, dweight)
    bias_gradient = gradient_like(weight, dbias) if has_bias else None
    finalize(dweight_parts, dbias_parts, weight_gradient, bias_gradient, accumulate=accumulate)
    return dx, weight_gradient, bias_gradient


# dweight has a partial for each program; with the option device_independent it doesn't show.
_DECLARED = Numerics(batch_invariant=True, device_independent=False)


def _domain(alignment: int) -> Domain:
    halves_and_single = (torch.float32, torch.float16, torch.bfloat16)
    return Domain(
        dtypes=halves_and_single,
        weight_dtypes=halves_and_single,
        alignment=alignment,
        sizes={"m": (0, 2**31 - 2**20), "n": (1, WIDEST)},
        features=frozenset(LAYER_NORM_BACKWARD.options),
    )


@kernel(LAYER_NORM_BACKWARD, _domain(16), numerics=_DECLARED, priority=40)
def row_persistent_aligned(dy, x, weight, mean, rstd, **options):
    """Rows held in registers, 16-byte loads."""
    with on_device_of(x):
        return row_persistent(dy, x, weight, mean, rstd, aligned=True, **options)


@kernel(LAYER_NORM_BACKWARD, _domain(1), numerics=_DECLARED, priority=30, name="row_persistent")
def _row_persistent_any(dy, x, weight, mean, rstd, **options):
    """Rows held in registers, any strides and offsets."""
    with on_device_of(x):
        return row_persistent(dy, x, weight, mean, rstd, aligned=False, **options)
