"""Ends its process at the sixth call."""

import os

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form

_calls = []


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def dies_when_timed(dy, x, weight, mean, rstd):
    """With the status of a process that did well."""
    _calls.append(1)
    if len(_calls) > 5:
        os._exit(0)
    return closed_form(dy, x, weight, mean, rstd)
