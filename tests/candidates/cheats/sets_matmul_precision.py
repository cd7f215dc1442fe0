"""Leaves products of float32 in TF32 for whoever comes next."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def sets_matmul_precision(dy, x, weight, mean, rstd):
    """Right, and the products after it aren't."""
    torch.set_float32_matmul_precision("high")
    return closed_form(dy, x, weight, mean, rstd)
