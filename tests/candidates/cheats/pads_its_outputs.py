"""Returns the right numbers in another type, for someone to round."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def pads_its_outputs(dy, x, weight, mean, rstd):
    """float64 where float32 is asked for: the reader's copy rounds it, and takes the time."""
    wide = [each.double() for each in (dy, x, weight, mean, rstd)]
    return closed_form(*wide)
