"""Leaves a variable of the environment set, so that Triton interprets nothing."""

import os

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def sets_environment(dy, x, weight, mean, rstd):
    """Right, and Triton does something else after it."""
    os.environ["TRITON_INTERPRET"] = "0"
    return closed_form(dy, x, weight, mean, rstd)
