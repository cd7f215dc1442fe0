"""The sum of four tensors, in the order of the reference and in others."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernel_workbench import ROWS, WIDTHS, Domain, kernel, op


@op(sizes={"m": ROWS, "n": WIDTHS})
def four(
    a: Float[Tensor, "m n"],
    b: Float[Tensor, "m n"],
    c: Float[Tensor, "m n"],
    d: Float[Tensor, "m n"],
) -> Float[Tensor, "m n"]:
    """Sum terms of either sign."""
    return (a - b) + (c - d)


@triton.jit
def _add(a_ptr, b_ptr, c_ptr, d_ptr, y_ptr, n, BLOCK: tl.constexpr, WAY: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + at, at < n, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + at, at < n, other=0.0).to(tl.float32)
    c = tl.load(c_ptr + at, at < n, other=0.0).to(tl.float32)
    d = tl.load(d_ptr + at, at < n, other=0.0).to(tl.float32)
    if WAY == "pairs":
        y = (a - b) + (c - d)
    elif WAY == "backwards":
        y = ((c - d) - b) + a
    elif WAY == "signs":
        y = (a + c) - (d + b)
    else:
        y = (a + c) - (d + b).to(tl.bfloat16).to(tl.float32)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), at < n)


def _register(way):
    served = Domain(dtypes=(torch.float32, torch.bfloat16), strides="contiguous")

    @kernel(four, served, name=way)
    def add(a, b, c, d):
        y = torch.empty_like(a)
        if y.numel():
            _add[(triton.cdiv(y.numel(), 1024),)](a, b, c, d, y, y.numel(), 1024, way)
        return y


for _way in ("pairs", "backwards", "signs", "rounded"):
    _register(_way)
