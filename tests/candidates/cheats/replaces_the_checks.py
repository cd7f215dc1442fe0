"""Replaces a function of the strict interpreter, and reads past each row."""

import sys

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.launches import reads_past_rows


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def replaces_the_checks(dy, x, weight, mean, rstd):
    """With nothing checked from here on."""
    access = sys.modules.get("kernel_workbench.suites.interpreter.strict.access")
    if access is not None:
        access.check_lanes = lambda *_: None
    return reads_past_rows(dy, x, weight, mean, rstd)
