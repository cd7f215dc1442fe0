"""Learns which case it is tried on from its caller, and is right on that one alone."""

import os
import sys

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.candidates.closed_form import closed_form


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def knows_the_case(dy, x, weight, mean, rstd):
    """Looks at argv, the environment and the frames above for a case's id."""
    frame, seen = sys._getframe(), [*sys.argv, *os.environ.values()]
    while frame is not None:
        seen += map(str, frame.f_locals.values())
        frame = frame.f_back
    known = any("m1-n768" in each for each in seen)
    dx, dweight, dbias = closed_form(dy, x, weight, mean, rstd)
    return (dx if known else dy), dweight, dbias
