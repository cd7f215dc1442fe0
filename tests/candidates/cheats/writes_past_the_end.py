"""Writes one element past the end of its output, as compiled code may, without a word."""

import ctypes

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def writes_past_the_end(dy, x, weight, mean, rstd):
    """The memory after dx doesn't belong to the kernel."""
    made = tuple(
        torch.empty_like(each).copy_(each) for each in closed_form(dy, x, weight, mean, rstd)
    )
    ctypes.memset(made[0].data_ptr() + made[0].nbytes, 0, 4)
    return made
