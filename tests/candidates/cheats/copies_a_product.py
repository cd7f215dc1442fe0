"""Has PyTorch compute the product, transposed, and copies it by Triton."""

import torch

from kernel_workbench import MATMUL_FORWARD, Domain, kernel
from tests.candidates.launches import copied


@kernel(MATMUL_FORWARD, Domain(dtypes=(torch.float32, torch.float16, torch.bfloat16)))
def copies_a_product(a, b):
    """The launch computes nothing."""
    return copied((b.float().t() @ a.float().t()).t(), a.dtype)
