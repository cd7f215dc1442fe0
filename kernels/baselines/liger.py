"""Liger's Triton kernels, where the package liger-kernel is installed.

Each op goes through the `torch.autograd.Function` that Liger's users call, or its own callee. The
functions make inputs contiguous, and a row is one block, of at most 65536 columns. Some write
gradients over their inputs, which are copies here. They differ from the op on purpose:

    rms_norm, add_rms_norm    casting_mode "gemma" casts nothing but outputs; "llama", the default,
                              casts what is normalised before its product with the weight
    swiglu, geglu             the activation is cast before its product with `up`, and geglu's
                              backward casts dy up, too, which float16 may not hold
    cross entropy             the loss is of the logits' dtype; so is the gradient, before it is
                              multiplied by the loss's: the backward is registered for fp32 only
    softmax                   its backward reads the stored y: registered for fp32 only
    rope                      takes q and k together, here k is q's first head again; it computes in
                              the tables' dtype, here fp32

Source: linkedin/Liger-Kernel, liger_kernel/ops/ (0.8.5).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.kernels.baselines.autograd_torch import DTYPES
from kernel_workbench.kernels.baselines.optional import imported_without, peer
from kernel_workbench.kernels.registry import Domain
from kernel_workbench.oracles import (
    ADD_RMS_NORM_BACKWARD,
    ADD_RMS_NORM_FORWARD,
    CROSS_ENTROPY_BACKWARD,
    CROSS_ENTROPY_FORWARD,
    GEGLU_BACKWARD,
    GEGLU_FORWARD,
    LAYER_NORM_FORWARD,
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
from kernel_workbench.oracles.op import Case, Numerics, Op

Function = Callable[..., Any]
_IN_PLACE = False  # write gradients to new memory


def liger_op(module: str, name: str) -> Any:  # noqa: ANN401  (Liger has no types)
    """Return an object of Liger's, which takes seconds to import.

    Liger asks whether peft is installed by importing it, and with it transformers, in 10 s. Its
    kernels need neither.
    """
    return getattr(imported_without(f"liger_kernel.ops.{module}", "peft"), name)


def _gradients(function: Function, dy: tuple[Tensor, ...], *of: Tensor) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in of]
        return torch.autograd.grad(function(*leaves), leaves, dy)


def _rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Any:  # noqa: ANN401
    function = liger_op("rms_norm", "LigerRMSNormFunction")
    return function.apply(x, weight, eps, 0.0, "gemma", _IN_PLACE)


def _rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, ...]:
    return _gradients(partial(_rms_norm, eps=eps), (dy,), x, weight)


def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> Any:  # noqa: ANN401
    function = liger_op("fused_add_rms_norm", "LigerFusedAddRMSNormFunction")
    return function.apply(x, residual, weight, eps, 0.0, "gemma", _IN_PLACE)


def _add_rms_norm_backward(
    dy: Tensor, ds: Tensor, x: Tensor, weight: Tensor, *, eps: float
) -> tuple[Tensor, ...]:
    def outputs(s: Tensor, scale: Tensor) -> Any:  # noqa: ANN401
        return _add_rms_norm(s, torch.zeros_like(s), scale, eps=eps)

    return _gradients(outputs, (dy, ds), x, weight)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Any:  # noqa: ANN401
    return liger_op("layer_norm", "LigerLayerNormFunction").apply(x, weight, bias, eps)


def _softmax(x: Tensor) -> Any:  # noqa: ANN401
    return liger_op("softmax", "LigerSoftmaxFunction").apply(x)


def _softmax_backward(dy: Tensor, x: Tensor) -> Tensor:
    return _gradients(_softmax, (dy,), x)[0]


def _swiglu(gate: Tensor, up: Tensor) -> Any:  # noqa: ANN401
    return liger_op("swiglu", "LigerSiLUMulFunction").apply(gate, up)


def _geglu(gate: Tensor, up: Tensor) -> Any:  # noqa: ANN401
    return liger_op("geglu", "LigerGELUMulFunction").apply(gate, up)


def _swiglu_backward(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, ...]:
    return _gradients(_swiglu, (dy,), gate.clone(), up.clone())


def _geglu_backward(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, ...]:
    return _gradients(_geglu, (dy,), gate.clone(), up.clone())


def _turned(name: str, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    q = x.clone(memory_format=torch.contiguous_format)[None].transpose(1, 2)
    k = q[:, :1].transpose(1, 2).clone().transpose(1, 2)
    tables = (torch.cat((table, table), -1).float() for table in (cos, sin))
    turned: Tensor = liger_op("rope", name)(q, k, *tables)[0]
    return turned.transpose(1, 2)[0]


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return _turned("rope_forward", x, cos, sin)


def _rope_backward(dy: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return _turned("rope_backward", dy, cos, sin)


def _losses(x: Tensor, target: Tensor, *, smoothing: float = 0.0, z: float = 0.0) -> Any:  # noqa: ANN401
    function = liger_op("cross_entropy", "LigerCrossEntropyFunction")
    return function.apply(x.clone(), target, None, -100, z, smoothing, "none")[0].float()


def _losses_backward(dloss: Tensor, x: Tensor, target: Tensor, **options: float) -> Tensor:
    return _gradients(lambda logits: _losses(logits, target, **options), (dloss,), x)[0]


def _domain(*dtypes: torch.dtype, **sizes: tuple[int, int | None]) -> Domain:
    return Domain(dtypes=dtypes, weight_dtypes=dtypes, sizes=sizes)


_ROWS, _SINGLE_ROWS = _domain(*DTYPES, n=(1, 65536)), _domain(torch.float32, n=(1, 65536))
_LOSSES, _SINGLE_LOSSES = _domain(*DTYPES, m=(1, None)), _domain(torch.float32, m=(1, None))
_PLAIN, _ACTIVATION = Numerics(), Numerics(casts="activation")
_ACTIVATIONS = Numerics(casts="activation dactivation")


def _overflow(case: Case) -> str | None:
    overflows = case.distribution == "near_overflow"
    return "casts dy up, which is past float16's largest there" if overflows else None


_LOSS, _SUM = Numerics(casts="loss"), Numerics(casts="s")
_PEERS: tuple[tuple[Op, Function, Domain, Numerics], ...] = (
    (RMS_NORM_FORWARD, _rms_norm, _ROWS, _PLAIN),
    (RMS_NORM_BACKWARD, _rms_norm_backward, _ROWS, _PLAIN),
    (ADD_RMS_NORM_FORWARD, _add_rms_norm, _ROWS, _SUM),
    (ADD_RMS_NORM_BACKWARD, _add_rms_norm_backward, _ROWS, _PLAIN),
    (LAYER_NORM_FORWARD, _layer_norm, _ROWS, _PLAIN),
    (SOFTMAX_FORWARD, _softmax, _ROWS, _PLAIN),
    (SOFTMAX_BACKWARD, _softmax_backward, _SINGLE_ROWS, _PLAIN),
    (SWIGLU_FORWARD, _swiglu, _ROWS, _ACTIVATION),
    (SWIGLU_BACKWARD, _swiglu_backward, _ROWS, _PLAIN),
    (GEGLU_FORWARD, _geglu, _ROWS, _ACTIVATION),
    (GEGLU_BACKWARD, _geglu_backward, replace(_ROWS, also=_overflow), _ACTIVATIONS),
    (ROPE_FORWARD, _rope, _domain(*DTYPES), _PLAIN),
    (ROPE_BACKWARD, _rope_backward, _domain(*DTYPES), _PLAIN),
    (CROSS_ENTROPY_FORWARD, _losses, _LOSSES, _LOSS),
    (CROSS_ENTROPY_BACKWARD, _losses_backward, _SINGLE_LOSSES, _PLAIN),
    (SMOOTHED_CROSS_ENTROPY_FORWARD, _losses, _LOSSES, _LOSS),
    (SMOOTHED_CROSS_ENTROPY_BACKWARD, _losses_backward, _SINGLE_LOSSES, _PLAIN),
)

# All run under the interpreter, in 160 s of a core; these eight, in 50 s, run on a CPU always.
_INTERPRETED = {
    *(RMS_NORM_FORWARD.name, SOFTMAX_BACKWARD.name, SWIGLU_FORWARD.name, ROPE_FORWARD.name),
    *(CROSS_ENTROPY_FORWARD.name, CROSS_ENTROPY_BACKWARD.name),
    *(SMOOTHED_CROSS_ENTROPY_FORWARD.name, SMOOTHED_CROSS_ENTROPY_BACKWARD.name),
}

for _op, _function, _served, _numerics in _PEERS:
    _devices = ("cpu", "cuda") if _op.name in _INTERPRETED else ("cuda",)
    peer(
        _op,
        _function,
        replace(_served, devices=_devices),
        name="liger",
        numerics=_numerics,
        priority=-12,
        installed=find_spec("liger_kernel") is not None,
        package="liger-kernel",
    )
