"""Kernels that keep something between calls, which is wrong, and twins that don't.

Most keep by address what an argument held; one keeps the memory of its output.
"""

from __future__ import annotations

import torch

from kernel_workbench import (
    CROSS_ENTROPY_FORWARD,
    RMS_NORM_FORWARD,
    ROPE_FORWARD,
    Domain,
    kernel,
)

_DOMAIN = Domain(dtypes=(torch.float32,))
_kept = {}


def _once(name, tensor, made):
    """Return the first result for a tensor at this address, whatever the tensor holds now."""
    key = name, tensor.data_ptr(), tensor.shape, tensor.stride()
    if key not in _kept:
        _kept[key] = made.clone()
    return _kept[key]


def _losses(x, target):
    highest = x.amax(-1)
    lse = highest + (x - highest[:, None]).exp().sum(-1).log()
    return lse - x.gather(-1, target[:, None]).squeeze(-1)


def _norm(x, root, weight):
    return x * root * weight


def _turned(x, cos, sin):
    low, high = x.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def _root(x, eps):
    return (x.square().mean(-1, keepdim=True) + eps).rsqrt()


@kernel(CROSS_ENTROPY_FORWARD, _DOMAIN, name="keeps_targets")
def keeps_targets(x, target):
    """Labels as they were at the first call."""
    return _losses(x, _once("target", target, target))


@kernel(CROSS_ENTROPY_FORWARD, _DOMAIN, name="reads_targets")
def reads_targets(x, target):
    """Its twin."""
    return _losses(x, target)


@kernel(CROSS_ENTROPY_FORWARD, _DOMAIN, name="keeps_losses")
def keeps_losses(x, target):
    """One tensor of losses for all calls of as many rows: what a user kept is replaced."""
    losses = _kept.setdefault(len(x), torch.empty(len(x), device=x.device))
    return losses.copy_(_losses(x, target))


@kernel(RMS_NORM_FORWARD, _DOMAIN, name="keeps_weight")
def keeps_weight(x, weight, *, eps):
    """A weight in fp32 as it was at the first call."""
    return _norm(x, _root(x, eps), _once("weight", weight, weight))


@kernel(RMS_NORM_FORWARD, _DOMAIN, name="reads_weight")
def reads_weight(x, weight, *, eps):
    """Its twin."""
    return _norm(x, _root(x, eps), weight)


@kernel(ROPE_FORWARD, _DOMAIN, name="keeps_tables")
def keeps_tables(x, cos, sin):
    """Tables as they were at the first call."""
    return _turned(x, _once("cos", cos, cos), _once("sin", sin, sin))


@kernel(ROPE_FORWARD, _DOMAIN, name="reads_tables")
def reads_tables(x, cos, sin):
    """Its twin."""
    return _turned(x, cos, sin)
