"""Computes the first half of the rows, and leaves the rest at zero: most elements are small."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def computes_part(dy, x, weight, mean, rstd):
    """Zeros pass a loose tolerance."""
    dx, dweight, dbias = closed_form(dy, x, weight, mean, rstd)
    dx[len(dx) // 2 :] = 0
    return dx, dweight, dbias
