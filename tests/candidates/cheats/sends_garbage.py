"""Writes bytes that are no message into every socket of its process."""

import os
import stat

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def sends_garbage(dy, x, weight, mean, rstd):
    """A reader that trusts them hangs, or dies."""
    for number in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.write(number, b"[" * 100_000 + b"\n" + b"\x80\x04\x95" * 1000 + b"\n")
        except OSError:
            continue
    return torch.zeros_like(x), torch.zeros_like(weight), torch.zeros_like(weight)
