"""Peers that are operations of PyTorch, as a table: one row for each op and kernel.

`torch_native` calls PyTorch's own function, `torch_eager` the formula's operations one after the
other. Gradients are autograd's in fp32, unless a comment says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kernel_workbench.kernels.baselines.autograd_torch import DTYPES, gradients
from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import (
    ADD_RMS_NORM_BACKWARD,
    ADD_RMS_NORM_FORWARD,
    CROSS_ENTROPY_BACKWARD,
    CROSS_ENTROPY_FORWARD,
    GEGLU_BACKWARD,
    GEGLU_FORWARD,
    LAYER_NORM_FORWARD,
    MATMUL_FORWARD,
    RMS_NORM_BACKWARD,
    RMS_NORM_FORWARD,
    ROPE_BACKWARD,
    ROPE_FORWARD,
    SMOOTHED_CROSS_ENTROPY_BACKWARD,
    SMOOTHED_CROSS_ENTROPY_FORWARD,
    SOFTMAX_BACKWARD,
    SOFTMAX_FORWARD,
    SWIGLU_BACKWARD,
    SWIGLU_FORWARD,
)
from kernel_workbench.oracles.op import Numerics, Op

Function = Callable[..., object]
_losses = partial(functional.cross_entropy, reduction="none")
_gelu = partial(functional.gelu, approximate="tanh")


def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def _product(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


def _smoothed(x: Tensor, target: Tensor, smoothing: float, z: float) -> Tensor:
    loss = _losses(x, target, label_smoothing=smoothing)
    return loss + (z * x.logsumexp(-1).square()).masked_fill(target == -100, 0)


def _smoothed_backward(
    dloss: Tensor, x: Tensor, target: Tensor, *, smoothing: float, z: float
) -> Tensor:
    return gradients(lambda wide: _smoothed(wide, target, smoothing, z), dloss, x)[0]


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate) * up


def _geglu(gate: Tensor, up: Tensor) -> Tensor:
    return _gelu(gate) * up


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.float().chunk(2, -1)
    c, s = cos.float()[:, None], sin.float()[:, None]
    return torch.cat((low * c - high * s, high * c + low * s), -1).to(x.dtype)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, eps)


def _rms_norm_eager(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    wide = x.float()
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * rstd * weight.float()).to(x.dtype)


def _rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, ...]:
    """Return autograd's gradients in the inputs' own dtypes."""
    with torch.enable_grad():
        leaves = x.detach().requires_grad_(), weight.detach().requires_grad_()
        return torch.autograd.grad(_rms_norm(*leaves, eps), leaves, dy)


def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, ...]:
    """Return the norm of a sum, by two operations, the first of which casts."""
    s = x + residual
    return _rms_norm(s, weight, eps), s


def _add_rms_norm_backward(
    dy: Tensor, ds: Tensor, x: Tensor, weight: Tensor, *, eps: float
) -> tuple[Tensor, ...]:
    def outputs(s: Tensor, scale: Tensor) -> Tensor:
        return torch.stack((_rms_norm(s, scale, eps), s))

    return gradients(outputs, torch.stack((dy, ds)), x, weight)


_PLAIN, _ANY = Numerics(), Domain(dtypes=DTYPES)
_ACTIVATION = Numerics(casts="activation")  # before its product with `up`
_PRODUCT = Numerics(accumulation_roundoff=2.0**-23)  # tensor cores don't round a sum to nearest

# Op, name, function, numerics.
_PEERS: tuple[tuple[Op, str, Function, Numerics], ...] = (
    (SOFTMAX_FORWARD, "torch_native", _softmax, _PLAIN),
    (SOFTMAX_BACKWARD, "torch_native", lambda dy, x: gradients(_softmax, dy, x)[0], _PLAIN),
    (
        CROSS_ENTROPY_FORWARD,
        "torch_native",
        lambda x, target: _losses(x.float(), target),
        _PLAIN,
    ),
    (
        CROSS_ENTROPY_BACKWARD,
        "torch_native",
        lambda dloss, x, target: gradients(partial(_losses, target=target), dloss, x)[0],
        _PLAIN,
    ),
    (
        SMOOTHED_CROSS_ENTROPY_FORWARD,
        "torch_native",
        lambda x, target, *, smoothing, z: _smoothed(x.float(), target, smoothing, z),
        _PLAIN,
    ),
    (SMOOTHED_CROSS_ENTROPY_BACKWARD, "torch_native", _smoothed_backward, _PLAIN),
    (SWIGLU_FORWARD, "torch_eager", _swiglu, _ACTIVATION),
    (GEGLU_FORWARD, "torch_eager", _geglu, _ACTIVATION),
    (
        SWIGLU_BACKWARD,
        "torch_eager",
        lambda dy, gate, up: gradients(_swiglu, dy, gate, up),
        _PLAIN,
    ),
    (GEGLU_BACKWARD, "torch_eager", lambda dy, gate, up: gradients(_geglu, dy, gate, up), _PLAIN),
    (ROPE_FORWARD, "torch_eager", _rotated, _PLAIN),
    (ROPE_BACKWARD, "torch_eager", lambda dy, cos, sin: _rotated(dy, cos, -sin), _PLAIN),
    # cuBLAS on a GPU, oneDNN and others on a CPU.
    (MATMUL_FORWARD, "torch_native", _product, _PRODUCT),
    (
        LAYER_NORM_FORWARD,
        "torch_native",
        lambda x, weight, bias, *, eps: functional.layer_norm(x, weight.shape, weight, bias, eps),
        _PLAIN,
    ),
    (RMS_NORM_FORWARD, "torch_native", lambda x, weight, *, eps: _rms_norm(x, weight, eps), _PLAIN),
    (RMS_NORM_BACKWARD, "torch_native", _rms_norm_backward, _PLAIN),
    (ADD_RMS_NORM_FORWARD, "torch_native", _add_rms_norm, Numerics(casts="s")),
    (ADD_RMS_NORM_BACKWARD, "torch_native", _add_rms_norm_backward, _PLAIN),
)

for _op, _name, _function, _numerics in _PEERS:
    kernel(_op, _ANY, numerics=_numerics, priority=-10, name=_name)(_function)
kernel(
    RMS_NORM_FORWARD,
    Domain(dtypes=DTYPES, weight_dtypes=DTYPES),
    priority=-20,
    name="torch_eager",
)(_rms_norm_eager)
