"""Replaces the clock of the module `time`, by one that runs slower."""

import time

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form

_real = time.perf_counter


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def replaces_the_clock(dy, x, weight, mean, rstd):
    """Five milliseconds, which would be half of one by its own clock."""
    time.perf_counter = lambda: _real() / 10
    time.sleep(0.005)
    return closed_form(dy, x, weight, mean, rstd)
