"""Replaces a function of the strict interpreter while it is imported, and reads past each row."""

import sys

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.launches import reads_past_rows

_access = sys.modules.get("kernel_workbench.suites.interpreter.strict.access")
if _access is not None:
    _access.check_lanes = lambda *_: None


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def replaces_the_checks_at_import(dy, x, weight, mean, rstd):
    """With nothing checked any more."""
    return reads_past_rows(dy, x, weight, mean, rstd)
