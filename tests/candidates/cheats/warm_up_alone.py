"""Is right for inputs like those it saw in its first calls, and guesses the rest."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form

_WARM_UP = 2
_calls, _seen = [], set()


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def warm_up_alone(dy, x, weight, mean, rstd):
    """Treat every call after the first two as measurement."""
    _calls.append(1)
    _seen.update([tuple(x.shape)] if len(_calls) <= _WARM_UP else [])
    dx, dweight, dbias = closed_form(dy, x, weight, mean, rstd)
    return (dx if tuple(x.shape) in _seen else dy * rstd[:, None]), dweight, dbias
