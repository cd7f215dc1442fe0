"""Gives a check of the suite's another body, and reads past each row."""

import sys

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.launches import reads_past_rows


def _nothing(launch, pointers, lanes, element, did):
    return None


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def replaces_the_code(dy, x, weight, mean, rstd):
    """The function is the same object as before."""
    access = sys.modules.get("kernel_workbench.suites.interpreter.strict.access")
    if access is not None:
        access.check_lanes.__code__ = _nothing.__code__
    return reads_past_rows(dy, x, weight, mean, rstd)
