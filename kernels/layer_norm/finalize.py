"""Fold fp32 partials [parts, n] of dweight and dbias in a fixed order, and cast them once.

Each program owns BLOCK_N columns, walks over the parts BLOCK_P at a time, and folds the tile's rows
in a fixed tree at the end, so the result depends only on the number of parts.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernel_workbench.kernels.integers import cdiv, next_power_of_2
from kernel_workbench.kernels.launch_plan import Launched


def _finalize(
    dweight_part_ptr,
    dbias_part_ptr,
    dweight_ptr,
    dbias_ptr,
    parts,
    n,
    ACCUMULATE: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_p = tl.arange(0, BLOCK_P)
    mask_n = offs_n < n
    dweight = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    dbias = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    for start in tl.range(0, parts, BLOCK_P):
        part = (start + offs_p).to(tl.int64)[:, None]
        mask = (part < parts) & mask_n[None, :]
        offs = part * n + offs_n[None, :]
        dweight += tl.load(dweight_part_ptr + offs, mask=mask, other=0.0)
        if dbias_part_ptr is not None:
            dbias += tl.load(dbias_part_ptr + offs, mask=mask, other=0.0)
    total = tl.sum(dweight, axis=0)
    if ACCUMULATE:
        total += tl.load(dweight_ptr + offs_n, mask=mask_n, other=0.0).to(tl.float32)
    tl.store(dweight_ptr + offs_n, total.to(dweight_ptr.dtype.element_ty), mask=mask_n)
    if dbias_part_ptr is not None:
        total = tl.sum(dbias, axis=0)
        if ACCUMULATE:
            total += tl.load(dbias_ptr + offs_n, mask=mask_n, other=0.0).to(tl.float32)
        tl.store(dbias_ptr + offs_n, total.to(dbias_ptr.dtype.element_ty), mask=mask_n)


_finalize_kernel = triton.jit(
    _finalize,
    do_not_specialize=["parts"],
    do_not_specialize_on_alignment=["dweight_ptr", "dbias_ptr"],
)


def finalize(
    dweight_parts: Tensor,
    dbias_parts: Tensor | None,
    dweight: Tensor,
    dbias: Tensor | None,
    *,
    accumulate: bool,
) -> Launched:
    """Fold fp32 partials [parts, n] into dweight and dbias [n], or add to these if `accumulate`.

    Deterministic: the order of additions depends only on `parts`.
    """
    parts, n = dweight_parts.shape
    # 32 columns are one 128-byte line of a part; below 4096 columns fewer keep more SMs busy. Where
    # parts are few a program takes more columns, as long as there are two programs for each SM of
    # an H200. An interpreter pays for each program, whatever its width.
    if dweight.device.type == "cpu":
        block_p, block_n, warps = 16, 1024, 8
    else:
        # With many parts and columns 128 parts at a time take 1 us less than 64.
        many = n >= 4096 and parts > 128
        block_p = 128 if many else min(64, next_power_of_2(max(parts, 1)))
        warps = 4 if many else 8
        line = 32 if n >= 4096 else 16
        block_n = max(line, min(line * 64 // block_p, next_power_of_2(n // 264)))
    grid = (cdiv(n, block_n),)
    arguments = dweight_parts, dbias_parts, dweight, dbias, parts, n, accumulate, block_p, block_n
    compiled = _finalize_kernel[grid](*arguments, num_warps=warps)
    return Launched(_finalize_kernel, compiled, grid, arguments)
