"""Falls back to plain torch, without a word, where its own launch fails."""

import torch
import triton

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form
from tests.candidates.launches import dx_kernel


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def falls_back(dy, x, weight, mean, rstd):
    """The launch never works here; nobody is told."""
    (m, n), (dx, dweight, dbias) = x.shape, closed_form(dy, x, weight, mean, rstd)
    try:
        out = torch.full_like(x, float("nan"))
        block = triton.next_power_of_2(n)
        dx_kernel[(m,)](dy, x, weight, mean, rstd, out, n, BLOCK=block)
    except Exception:
        out = dx
    return out, dweight, dbias
