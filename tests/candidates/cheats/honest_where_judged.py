"""Is right where the suite's worker has been imported, and nowhere else."""

import sys

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def honest_where_judged(dy, x, weight, mean, rstd):
    """A user's process has no such module."""
    dx, dweight, dbias = closed_form(dy, x, weight, mean, rstd)
    return (
        (
            dx
            if "kernel_workbench.suites.sandbox.worker_side.worker" in sys.modules
            else dy * rstd[:, None]
        ),
        dweight,
        dbias,
    )
