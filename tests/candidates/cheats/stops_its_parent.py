"""Stops the process that started it, and itself."""

import os
import signal

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def stops_its_parent(dy, x, weight, mean, rstd):
    """Who is to end it, and to start another?"""
    os.kill(os.getppid(), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)
