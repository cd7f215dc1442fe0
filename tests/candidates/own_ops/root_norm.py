"""A user's file: an op, RMS norm once more, and kernels of it, of which one is right.

Each other one has a defect that RMS norms were found to have.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernel_workbench import COLUMNS, ROWS, Domain, kernel, op


@op(sizes={"m": ROWS, "n": COLUMNS})
def root_norm(
    x: Float[Tensor, "m n"], weight: Float[Tensor, "n"], eps: float = 0.25
) -> Float[Tensor, "m n"]:
    """Rows divided by the root of their mean square."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


@triton.jit
def root_norm_kernel(
    x_ptr, w_ptr, y_ptr, n, stride_xm, stride_xn, eps, DEFECT: tl.constexpr, BLOCK: tl.constexpr
):
    """A row a program."""
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < (n - 1 if DEFECT == "last_column" else n)
    x = tl.load(x_ptr + row * stride_xm + offs * stride_xn, mask=mask, other=0.0)
    wide = x.to(tl.float32)
    mean = tl.sum(wide * wide, axis=0) / (BLOCK if DEFECT == "padded_mean" else n)
    rstd = 1 / (tl.sqrt(mean) + eps) if DEFECT == "outer_eps" else tl.rsqrt(mean + eps)
    if DEFECT == "half_statistics":
        rstd = rstd.to(x.dtype).to(tl.float32)
    weight = tl.load(w_ptr + offs, mask=offs < n, other=0.0).to(tl.float32)
    if DEFECT == "no_weight" and row == 1:
        weight = tl.full([BLOCK], 1.0, tl.float32)
    y = wide * rstd * weight
    tl.store(y_ptr + row * n + offs, y.to(y_ptr.dtype.element_ty), mask=offs < n)


_DOMAIN = Domain(
    dtypes=(torch.float32, torch.float16, torch.bfloat16),
    weight_dtypes=(torch.float32, torch.float16, torch.bfloat16),
    sizes={"n": (1, 4096)},
)


def _register(name, defect):
    @kernel(root_norm, _DOMAIN, name=name)
    def function(x, weight, *, eps):
        (m, n), weight = x.shape, weight.contiguous()
        y = torch.empty((m, n), dtype=x.dtype, device=x.device)
        block = triton.next_power_of_2(n)
        if m:
            root_norm_kernel[(m,)](
                x, weight, y, n, *x.stride(), eps, DEFECT=defect, BLOCK=block, num_warps=4
            )
        return y


_register("right", "")
for each in (
    "outer_eps",
    "last_column",
    "half_statistics",
    "padded_mean",
    "no_weight",
):
    _register(each, each)
