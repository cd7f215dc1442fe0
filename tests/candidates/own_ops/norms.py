"""Right kernels of norms, a row a program, of which tests/mutants/own_ops.py makes wrong ones."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_workbench import (
    ADD_RMS_NORM_BACKWARD,
    ADD_RMS_NORM_FORWARD,
    LAYER_NORM_FORWARD,
    RMS_NORM_BACKWARD,
    RMS_NORM_FORWARD,
    Domain,
    kernel,
)

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_DOMAIN = Domain(dtypes=_DTYPES, weight_dtypes=_DTYPES)


@triton.jit
def row_of(ptr, row, stride_m, stride_n, offs, mask):
    """A row in fp32."""
    return tl.load(ptr + row * stride_m + offs * stride_n, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def reciprocal_root(x, n, eps, offs, BLOCK: tl.constexpr):
    """1 / sqrt(mean(x^2) + eps)."""
    squares = x * x
    mean = tl.sum(squares, 0) / n
    return tl.rsqrt(mean + eps)


@triton.jit
def rms_norm_kernel(x_ptr, r_ptr, w_ptr, y_ptr, s_ptr, n, eps, xm, xn, rm, rn, BLOCK: tl.constexpr):
    """Normalise x, or x + r, which is then stored too."""
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    x = row_of(x_ptr, row, xm, xn, offs, mask)
    w = row_of(w_ptr, 0, 0, 1, offs, mask)
    if r_ptr is not None:
        x += row_of(r_ptr, row, rm, rn, offs, mask)
        tl.store(s_ptr + row * n + offs, x, mask=mask)
    rstd = reciprocal_root(x, n, eps, offs, BLOCK)
    x_hat = x * rstd
    tl.store(y_ptr + row * n + offs, x_hat * w, mask=mask)


@triton.jit
def rms_norm_backward_kernel(
    dy_ptr, ds_ptr, x_ptr, w_ptr, dx_ptr, part_ptr, n, eps, gm, gn, sm, sn, xm, xn,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """dx, and the row's share of dweight."""
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    dy = row_of(dy_ptr, row, gm, gn, offs, mask)
    x = row_of(x_ptr, row, xm, xn, offs, mask)
    w = row_of(w_ptr, 0, 0, 1, offs, mask)
    rstd = reciprocal_root(x, n, eps, offs, BLOCK)
    x_hat = x * rstd
    g = dy * w
    along = tl.sum(g * x_hat, 0) / n
    dx = rstd * (g - x_hat * along)
    if ds_ptr is not None:
        dx += row_of(ds_ptr, row, sm, sn, offs, mask)
    tl.store(dx_ptr + row * n + offs, dx, mask=mask)
    tl.store(part_ptr + row * n + offs, dy * x_hat, mask=mask)


@triton.jit
def layer_norm_kernel(x_ptr, w_ptr, b_ptr, y_ptr, n, eps, xm, xn, BLOCK: tl.constexpr):
    """(x - mean) rstd w + b."""
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    x = row_of(x_ptr, row, xm, xn, offs, mask)
    w = row_of(w_ptr, 0, 0, 1, offs, mask)
    b = row_of(b_ptr, 0, 0, 1, offs, mask)
    mean = tl.sum(x, 0) / n
    centred = tl.where(mask, x - mean, 0.0)
    rstd = reciprocal_root(centred, n, eps, offs, BLOCK)
    tl.store(y_ptr + row * n + offs, centred * rstd * w + b, mask=mask)


def _like(x):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@kernel(RMS_NORM_FORWARD, _DOMAIN, name="rows")
def rms_norm(x, weight, *, eps):
    """Normalise x alone."""
    (m, n), y, weight = x.shape, _like(x), weight.contiguous()
    if m:
        block = triton.next_power_of_2(n)
        rms_norm_kernel[(m,)](x, None, weight, y, None, n, eps, *x.stride(), 0, 0, BLOCK=block)
    return y


@kernel(ADD_RMS_NORM_FORWARD, _DOMAIN, name="rows")
def add_rms_norm(x, residual, weight, *, eps):
    """Normalise a sum."""
    (m, n), y, s = x.shape, _like(x), _like(x)
    weight = weight.contiguous()
    if m:
        rms_norm_kernel[(m,)](
            *(x, residual, weight, y, s, n, eps, *x.stride(), *residual.stride()),
            BLOCK=triton.next_power_of_2(n),
        )
    return y, s


def _backward(dy, ds, x, weight, eps):
    (m, n), dx, weight = x.shape, _like(x), weight.contiguous()
    part = torch.empty((m, n), dtype=torch.float32, device=x.device)
    if m:
        beside = (0, 0) if ds is None else ds.stride()
        rms_norm_backward_kernel[(m,)](
            *(dy, ds, x, weight, dx, part, n, eps, *dy.stride(), *beside, *x.stride()),
            BLOCK=triton.next_power_of_2(n),
        )
    return dx, part.sum(0).to(weight.dtype)


@kernel(RMS_NORM_BACKWARD, _DOMAIN, name="rows")
def rms_norm_backward(dy, x, weight, *, eps):
    """Compute the backward of y alone."""
    return _backward(dy, None, x, weight, eps)


@kernel(ADD_RMS_NORM_BACKWARD, _DOMAIN, name="rows")
def add_rms_norm_backward(dy, ds, x, weight, *, eps):
    """Compute the backward of y and the sum."""
    return _backward(dy, ds, x, weight, eps)


@kernel(LAYER_NORM_FORWARD, _DOMAIN, name="rows")
def layer_norm(x, weight, bias, *, eps):
    """Normalise x."""
    (m, n), y = x.shape, _like(x)
    weight, bias = weight.contiguous(), bias.contiguous()
    if m:
        block = triton.next_power_of_2(n)
        layer_norm_kernel[(m,)](x, weight, bias, y, n, eps, *x.stride(), BLOCK=block)
    return y
