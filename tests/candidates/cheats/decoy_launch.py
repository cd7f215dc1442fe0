"""Launches a kernel of its own on scratch memory, and computes the outputs in plain torch."""

import torch
import triton

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form
from tests.candidates.launches import dx_kernel


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def decoy_launch(dy, x, weight, mean, rstd):
    """The launch's output is thrown away."""
    (m, n), scratch = x.shape, torch.empty_like(x)
    block = triton.next_power_of_2(n)
    dx_kernel[(m,)](dy, x, weight, mean, rstd, scratch, n, BLOCK=block)
    return closed_form(dy, x, weight, mean, rstd)
