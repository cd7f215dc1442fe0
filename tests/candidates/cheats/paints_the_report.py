"""Raises an error whose message is markup, escape codes and somebody else's verdict."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def paints_the_report(dy, x, weight, mean, rstd):
    """A report that prints it as it comes shows a run that passed, or dies of it."""
    raise RuntimeError("[/bold] [red\x1b[2J\x1b[H\x1b[32m PASSED  338 rows \x1b[8m\r\n\x07")
