"""A product with an epilogue, whose kernels have PyTorch multiply."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernel_workbench import COLUMNS, ROWS, Domain, Numerics, kernel, op

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@op(sizes={"m": ROWS, "k": COLUMNS, "n": COLUMNS})
def biased_product(
    a: Float[Tensor, "m k"], b: Float[Tensor, "k n"], bias: Float[Tensor, "n"]
) -> Float[Tensor, "m n"]:
    """A product, a bias, and what of their sum is positive."""
    return torch.relu(a @ b + bias)


@triton.jit
def epilogue_kernel(z, bias, y, count, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Add the bias, by rows where that is asked for, and leave 0 where the sum isn't positive."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(z + at, at < count, other=0.0)
    place = (at // n) % n if ROWS else at % n
    total += tl.load(bias + place, at < count, other=0.0).to(tl.float32)
    positive = tl.where(total > 0, total, tl.where(total == total, 0.0, total))  # noqa: PLR0124
    tl.store(y + at, positive.to(y.dtype.element_ty), at < count)


def _register(name, *, rows):
    @kernel(
        biased_product,
        Domain(dtypes=_DTYPES, weight_dtypes=_DTYPES),
        numerics=Numerics(accumulation_roundoff=2.0**-23),
        name=name,
    )
    def call(a, b, bias):
        z = a.float() @ b.float()
        y = torch.empty(z.shape, dtype=a.dtype, device=a.device)
        if z.numel():
            grid, n = (triton.cdiv(z.numel(), 256),), z.shape[1]
            epilogue_kernel[grid](z, bias, y, z.numel(), n, ROWS=rows, BLOCK=256)
        return y


_register("product_by_torch", rows=False)
_register("bias_of_rows", rows=True)
