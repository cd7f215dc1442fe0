"""Returns an object that runs a command in whoever unpickles it."""

import os

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


class Bomb:
    """Its reduction is a call."""

    def __reduce__(self):
        return os._exit, (0,)


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def bombs_the_unpickler(dy, x, weight, mean, rstd):
    """A pipe of torch.multiprocessing would run it in the judge."""
    return Bomb(), torch.zeros_like(weight), torch.zeros_like(weight)
