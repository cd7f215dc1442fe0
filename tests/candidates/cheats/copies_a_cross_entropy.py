"""Has PyTorch compute the cross entropy, and copies what it returns by Triton."""

import torch

from kernel_workbench import CROSS_ENTROPY_FORWARD, Domain, kernel
from tests.candidates.launches import copied


@kernel(CROSS_ENTROPY_FORWARD, Domain(dtypes=(torch.float32, torch.float16, torch.bfloat16)))
def copies_a_cross_entropy(x, target):
    """The launch computes nothing."""
    loss = torch.nn.functional.cross_entropy(x.float(), target, reduction="none")
    return copied(loss, torch.float32)
