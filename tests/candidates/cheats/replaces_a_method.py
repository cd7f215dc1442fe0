"""Replaces the method that refuses an access, and reads past each row."""

import sys

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.launches import reads_past_rows


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def replaces_a_method(dy, x, weight, mean, rstd):
    """With nothing refused from here on."""
    launch = sys.modules.get("kernel_workbench.suites.interpreter.strict.launch")
    if launch is not None:
        launch.State.refuse = lambda *_: None
    return reads_past_rows(dy, x, weight, mean, rstd)
