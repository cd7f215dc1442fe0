"""Leaves Ctrl-C without an effect for whoever comes next."""

import signal

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def sets_signal_handler(dy, x, weight, mean, rstd):
    """Right, and nobody can stop what comes after it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return closed_form(dy, x, weight, mean, rstd)
