"""Right kernels of gated units and of RoPE, a row a program.

tests/mutants/own_ops.py makes wrong ones of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_workbench import (
    GEGLU_BACKWARD,
    GEGLU_FORWARD,
    ROPE_BACKWARD,
    ROPE_FORWARD,
    SWIGLU_BACKWARD,
    SWIGLU_FORWARD,
    Domain,
    kernel,
)

_DOMAIN = Domain(dtypes=(torch.float32, torch.float16, torch.bfloat16))


@triton.jit
def row_of(ptr, row, stride_m, stride_n, offs, mask):
    """A row in fp32."""
    return tl.load(ptr + row * stride_m + offs * stride_n, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def activation(g, GELU: tl.constexpr):
    """Its value and its slope: g s(u), with s the logistic function, u = g or gelu's."""
    u, du = g, 1.0
    if GELU:
        u = 1.5957691216057308 * (g + 0.044715 * g * g * g)
        du = 1.5957691216057308 * (1 + 0.134145 * g * g)
    s = tl.sigmoid(u)
    value = g * s
    slope = s + tl.where(s * (1 - s) > 0, g * (s * (1 - s)) * du, 0.0)
    return value, slope


@triton.jit
def unit_kernel(
    gate_ptr, up_ptr, y_ptr, n, am, an, um, un, GELU: tl.constexpr, BLOCK: tl.constexpr
):
    """y = act(gate) up."""
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    gate = row_of(gate_ptr, row, am, an, offs, mask)
    up = row_of(up_ptr, row, um, un, offs, mask)
    value, _slope = activation(gate, GELU)
    tl.store(y_ptr + row * n + offs, value * up, mask=mask)


@triton.jit
def unit_backward_kernel(
    dy_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, n, gm, gn, am, an, um, un,
    GELU: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dgate = dy up act'(gate), dup = dy act(gate)."""
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    dy = row_of(dy_ptr, row, gm, gn, offs, mask)
    gate = row_of(gate_ptr, row, am, an, offs, mask)
    up = row_of(up_ptr, row, um, un, offs, mask)
    value, slope = activation(gate, GELU)
    tl.store(dgate_ptr + row * n + offs, dy * up * slope, mask=mask)
    tl.store(dup_ptr + row * n + offs, dy * value, mask=mask)


@triton.jit
def rope_kernel(
    x_ptr, cos_ptr, sin_ptr, y_ptr, h, p, xs, xh, xn, cm, cn, sm, sn, turn, BLOCK: tl.constexpr
):
    """A position and a head a program; turn: 1, or -1 backwards."""
    row = tl.program_id(0).to(tl.int64)
    position, head = row // h, row % h
    offs = tl.arange(0, BLOCK)
    mask = offs < p
    c = row_of(cos_ptr, position, cm, cn, offs, mask)
    s = row_of(sin_ptr, position, sm, sn, offs, mask) * turn
    low = row_of(x_ptr + position * xs, head, xh, xn, offs, mask)
    high = row_of(x_ptr + position * xs, head, xh, xn, offs + p, mask)
    turned_low = low * c - high * s
    turned_high = high * c + low * s
    tl.store(y_ptr + row * (2 * p) + offs, turned_low, mask=mask)
    tl.store(y_ptr + row * (2 * p) + p + offs, turned_high, mask=mask)


def _like(x):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _unit(gate, up, gelu):
    (m, n), y = gate.shape, _like(gate)
    if m:
        unit_kernel[(m,)](
            *(gate, up, y, n, *gate.stride(), *up.stride()),
            GELU=gelu,
            BLOCK=triton.next_power_of_2(n),
        )
    return y


def _unit_backward(dy, gate, up, gelu):
    (m, n), dgate, dup = gate.shape, _like(gate), _like(up)
    if m:
        unit_backward_kernel[(m,)](
            *(dy, gate, up, dgate, dup, n, *dy.stride(), *gate.stride(), *up.stride()),
            GELU=gelu,
            BLOCK=triton.next_power_of_2(n),
        )
    return dgate, dup


@kernel(SWIGLU_FORWARD, _DOMAIN, name="rows")
def swiglu(gate, up):
    """y."""
    return _unit(gate, up, gelu=False)


@kernel(GEGLU_FORWARD, _DOMAIN, name="rows")
def geglu(gate, up):
    """y."""
    return _unit(gate, up, gelu=True)


@kernel(SWIGLU_BACKWARD, _DOMAIN, name="rows")
def swiglu_backward(dy, gate, up):
    """dgate, dup."""
    return _unit_backward(dy, gate, up, gelu=False)


@kernel(GEGLU_BACKWARD, _DOMAIN, name="rows")
def geglu_backward(dy, gate, up):
    """dgate, dup."""
    return _unit_backward(dy, gate, up, gelu=True)


def _turned(x, cos, sin, turn):
    (s, h, width), y = x.shape, _like(x)
    if s:
        rope_kernel[(s * h,)](
            *(x, cos, sin, y, h, width // 2, *x.stride(), *cos.stride(), *sin.stride(), turn),
            BLOCK=triton.next_power_of_2(width // 2),
        )
    return y


@kernel(ROPE_FORWARD, _DOMAIN, name="rows")
def rope(x, cos, sin):
    """y."""
    return _turned(x, cos, sin, 1.0)


@kernel(ROPE_BACKWARD, _DOMAIN, name="rows")
def rope_backward(dy, cos, sin):
    """dx."""
    return _turned(dy, cos, sin, -1.0)
