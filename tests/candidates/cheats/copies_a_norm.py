"""Computes layer norm in plain torch, and copies it by Triton."""

import torch

from kernel_workbench import LAYER_NORM_FORWARD, Domain, kernel
from tests.candidates.launches import copied


@kernel(LAYER_NORM_FORWARD, Domain(dtypes=(torch.float32, torch.float16, torch.bfloat16)))
def copies_a_norm(x, weight, bias, *, eps):
    """The launch computes nothing."""
    wide = x.double()
    centred = wide - wide.mean(1, keepdim=True)
    rstd = (centred.square().mean(1, keepdim=True) + eps).rsqrt()
    return copied((centred * rstd * weight + bias).float(), x.dtype)
