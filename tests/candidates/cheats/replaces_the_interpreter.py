"""Replaces a method of Triton's interpreter by its own, so that no load is checked."""

import torch
from triton.runtime import interpreter

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.launches import reads_past_rows


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def replaces_the_interpreter(dy, x, weight, mean, rstd):
    """The method that checks has the one that it replaced among what it refers to."""
    checked = interpreter.InterpreterBuilder.create_masked_load
    if "stock" in checked.__code__.co_freevars:
        at = checked.__code__.co_freevars.index("stock")
        interpreter.InterpreterBuilder.create_masked_load = checked.__closure__[at].cell_contents
    return reads_past_rows(dy, x, weight, mean, rstd)
