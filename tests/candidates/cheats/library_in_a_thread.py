"""Calls PyTorch's layer norm in a thread, where no dispatch mode of its caller's is on."""

import threading

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def library_in_a_thread(dy, x, weight, mean, rstd):
    """The thread has ended when this returns."""
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
    return tuple(made)
