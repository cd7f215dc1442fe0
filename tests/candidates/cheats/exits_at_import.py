"""Ends its process with status 0 while it is imported."""

import os

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel

os._exit(0)


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,)))
def exits_at_import(dy, x, weight, mean, rstd):
    """Never reached."""
    return x, weight, weight
