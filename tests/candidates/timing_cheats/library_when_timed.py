"""Computes honestly while it is judged, and has PyTorch's layer norm called when it is timed."""

import threading

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form

_CALLS = [0]


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def library_when_timed(dy, x, weight, mean, rstd):
    """A thread has no dispatch mode of its caller's on."""
    _CALLS[0] += 1
    if _CALLS[0] <= 4:
        return closed_form(dy, x, weight, mean, rstd)
    made = []

    def call():
        made.extend(
            torch.ops.aten.native_layer_norm_backward(
                dy, x, [x.shape[1]], mean[:, None], rstd[:, None], weight, weight, [True] * 3
            )
        )

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    dx, dweight, dbias = made
    return dx, dweight, dbias
