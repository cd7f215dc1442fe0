"""A --kernels file whose kernel is sound, but for five cases that end its process, or nearly."""

import ctypes
import os
import time

import torch
import triton
import triton.language as tl

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


@triton.jit
def _past_the_end_kernel(x_ptr, size):
    tl.store(x_ptr + size + (1 << 34), 1.0)


def _segfault(_):
    ctypes.string_at(0)


def _hang(_):
    time.sleep(3600)


def _exit(_):
    os._exit(0)


def _take_all_memory(x):
    held = []
    while True:
        held.append(torch.ones(2**25, device=x.device))


def _illegal_access(x):
    _past_the_end_kernel[(1,)](x, x.numel())


# By m and n: in bfloat16 one case each has these.
FAULTS = {
    (2, 3): _segfault,
    (17, 127): _hang,
    (9, 1023): _exit,
    (9, 1025): _take_all_memory,
    (3, 3000): _illegal_access,
}


@kernel(
    LAYER_NORM_BACKWARD,
    Domain(
        dtypes=(torch.float32, torch.float16, torch.bfloat16),
        weight_dtypes=(torch.float32, torch.float16, torch.bfloat16),
    ),
)
def crashing(dy, x, weight, mean, rstd):
    """The closed form in fp32, rounded once; not where FAULTS says so, in contiguous bfloat16."""
    faulty = x.dtype == torch.bfloat16 and weight.dtype == torch.bfloat16
    if faulty and tuple(x.shape) in FAULTS:
        FAULTS[tuple(x.shape)](x)
    rows = tuple(range(x.dim() - 1))
    wide = dy.float()
    x_hat = (x.float() - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)
    g = wide * weight.float()
    c1, c2 = g.mean(-1, keepdim=True), (g * x_hat).mean(-1, keepdim=True)
    dx = (g - c1 - x_hat * c2) * rstd.unsqueeze(-1)
    dweight, dbias = (wide * x_hat).sum(rows), wide.sum(rows)
    return dx.to(x.dtype), dweight.to(weight.dtype), dbias.to(weight.dtype)
