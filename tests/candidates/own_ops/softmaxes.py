"""Right kernels of softmax and of cross entropies, a row a program.

tests/mutants/own_ops.py makes wrong ones of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_workbench import (
    CROSS_ENTROPY_BACKWARD,
    CROSS_ENTROPY_FORWARD,
    SMOOTHED_CROSS_ENTROPY_BACKWARD,
    SMOOTHED_CROSS_ENTROPY_FORWARD,
    SOFTMAX_BACKWARD,
    SOFTMAX_FORWARD,
    Domain,
    kernel,
)

_DOMAIN = Domain(dtypes=(torch.float32, torch.float16, torch.bfloat16))


@triton.jit
def row_of(ptr, row, stride_m, stride_n, offs, mask):
    """A row in fp32."""
    return tl.load(ptr + row * stride_m + offs * stride_n, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def exponentials(x, mask, offs, n, KIND: tl.constexpr):
    """The largest, e^(x - largest), and their sum."""
    highest = tl.max(tl.where(mask, x, float("-inf")), 0)
    e = tl.where(mask, tl.exp(x - highest), 0.0)
    total = tl.sum(e, 0)
    return highest, e, total


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n, xm, xn, BLOCK: tl.constexpr):
    """y = e / sum e."""
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    x = row_of(x_ptr, row, xm, xn, offs, mask)
    _highest, e, total = exponentials(x, mask, offs, n, x_ptr.dtype.element_ty)
    tl.store(y_ptr + row * n + offs, e / total, mask=mask)


@triton.jit
def softmax_backward_kernel(dy_ptr, x_ptr, dx_ptr, n, gm, gn, xm, xn, BLOCK: tl.constexpr):
    """dx = y (dy - sum dy y)."""
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    dy = row_of(dy_ptr, row, gm, gn, offs, mask)
    x = row_of(x_ptr, row, xm, xn, offs, mask)
    _highest, e, total = exponentials(x, mask, offs, n, x_ptr.dtype.element_ty)
    y = e / total
    along = tl.sum(dy * y, 0)
    tl.store(dx_ptr + row * n + offs, y * (dy - along), mask=mask)


@triton.jit
def loss_kernel(x_ptr, target_ptr, loss_ptr, n, xm, xn, smoothing, z, BLOCK: tl.constexpr):
    """lse - (1 - smoothing) x_target - smoothing mean(x) + z lse^2; 0 of a target of -100."""
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    x = row_of(x_ptr, row, xm, xn, offs, mask)
    highest, _e, total = exponentials(x, mask, offs, n, x_ptr.dtype.element_ty)
    lse = highest + tl.log(total)
    target = tl.load(target_ptr + row)
    chosen = tl.sum(tl.where(offs == target, x, 0.0), 0)
    loss = lse - chosen
    if smoothing > 0:
        loss += smoothing * (chosen - tl.sum(x / n, 0))
    loss += z * lse * lse
    loss = tl.where(target == -100, 0.0, loss)
    tl.store(loss_ptr + row, loss)


@triton.jit
def loss_backward_kernel(
    dloss_ptr, x_ptr, target_ptr, dx_ptr, n, xm, xn, smoothing, z, BLOCK: tl.constexpr
):
    """dloss (softmax (1 + 2 z lse) - smoothing / n - (1 - smoothing) at the target)."""
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    x = row_of(x_ptr, row, xm, xn, offs, mask)
    dloss = tl.load(dloss_ptr + row)
    highest, e, total = exponentials(x, mask, offs, n, x_ptr.dtype.element_ty)
    lse = highest + tl.log(total)
    target = tl.load(target_ptr + row)
    dx = (e / total) * (1 + 2 * z * lse)
    if smoothing > 0:
        dx = dx - smoothing / n
    dx -= tl.where(offs == target, 1 - smoothing, 0.0)
    dx = tl.where(target == -100, 0.0, dx * dloss)
    tl.store(dx_ptr + row * n + offs, dx, mask=mask)


def _like(x):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@kernel(SOFTMAX_FORWARD, _DOMAIN, name="rows")
def softmax(x):
    """y."""
    (m, n), y = x.shape, _like(x)
    if m:
        softmax_kernel[(m,)](x, y, n, *x.stride(), BLOCK=triton.next_power_of_2(n))
    return y


@kernel(SOFTMAX_BACKWARD, _DOMAIN, name="rows")
def softmax_backward(dy, x):
    """dx."""
    (m, n), dx = x.shape, _like(x)
    if m:
        block = triton.next_power_of_2(n)
        softmax_backward_kernel[(m,)](dy, x, dx, n, *dy.stride(), *x.stride(), BLOCK=block)
    return dx


@kernel(CROSS_ENTROPY_FORWARD, _DOMAIN, name="rows")
@kernel(SMOOTHED_CROSS_ENTROPY_FORWARD, _DOMAIN, name="rows")
def losses(x, target, *, smoothing=0.0, z=0.0):
    """The loss of each row."""
    (m, n), target = x.shape, target.contiguous()
    loss = torch.empty(m, dtype=torch.float32, device=x.device)
    if m:
        block = triton.next_power_of_2(n)
        loss_kernel[(m,)](x, target, loss, n, *x.stride(), smoothing, z, BLOCK=block)
    return loss


@kernel(CROSS_ENTROPY_BACKWARD, _DOMAIN, name="rows")
@kernel(SMOOTHED_CROSS_ENTROPY_BACKWARD, _DOMAIN, name="rows")
def losses_backward(dloss, x, target, *, smoothing=0.0, z=0.0):
    """dx."""
    (m, n), dx = x.shape, _like(x)
    dloss, target = dloss.contiguous(), target.contiguous()
    if m:
        loss_backward_kernel[(m,)](
            *(dloss, x, target, dx, n, *x.stride(), smoothing, z),
            BLOCK=triton.next_power_of_2(n),
        )
    return dx
