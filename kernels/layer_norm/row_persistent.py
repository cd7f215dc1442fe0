"""Layer-norm backward by rows: persistent programs keep whole rows in registers.

A program takes tiles of BLOCK_M rows, a grid apart. x and dy are read once and stay in registers;
c1 = mean(g) and c2 = mean(g x^) are reductions inside the program; dx is stored at once, and
dweight and dbias gather in fp32 registers until the program stores one partial row of each. A
second kernel folds the partials (finalize.py). No atomics: bitwise repeatable on one device, and
on every device where the number of programs is fixed (device_independent).

A block's columns are a power of 2. A row slightly wider than a power of 2 takes two blocks.

Rows that aren't multiples of 16 bytes: a program's rows lie a multiple of as many rows apart as 16
bytes have elements, so all of them begin equally far past such a multiple, and the program loads
whole vectors from there on. A second block has the columns before and after them (SHIFTED).

Design after the two-stage fast layer norm of NVIDIA's apex; the formula is in oracles/layer_norm.
Bytes beyond the least: 16 n for each program. Its limit is registers, about six for an element.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Unpack

import triton
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


@triton.jit
def _at(ptr, offs, first, WHOLE: tl.constexpr):
    """Return addresses of columns from `first` on; WHOLE: that of `first` is a multiple of 16."""
    addresses = ptr + first + offs
    if WHOLE:
        addresses = tl.multiple_of(addresses, [1, 16])  # where they are made, else it's forgotten
    return addresses


@triton.jit
def _read(
    dy_ptr, x_ptr, row, offs_n, first, mask, stride_dym, stride_dyn, stride_xm, stride_xn,
    ADJACENT: tl.constexpr, VECTOR: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Load dy and x of a block of columns, the offs_n from `first` on."""
    dy_offs = offsets(row, offs_n, stride_dym, stride_dyn, ADJACENT, VECTOR)
    x_offs = offsets(row, offs_n, stride_xm, stride_xn, ADJACENT, VECTOR)
    dys, xs = _at(dy_ptr, dy_offs, first, WHOLE), _at(x_ptr, x_offs, first, WHOLE)
    dy = tl.load(dys, mask=mask, other=0.0, eviction_policy="evict_first")
    x = tl.load(xs, mask=mask, other=0.0, eviction_policy="evict_first")
    return dy, x


@triton.jit
def _normalised(dy, x, weight, mean, rstd, inverse_n, ONE_ROW: tl.constexpr):
    """Return dy, x^ and g of a block in fp32, and its parts of c1 and c2.

    mean: None for RMS norm. ONE_ROW: the parts are numbers.
    """
    dy = dy.to(tl.float32)
    if mean is None:
        x_hat = x.to(tl.float32) * rstd
    else:
        x_hat = (x.to(tl.float32) - mean) * rstd
    g = dy
    if weight is not None:
        g = dy * weight
    if ONE_ROW:
        c2 = tl.sum(g * x_hat) * inverse_n
        c1 = tl.sum(g) * inverse_n
    else:
        c2 = tl.sum(g * x_hat, axis=1)[:, None] * inverse_n
        c1 = tl.sum(g, axis=1)[:, None] * inverse_n
    return dy, x_hat, g, c1, c2


@triton.jit
def _store_dx(
    dx_ptr, dresidual_ptr, g, x_hat, c1, c2, mean, rstd, row, offs_n, first, n, mask, stride_rm,
    stride_rn, ADJACENT: tl.constexpr, VECTOR: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Store dx of a block."""
    if mean is None:
        dx = (g - x_hat * c2) * rstd
    else:
        dx = (g - (x_hat * c2 + c1)) * rstd
    if dresidual_ptr is not None:
        r_offs = offsets(row, offs_n, stride_rm, stride_rn, ADJACENT, VECTOR)
        residuals = _at(dresidual_ptr, r_offs, first, WHOLE)
        dx += tl.load(residuals, mask=mask, other=0.0).to(tl.float32)
    dxs = _at(dx_ptr + row * n, offs_n[None, :], first, WHOLE)
    tl.store(dxs, dx.to(dx_ptr.dtype.element_ty), mask=mask)


def _rows(
    dy_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, dresidual_ptr, dx_ptr, dweight_part_ptr,
    dbias_part_ptr, m, n_vectors, stride_dym, stride_dyn, stride_xm, stride_xn, stride_rm,
    stride_rn, inverse_n,
    ZERO_CENTRED: tl.constexpr, ADJACENT: tl.constexpr, VECTOR: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, REST: tl.constexpr, STAGES: tl.constexpr, SHIFTED: tl.constexpr,
):  # fmt: skip
    # A row is a block of BLOCK_N columns and, where REST isn't 0, another of REST columns.
    # n arrives divided by VECTOR, as strides do: see `offsets`.
    # SHIFTED: the elements of 16 bytes, and then programs are a multiple of them; else 0. A
    # program's rows, a grid apart, then begin equally far past a multiple of 16 bytes: the first
    # block has their whole vectors, and the second one the columns before and after these.
    tl.static_assert(BLOCK_M == 1 or not SHIFTED)
    n = n_vectors * VECTOR
    offs_m = tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    first = 0
    columns = n
    if SHIFTED:
        address = (x_ptr + tl.program_id(0).to(tl.int64) * stride_xm).to(tl.int64)
        first = (-(address // (16 // SHIFTED)) & (SHIFTED - 1)).to(tl.int32)
        columns = (n - first) // SHIFTED * SHIFTED
    mask_n = offs_n[None, :] < columns
    weight = None
    if weight_ptr is not None:
        weight = weight_of(weight_ptr, first + offs_n, first + columns, ZERO_CENTRED)
    dweight = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    dbias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if REST:
        rest_n = BLOCK_N + tl.arange(0, REST)
        if SHIFTED:
            lanes = tl.arange(0, REST)
            rest_n = tl.where(lanes < first, lanes, n)
            rest_n = tl.where(lanes < SHIFTED, rest_n, first + columns + lanes - SHIFTED)
        rest_weight = None
        if weight_ptr is not None:
            rest_weight = weight_of(weight_ptr, rest_n, n, ZERO_CENTRED)
        rest_dweight = tl.zeros((BLOCK_M, REST), tl.float32)
        rest_dbias = tl.zeros((BLOCK_M, REST), tl.float32)
    step = tl.num_programs(0) * BLOCK_M
    for start in tl.range(tl.program_id(0) * BLOCK_M, m, step, num_stages=STAGES):
        rows = start + offs_m
        mask_m = rows < m
        row = rows.to(tl.int64)[:, None]
        mask = mask_m[:, None] & mask_n
        dy, x = _read(
            dy_ptr, x_ptr, row, offs_n, first, mask, stride_dym, stride_dyn, stride_xm, stride_xn,
            ADJACENT, VECTOR, SHIFTED != 0,
        )  # fmt: skip
        if REST:
            rest_mask = mask_m[:, None] & (rest_n[None, :] < n)
            rest_dy, rest_x = _read(
                dy_ptr, x_ptr, row, rest_n, 0, rest_mask, stride_dym, stride_dyn, stride_xm,
                stride_xn, ADJACENT, VECTOR, False,
            )  # fmt: skip
        rstd = tl.load(rstd_ptr + rows, mask=mask_m, other=0.0)[:, None]
        mean = None
        if mean_ptr is not None:
            mean = tl.load(mean_ptr + rows, mask=mask_m, other=0.0)[:, None]
        dy, x_hat, g, c1, c2 = _normalised(dy, x, weight, mean, rstd, inverse_n, False)
        if REST:
            rest_dy, rest_x_hat, rest_g, rest_c1, rest_c2 = _normalised(
                rest_dy, rest_x, rest_weight, mean, rstd, inverse_n, SHIFTED != 0
            )
            c1 += rest_c1
            c2 += rest_c2
            rest_c1 = c1
            rest_c2 = c2
            if SHIFTED:  # numbers have no layout, which would spread from one block to the other
                rest_c1 = tl.sum(c1)
                rest_c2 = tl.sum(c2)
        _store_dx(
            dx_ptr, dresidual_ptr, g, x_hat, c1, c2, mean, rstd, row, offs_n, first, n, mask,
            stride_rm, stride_rn, ADJACENT, VECTOR, SHIFTED != 0,
        )  # fmt: skip
        if REST:
            _store_dx(
                dx_ptr, dresidual_ptr, rest_g, rest_x_hat, rest_c1, rest_c2, mean, rstd, row,
                rest_n, 0, n, rest_mask, stride_rm, stride_rn, ADJACENT, VECTOR, False,
            )  # fmt: skip
        if dweight_part_ptr is not None:
            dweight += dy * x_hat
            if REST:
                rest_dweight += rest_dy * rest_x_hat
        if dbias_part_ptr is not None:
            dbias += dy
            if REST:
                rest_dbias += rest_dy
    part = tl.program_id(0)
    offs_n += first
    leave_partials(
        dweight_part_ptr, dbias_part_ptr, dweight, dbias, part, offs_n, n, first + columns
    )  # fmt: skip
    if REST:
        leave_partials(dweight_part_ptr, dbias_part_ptr, rest_dweight, rest_dbias, part, rest_n, n)


_rows_kernel = compiled_twice(_rows)


@dataclass(frozen=True, slots=True)
class RowTile:
    """The tiling of rows: rows of a tile, warps, pipeline stages, programs for each SM.

    blocks: number of blocks of a row, 1 or 2; see `_blocks`.
    """

    block_m: int
    num_warps: int
    num_stages: int
    programs_per_sm: int
    blocks: int = 1


# By element size, by how rows are loaded, and by the widest row of a tile: "aligned" rows,
# "shifted" ones by whole vectors from a shifted start, and others an element at a time, where
# pipelining costs more than it hides.
# The fastest of 8 to 20 tiles each on an H200, triton 3.6, 2026-11-21, and of one block and two of
# 4 to 12, 2026-11-25: docs/measured.md. On an H200 rows of 6144 in fp32 take as long either way; in
# one block three stages of them don't fit on sm 86, 89 and 120, so that shifted rows have two.
_TILES: dict[tuple[int, str], dict[int, RowTile]] = {
    (2, "aligned"): {
        64: RowTile(64, 4, 3, 2),
        256: RowTile(16, 4, 3, 2),
        1024: RowTile(4, 4, 3, 2),
        2048: RowTile(2, 4, 3, 2),
        3072: RowTile(1, 4, 3, 3, blocks=2),
        4096: RowTile(1, 4, 3, 2),
        5120: RowTile(1, 4, 3, 2, blocks=2),
        8192: RowTile(1, 8, 3, 1),
    },
    (4, "aligned"): {
        64: RowTile(64, 8, 3, 1),
        256: RowTile(8, 4, 3, 2),
        1024: RowTile(2, 4, 3, 2),
        2048: RowTile(1, 4, 3, 2),
        3072: RowTile(1, 4, 3, 2, blocks=2),
        4096: RowTile(1, 8, 3, 1),
        6144: RowTile(1, 8, 3, 1, blocks=2),
        8192: RowTile(1, 8, 3, 1),
    },
    (2, "shifted"): {
        1024: RowTile(1, 2, 3, 6),
        2048: RowTile(1, 2, 3, 4),
        4096: RowTile(1, 4, 3, 2),
        8192: RowTile(1, 8, 3, 1),
    },
    (4, "shifted"): {
        1024: RowTile(1, 4, 3, 3),
        2048: RowTile(1, 4, 3, 2),
        4096: RowTile(1, 8, 3, 1),
        8192: RowTile(1, 8, 2, 1),
    },
    (2, "any"): {
        64: RowTile(32, 4, 1, 4),
        256: RowTile(16, 4, 1, 2),
        1024: RowTile(4, 4, 1, 2),
        2048: RowTile(2, 4, 1, 2),
        4096: RowTile(1, 8, 1, 2),
        5120: RowTile(1, 4, 1, 2, blocks=2),
        8192: RowTile(1, 8, 1, 1),
    },
    (4, "any"): {
        64: RowTile(32, 4, 1, 4),
        256: RowTile(8, 4, 1, 2),
        1024: RowTile(2, 4, 1, 2),
        2048: RowTile(1, 4, 1, 2),
        4096: RowTile(1, 4, 1, 2),
        8192: RowTile(1, 8, 1, 1),
    },
}
WIDEST = 8192
_NARROWEST_BLOCK = 16
_NARROWEST_SHIFTED = 512  # a tile of such rows has one row


def _tiles(itemsize: int, n: int, *, aligned: bool, shifted: bool = True) -> tuple[RowTile, ...]:
    """Return the tiles that fit n columns, the preferred one first."""
    kinds = ["aligned"] if aligned else ["shifted", "any"] if shifted else ["any", "shifted"]
    return tuple(
        tile
        for kind in kinds
        for width, tile in _TILES[itemsize, kind].items()
        if width >= (n // (16 // itemsize) * (16 // itemsize) if kind == "shifted" else n)
        and (kind != "shifted" or n >= _NARROWEST_SHIFTED)
    )


def _blocks(n: int, blocks: int) -> tuple[int, int]:
    """Return the columns of a row's one or two blocks, each a power of 2; 0: no second block.

    The first of two blocks is full. The second has at least 1,024 columns if the first has as many:
    with 512 after 2,048, rows of 2,560 took 131 us on an H200, and with 1,024 104.
    """
    whole = max(_NARROWEST_BLOCK, next_power_of_2(n))
    if blocks == 1 or whole == _NARROWEST_BLOCK:
        return whole, 0
    first = whole // 2
    return first, max(min(first, 1024), next_power_of_2(n - first))


def _configurations(case: Case, sm: int, *, aligned: bool) -> tuple[str, ...]:
    del sm
    return tuple(named(_tiles(case.dtype.itemsize, case.size("n"), aligned=aligned)))


def row_persistent(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    *,
    aligned: bool,
    device_independent: bool = False,
    tile: RowTile | None = None,
    **given: Unpack[Given],
) -> Gradients:
    """Return dx like x and packed, dweight and dbias [n] in the weight's dtype.

    The gradients are bitwise repeatable. Workspace: 8 n bytes for each program.

    Args:
        dy: gradient of the output, [m, n].
        x: input, [m, n].
        weight: [n], or None.
        mean: [m] in fp32; None for RMS norm.
        rstd: [m] in fp32.
        aligned: every pointer and row is a multiple of 16 bytes, and columns are adjacent.
        device_independent: split alike on every device.
        tile: replaces the tuned tile.
        **given: see OPTIONS in oracles/layer_norm.
    """
    call = BackwardCall(dy, x, weight, mean, rstd, aligned=aligned, **given)
    tiles = _tiles(x.element_size(), call.n, aligned=call.aligned, shifted=call.alike)
    cut = tile or requested_cut(tiles) or tiles[0]
    block_n, rest = _blocks(call.n, cut.blocks)
    cores = multiprocessors(x.device, device_independent=device_independent)
    programs = min(cdiv(call.m, cut.block_m), cores * cut.programs_per_sm)
    shifted = 0
    if call.alike and cut.block_m == cut.blocks == 1 and call.n >= _NARROWEST_SHIFTED:
        shifted = 16 // x.element_size()
        block_n, rest = next_power_of_2(call.n // shifted * shifted), 2 * shifted
        most = max(1, cores * cut.programs_per_sm // shifted)
        programs = min(cdiv(call.m, shifted), most) * shifted
    call.sum_in(programs)
    if programs:
        options = {"num_warps": cut.num_warps}
        call.launch(
            _rows_kernel, (programs,), options,
            BLOCK_M=cut.block_m, BLOCK_N=block_n, REST=rest, STAGES=cut.num_stages, SHIFTED=shifted,
        )  # fmt: skip
    return call.gradients()


# dweight has a partial for each program; with the option device_independent it doesn't show.
_DECLARED = Numerics(batch_invariant=True, device_independent=False)
# The order of a row's sums follows from its address modulo 16 bytes.
_DECLARED_ANY = replace(_DECLARED, batch_invariant=False)


@kernel(
    LAYER_NORM_BACKWARD,
    domain(16, WIDEST),
    numerics=_DECLARED,
    priority=40,
    same_code_as="row_persistent",
    configurations=partial(_configurations, aligned=True),
)
def row_persistent_aligned(dy, x, weight, mean, rstd, **options):
    """Rows held in registers, 16-byte loads."""
    return row_persistent(dy, x, weight, mean, rstd, aligned=True, **options)


@kernel(
    LAYER_NORM_BACKWARD,
    domain(1, WIDEST),
    numerics=_DECLARED_ANY,
    priority=30,
    name="row_persistent",
    configurations=partial(_configurations, aligned=False),
)
def _row_persistent_any(dy, x, weight, mean, rstd, **options):
    """Rows held in registers, any strides and offsets."""
    return row_persistent(dy, x, weight, mean, rstd, aligned=False, **options)
