"""Sound kernels in plain PyTorch whose formulas are written otherwise, as libraries have them."""

from __future__ import annotations

import torch

from kernel_workbench import (
    CROSS_ENTROPY_BACKWARD,
    GEGLU_FORWARD,
    LAYER_NORM_FORWARD,
    RMS_NORM_BACKWARD,
    RMS_NORM_FORWARD,
    SOFTMAX_BACKWARD,
    SOFTMAX_FORWARD,
    SWIGLU_BACKWARD,
    SWIGLU_FORWARD,
    Domain,
    kernel,
)

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_DOMAIN = Domain(dtypes=_DTYPES, weight_dtypes=_DTYPES)
_LOG2_E = 1.4426950408889634


def lse(wide):
    """The log of a row's sum of exponentials."""
    top = wide.amax(-1, keepdim=True)
    return top + torch.exp(wide - top).sum(-1, keepdim=True).log()


def reciprocal_root(wide, eps):
    """1 / sqrt(mean x^2 + eps)."""
    return torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)


@kernel(SOFTMAX_FORWARD, _DOMAIN, name="base_2_throughout")
def base_2(x):
    """Fold log2(e) into x before anything else."""
    wide = x.float() * _LOG2_E
    e = torch.exp2(wide - wide.amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


@kernel(SOFTMAX_FORWARD, _DOMAIN, name="exp_of_log_softmax")
def log_softmax(x):
    """exp((x - largest) - log sum)."""
    wide = x.float() - x.float().amax(-1, keepdim=True)
    return torch.exp(wide - torch.exp(wide).sum(-1, keepdim=True).log()).to(x.dtype)


@kernel(SOFTMAX_FORWARD, _DOMAIN, name="lse_taken_off")
def lse_taken_off(x):
    """exp(x - lse)."""
    return torch.exp(x.float() - lse(x.float())).to(x.dtype)


@kernel(SOFTMAX_BACKWARD, _DOMAIN, name="divided_last")
def divided_last(dy, x):
    """e (dy - sum e dy / sum e) / sum e."""
    e = torch.exp(x.float() - x.float().amax(-1, keepdim=True))
    total = e.sum(-1, keepdim=True)
    along = (e * dy.float()).sum(-1, keepdim=True) / total
    return (e * (dy.float() - along) / total).to(x.dtype)


@kernel(CROSS_ENTROPY_BACKWARD, _DOMAIN, name="lse_taken_off")
def loss_by_lse(dloss, x, target):
    """dloss (exp(x - lse) - 1 at the target)."""
    label = torch.arange(x.shape[1], device=x.device) == target[:, None]
    p = torch.exp(x.float() - lse(x.float())) - label.float()
    return (p * dloss[:, None]).to(x.dtype)


@kernel(CROSS_ENTROPY_BACKWARD, _DOMAIN, name="scaled_first")
def loss_scaled_first(dloss, x, target):
    """e (dloss / sum e), and dloss taken off at the target."""
    e = torch.exp(x.float() - x.float().amax(-1, keepdim=True))
    dx = e * (dloss[:, None] / e.sum(-1, keepdim=True))
    label = torch.arange(x.shape[1], device=x.device) == target[:, None]
    return torch.where(label, dx - dloss[:, None], dx).to(x.dtype)


@kernel(RMS_NORM_FORWARD, _DOMAIN, name="weight_first")
def weight_first(x, weight, *, eps):
    """(x weight) rstd."""
    return (x.float() * weight.float() * reciprocal_root(x.float(), eps)).to(x.dtype)


@kernel(RMS_NORM_FORWARD, _DOMAIN, name="sum_of_shares")
def sum_of_shares(x, weight, *, eps):
    """x / sqrt(sum(x^2 / n) + eps) weight."""
    wide = x.float()
    square = (wide * wide / x.shape[1]).sum(-1, keepdim=True)
    return (wide / torch.sqrt(square + eps) * weight.float()).to(x.dtype)


@kernel(RMS_NORM_BACKWARD, _DOMAIN, name="root_thrice")
def root_thrice(dy, x, weight, *, eps):
    """rstd g + rstd (-rstd^2 sum(g x) / n) x with g = dy weight, as Liger has it."""
    wide_dy, wide = dy.float(), x.float()
    rstd, g = reciprocal_root(wide, eps), wide_dy * weight.float()
    along = -(1 / x.shape[1]) * rstd * rstd * (g * wide).sum(-1, keepdim=True)
    dweight = (wide_dy * (wide * rstd)).sum(0)
    return (rstd * g + rstd * (along * wide)).to(x.dtype), dweight.to(weight.dtype)


@kernel(LAYER_NORM_FORWARD, _DOMAIN, name="mean_of_shares")
def mean_of_shares(x, weight, bias, *, eps):
    """Sums of x (1 / n), and rstd weight before its product with x - mean."""
    share = 1 / x.shape[1]
    centred = x.float() - (x.float() * share).sum(-1, keepdim=True)
    rstd = torch.rsqrt((centred * centred * share).sum(-1, keepdim=True) + eps)
    return (centred * (rstd * weight.float()) + bias.float()).to(x.dtype)


@kernel(GEGLU_FORWARD, _DOMAIN, name="by_tanh")
def by_tanh(gate, up):
    """g (1 + tanh u) / 2 up."""
    g = gate.float()
    u = 0.7978845608028654 * (g + 0.044715 * g * g * g)
    return (0.5 * g * (1 + torch.tanh(u)) * up.float()).to(gate.dtype)


@kernel(SWIGLU_FORWARD, _DOMAIN, name="by_exp2")
def by_exp2(gate, up):
    """g (1 / (1 + 2^(-g log2 e))) up."""
    g = gate.float()
    return (g * (1 / (1 + torch.exp2(-g * _LOG2_E))) * up.float()).to(gate.dtype)


@kernel(SWIGLU_BACKWARD, _DOMAIN, name="recomputed")
def swiglu_backward(dy, gate, up):
    """As Liger has it."""
    g, wide_up, wide_dy = gate.float(), up.float(), dy.float()
    s = torch.sigmoid(g)
    dgate = wide_dy * (g * s * (1 - s) + s) * wide_up
    return dgate.to(gate.dtype), (wide_dy * (g * s)).to(up.dtype)
