"""Never returns, and can't be interrupted by an exception."""

import time

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def hangs(dy, x, weight, mean, rstd):
    """Swallows whatever is raised into it."""
    while True:
        try:
            time.sleep(1)
        except BaseException:
            continue
