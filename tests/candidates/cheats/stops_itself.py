"""Stops its process, which is neither dead nor alive."""

import os
import signal

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def stops_itself(dy, x, weight, mean, rstd):
    """No exception, no end, no answer."""
    os.kill(os.getpid(), signal.SIGSTOP)
    return torch.zeros_like(x), torch.zeros_like(weight), torch.zeros_like(weight)
