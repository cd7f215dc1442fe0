"""Leaves by SystemExit, which is no Exception."""

import sys

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def exits_politely(dy, x, weight, mean, rstd):
    """No verdict is no failure, in some harnesses."""
    sys.exit(0)
