"""Edits a table of the suite's, so that fresh memory holds zeros."""

import sys

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def edits_a_table(dy, x, weight, mean, rstd):
    """Memory that the kernel doesn't write is zero at the next call."""
    candidate = sys.modules.get("kernel_workbench.suites.sandbox.worker_side.candidate")
    if candidate is not None:
        candidate._VALUES.update(nan=0.0, sentinel=0.0)
    return closed_form(dy, x, weight, mean, rstd)
