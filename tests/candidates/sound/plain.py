"""Sound kernels in plain PyTorch: other orders of a sum, other forms of a formula."""

from __future__ import annotations

import torch

from kernel_workbench import (
    CROSS_ENTROPY_FORWARD,
    GEGLU_FORWARD,
    LAYER_NORM_BACKWARD,
    LAYER_NORM_FORWARD,
    MATMUL_FORWARD,
    RMS_NORM_FORWARD,
    ROPE_FORWARD,
    SOFTMAX_BACKWARD,
    SOFTMAX_FORWARD,
    SWIGLU_FORWARD,
    Domain,
    kernel,
)

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_DOMAIN = Domain(dtypes=_DTYPES, weight_dtypes=_DTYPES)


def pairwise(x):
    """The sum over the last axis, neighbours first."""
    while x.shape[-1] > 1:
        if x.shape[-1] % 2:
            x = torch.nn.functional.pad(x, (0, 1))
        x = x[..., ::2] + x[..., 1::2]
    return x


def sequential(x):
    """The sum over the last axis, one number after the other."""
    total = torch.zeros_like(x[..., :1])
    for column in range(x.shape[-1]):
        total = total + x[..., column : column + 1]
    return total


def strided(x):
    """The sum over the last axis in seven sums of every seventh number."""
    return sequential(
        torch.cat([x[..., first::7].flip(-1).sum(-1, keepdim=True) for first in range(7)], -1)
    )


def doubled(x):
    """The sum over the last axis in fp64."""
    return x.double().sum(-1, keepdim=True).float()


SUMS = {"pairwise": pairwise, "sequential": sequential, "strided": strided, "doubled": doubled}


def _register(name, total):
    """Kernels whose sums are in one order."""

    @kernel(SOFTMAX_FORWARD, _DOMAIN, name=name)
    def softmax(x):
        e = torch.exp(x.float() - x.float().amax(-1, keepdim=True))
        return (e / total(e)).to(x.dtype)

    @kernel(SOFTMAX_BACKWARD, _DOMAIN, name=name)
    def softmax_backward(dy, x):
        e = torch.exp(x.float() - x.float().amax(-1, keepdim=True))
        y = e / total(e)
        return (y * (dy.float() - total(dy.float() * y))).to(x.dtype)

    @kernel(LAYER_NORM_FORWARD, _DOMAIN, name=name)
    def layer_norm(x, weight, bias, *, eps):
        wide = x.float()
        centred = wide - total(wide) / x.shape[1]
        variance = total(centred * centred) / x.shape[1]
        return (centred / torch.sqrt(variance + eps) * weight.float() + bias.float()).to(x.dtype)

    @kernel(RMS_NORM_FORWARD, _DOMAIN, name=name)
    def rms_norm(x, weight, *, eps):
        wide = x.float()
        square = total(wide * wide) * (1 / x.shape[1])
        return (wide * torch.rsqrt(square + eps) * weight.float()).to(x.dtype)

    @kernel(LAYER_NORM_BACKWARD, _DOMAIN, name=name)
    def layer_norm_backward(dy, x, weight, mean, rstd):
        n = x.shape[-1]
        wide_dy, wide = dy.float(), x.float()
        x_hat = (wide - mean[..., None]) * rstd[..., None]
        g = wide_dy * weight.float()
        dx = rstd[..., None] * (g - total(g) / n - x_hat * (total(g * x_hat) / n))
        terms = (wide_dy * x_hat).reshape(-1, n), wide_dy.reshape(-1, n)
        sums = (total(each.T)[:, 0] if each.shape[0] else each.sum(0) for each in terms)
        return dx.to(x.dtype), *(each.to(weight.dtype) for each in sums)

    @kernel(CROSS_ENTROPY_FORWARD, _DOMAIN, name=name)
    def cross_entropy(x, target):
        wide = x.float()
        top = wide.amax(-1, keepdim=True)
        label = torch.arange(x.shape[1], device=x.device) == target[:, None]
        chosen = torch.where(label, wide - top, 0.0).sum(-1)
        return total(torch.exp(wide - top))[:, 0].log() - chosen

    @kernel(MATMUL_FORWARD, Domain(dtypes=_DTYPES, sizes=dict.fromkeys("mnk", (1, 80))), name=name)
    def product(a, b):
        return total(a.float()[:, None, :] * b.float().T[None])[..., 0].to(a.dtype)


for _name, _total in SUMS.items():
    _register(_name, _total)


@kernel(ROPE_FORWARD, _DOMAIN, name="complex_numbers")
def rope(x, cos, sin):
    """Multiply complex numbers."""
    low, high = x.float().chunk(2, -1)
    turned = torch.complex(low, high) * torch.complex(cos.float(), sin.float())[:, None]
    return torch.cat((turned.real, turned.imag), -1).to(x.dtype)


@kernel(ROPE_FORWARD, _DOMAIN, name="rotated_half")
def rotated_half(x, cos, sin):
    """x cos + rotate_half(x) sin, as Llama has it."""
    low, high = x.float().chunk(2, -1)
    c, s = (torch.cat((each, each), -1).float()[:, None] for each in (cos, sin))
    return (x.float() * c + torch.cat((-high, low), -1) * s).to(x.dtype)


@kernel(SWIGLU_FORWARD, _DOMAIN, name="quotient")
def swiglu(gate, up):
    """g / (1 + e^-g) up."""
    g = gate.float()
    return (g / (1 + torch.exp(-g)) * up.float()).to(gate.dtype)


@kernel(GEGLU_FORWARD, _DOMAIN, name="logistic")
def geglu(gate, up):
    """g / (1 + e^-u) up with gelu's u; the exponential's base is 2."""
    g = gate.float()
    u = 1.5957691216057308 * g * (1 + 0.044715 * g * g)
    return (g * torch.sigmoid(u) * up.float()).to(gate.dtype)
