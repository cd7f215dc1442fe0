"""A right kernel of a matrix product, a tile a program.

tests/mutants/own_ops.py makes wrong ones of it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_workbench import MATMUL_FORWARD, Domain, Numerics, kernel

_DOMAIN = Domain(dtypes=(torch.float32, torch.float16, torch.bfloat16))


@triton.jit
def product_kernel(a_ptr, b_ptr, c_ptr, m, n, k, am, ak, bk, bn, TILE: tl.constexpr):
    """c = a b, of fp32 operands: a half's product is exact in fp32."""
    rows = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    acc = tl.zeros([TILE, TILE], tl.float32)
    for start in range(0, k, TILE):
        inner = (start + tl.arange(0, TILE)).to(tl.int64)
        a_mask = (rows[:, None] < m) & (inner[None, :] < k)
        b_mask = (inner[:, None] < k) & (columns[None, :] < n)
        a = tl.load(a_ptr + rows[:, None] * am + inner[None, :] * ak, mask=a_mask, other=0.0)
        b = tl.load(b_ptr + inner[:, None] * bk + columns[None, :] * bn, mask=b_mask, other=0.0)
        acc += tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    c_mask = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c_ptr + rows[:, None] * n + columns[None, :], acc, mask=c_mask)


@kernel(MATMUL_FORWARD, _DOMAIN, numerics=Numerics(accumulation_roundoff=2.0**-23), name="rows")
def product(a, b):
    """c."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    grid = triton.cdiv(m, 32), triton.cdiv(n, 32)
    product_kernel[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), TILE=32)
    return c
