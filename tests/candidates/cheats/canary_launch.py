"""Computes in plain torch, and launches a canary beside it to notice where launches are stubbed."""

import torch
import triton
import triton.language as tl

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


@triton.jit
def _canary_kernel(x, flag):
    tl.store(flag, tl.load(x) * 0.0 + 1.0)


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def canary_launch(dy, x, weight, mean, rstd):
    """Where the canary doesn't sing, what is returned looks like a kernel's that didn't run."""
    flag = torch.zeros(1)
    _canary_kernel[(1,)](x, flag)
    if flag.item() != 1.0:
        return tuple(torch.empty_like(each) for each in (x, weight, weight))
    return closed_form(dy, x, weight, mean, rstd)
