"""Returns at once, and lets a thread compute the outputs a second later."""

import threading
import time

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def thread_writes_later(dy, x, weight, mean, rstd):
    """The tensors that come back are filled after the clock was read."""
    outputs = torch.zeros_like(x), torch.zeros_like(weight), torch.zeros_like(weight)

    def compute():
        time.sleep(1)
        for to, made in zip(outputs, closed_form(dy, x, weight, mean, rstd), strict=True):
            to.copy_(made)

    threading.Thread(target=compute).start()
    return outputs
