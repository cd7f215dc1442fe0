"""Switches torch's dispatch modes off, as torch's own compiler does, and calls its layer norm."""

import torch
from torch.utils._python_dispatch import _disable_current_modes

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def library_outside_the_modes(dy, x, weight, mean, rstd):
    """A check by a dispatch mode doesn't see the call."""
    with _disable_current_modes():
        return torch.ops.aten.native_layer_norm_backward(
            dy, x, [x.shape[1]], mean[:, None], rstd[:, None], weight, weight, [True] * 3
        )
