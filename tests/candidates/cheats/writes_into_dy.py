"""Returns dx in dy's memory: one tensor less to write, and the caller's dy is gone."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def writes_into_dy(dy, x, weight, mean, rstd):
    """Right values, in memory that isn't its own."""
    dx, dweight, dbias = closed_form(dy, x, weight, mean, rstd)
    return dy.copy_(dx), dweight, dbias
