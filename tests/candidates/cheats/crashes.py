"""Reads address 0."""

import ctypes

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def crashes(dy, x, weight, mean, rstd):
    """A segmentation fault in a process that isn't the judge's."""
    ctypes.string_at(0)
