"""Raises pytest's Skipped, or its Exit, which end a test without failing it."""

import pytest
import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def skips_itself(dy, x, weight, mean, rstd):
    """A test that is skipped has no failures."""
    pytest.skip("not today")
