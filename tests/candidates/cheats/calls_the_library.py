"""Owns a jit function for show, and calls PyTorch's layer norm."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def calls_the_library(dy, x, weight, mean, rstd):
    """The peer that it would be compared with."""
    n = x.shape[1]
    return torch.ops.aten.native_layer_norm_backward(
        dy, x, [n], mean[:, None], rstd[:, None], weight, weight, [True, True, True]
    )
