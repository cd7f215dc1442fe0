"""Takes every tensor for contiguous, and says that it serves all layouts."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,)))
def contiguous_alone(dy, x, weight, mean, rstd):
    """Reads dy and x as packed rows from where they begin."""
    packed = [each.as_strided(each.shape, (each.shape[1], 1)) for each in (dy, x)]
    return closed_form(*packed, weight, mean, rstd)
