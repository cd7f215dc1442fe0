"""Finds the clock that the suite has kept, and replaces that."""

import sys
import time

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form

_real = time.perf_counter


@kernel(
    LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), devices=("cpu",), strides="contiguous")
)
def replaces_the_suites_clock(dy, x, weight, mean, rstd):
    """Five milliseconds, and the worker says half of one."""
    sys.modules["kernel_workbench.suites.bench.devices"]._now = lambda: _real() / 10
    time.sleep(0.005)
    return closed_form(dy, x, weight, mean, rstd)
