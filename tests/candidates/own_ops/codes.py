"""Right kernels of scaled quantisation to fp8, a row or a block of one a program.

tests/mutants/own_ops.py makes wrong ones of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_workbench import QUANTISE_BLOCKS, QUANTISE_ROWS, Domain, kernel

_DOMAIN = Domain(dtypes=(torch.float32, torch.float16, torch.bfloat16), sm=(89, 999))


@triton.jit
def row_of(ptr, row, stride_m, stride_n, offs, mask):
    """A row in fp32."""
    return tl.load(ptr + row * stride_m + offs * stride_n, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def codes_kernel(x_ptr, codes_ptr, scales_ptr, width, eps, xm, xn, BLOCK: tl.constexpr):
    """`width` columns of a row; the cast saturates, and rounds to nearest even."""
    row, block, blocks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    offs = tl.arange(0, BLOCK)
    mask = offs < width
    x = row_of(x_ptr + block * width * xn, row, xm, xn, offs, mask)
    largest = tl.max(tl.abs(x), 0)
    scale = tl.maximum(largest, eps) * (1.0 / 448.0)  # as PyTorch divides by a number on a GPU
    has_nan = tl.max((x != x).to(tl.int32), 0) > 0  # noqa: PLR0124  # NaN alone isn't itself
    scale = tl.where(has_nan, float("nan"), scale)
    inverse = 1.0 / scale
    code = x * inverse
    at = row * blocks + block
    tl.store(codes_ptr + at * width + offs, code.to(tl.float8e4nv), mask=mask)
    tl.store(scales_ptr + at, scale)


def _quantised(x, width, eps, scales):
    codes = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    if x.shape[0]:
        codes_kernel[(x.shape[0], x.shape[1] // width)](
            *(x, codes, scales, width, eps, *x.stride()),
            BLOCK=triton.next_power_of_2(width),
        )
    return codes, scales


@kernel(QUANTISE_ROWS, _DOMAIN, name="rows")
def rows(x, *, eps):
    """codes, scales."""
    m, n = x.shape
    return _quantised(x, n, eps, torch.empty(m, dtype=torch.float32, device=x.device))


@kernel(QUANTISE_BLOCKS, _DOMAIN, name="rows")
def blocks(x, *, eps):
    """codes, scales."""
    m, n = x.shape
    return _quantised(x, 128, eps, torch.empty(m, n // 128, dtype=torch.float32, device=x.device))
