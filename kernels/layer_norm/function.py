"""`layer_norm(x, weight, bias)` and `rms_norm(x, weight)`: functions with gradients, for a model.

Two operators of torch.library implement them, for torch.compile, autograd and torch's own checks
(`torch.library.opcheck`); a call that nothing traces does without them, which takes less host time
(decision 0043). The forward is PyTorch's own, with statistics in fp32; the backward is
our kernel that dispatch takes. Only first derivatives exist: a second one is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.kernels import launch_plan
from kernel_workbench.kernels.device import sm_of, unlaunchable
from kernel_workbench.kernels.eager import is_eager
from kernel_workbench.kernels.layer_norm.call import DTYPES, Gradients, as_matrix
from kernel_workbench.kernels.layer_norm.column_owning import column_owning
from kernel_workbench.kernels.layer_norm.row_persistent import WIDEST as WIDEST_PERSISTENT
from kernel_workbench.kernels.layer_norm.row_persistent import row_persistent
from kernel_workbench.kernels.layer_norm.row_sharing import SM, row_sharing
from kernel_workbench.kernels.layer_norm.row_sharing import WIDEST as WIDEST_SHARED
from kernel_workbench.oracles.op import dtype_name

_aten = torch.ops.aten


class NormError(ValueError):
    """Arguments that a norm doesn't serve; the message is a sentence for the user."""


def is_aligned(*tensors: Tensor) -> bool:
    """Return True if pointers and rows of matrices and vectors are whole 16 bytes, without gaps."""
    for tensor in tensors:
        lengths = [] if tensor.dim() == 1 else [tensor.shape[-1]]
        if tensor.dim() > 1 and tensor.shape[0] > 1:
            lengths.append(tensor.stride(0))
        places = [tensor.data_ptr(), *(length * tensor.element_size() for length in lengths)]
        if tensor.stride(-1) != 1 or any(place % 16 for place in places):
            return False
    return True


def kernel_for(x: Tensor) -> Callable[..., Gradients]:
    """Return the kernel for the width of x's rows and for its GPU."""
    n = x.shape[-1]
    if n <= WIDEST_PERSISTENT:
        return row_persistent
    if n <= WIDEST_SHARED and SM[0] <= sm_of(x.device) <= SM[1]:
        return row_sharing
    return column_owning


def backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    *,
    has_bias: bool,
) -> Gradients:
    """Return dx, dweight and dbias by the kernel that dispatch takes for such a case."""
    inputs = [tensor for tensor in (dy, x, weight, mean, rstd) if tensor is not None]
    key = launch_plan.key_of("norm_backward", inputs, weight is None, mean is None, has_bias)
    planned = launch_plan.planned(key, inputs)
    if planned is not None:
        dx, dweight, dbias = (*planned, None, None)[:3]
        assert dx is not None
        return dx, dweight, dbias
    recorded = launch_plan.Recorded()
    matrices = as_matrix(dy).data, as_matrix(x).data
    aligned = is_aligned(*matrices, *(() if weight is None else (weight,)))
    kernel = kernel_for(x)
    dx, dweight, dbias = kernel(
        *matrices, weight, mean, rstd, aligned=aligned, has_bias=has_bias, recorded=recorded
    )
    gradients = dx.view(x.shape), dweight, dbias
    outputs = [gradient for gradient in gradients if gradient is not None]
    launch_plan.keep(key, inputs, outputs, recorded)
    return gradients


@torch.library.custom_op("kernel_workbench::norm_forward", mutates_args=())
def forward_operator(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rms: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, and mean and rstd [..., 1] in fp32; RMS norm's mean is empty."""
    return _forward(x, weight, bias, eps, rms=rms)


def _forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, rms: bool
) -> tuple[Tensor, Tensor, Tensor]:
    reason = unlaunchable(x)  # refuse now, because the backward is launched by Triton
    if reason is not None:
        raise NormError(reason)
    shape, wide, wide_weight, wide_bias = [x.shape[-1]], x, weight, bias
    # On a CPU PyTorch keeps statistics in 16 bits, and is sometimes wrong with mixed types.
    if not x.is_cuda or (weight is not None and weight.dtype != x.dtype):
        wide = x.float()
        wide_weight = None if weight is None else weight.float()
        wide_bias = None if bias is None else bias.float()
    if rms:
        y, rstd = _aten._fused_rms_norm(wide, shape, wide_weight, eps)  # noqa: SLF001  # torch's own
        mean = rstd.new_empty(0)
    else:
        y, mean, rstd = torch.native_layer_norm(wide, shape, wide_weight, wide_bias, eps)
    if y.dtype != x.dtype:
        y = y.to(x.dtype)
    return y.contiguous(), mean, rstd


@forward_operator.register_fake
def _(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rms: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    del weight, bias, eps
    rstd = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
    return x.new_empty(x.shape), rstd.new_empty(0) if rms else torch.empty_like(rstd), rstd


@torch.library.custom_op("kernel_workbench::norm_backward", mutates_args=())
def backward_operator(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    has_bias: bool,
    rms: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dx, dweight and dbias; a gradient that doesn't exist is an empty tensor."""
    gradients = backward(dy, x, weight, None if rms else mean, rstd, has_bias=has_bias)
    dx, dweight, dbias = (
        x.new_empty(0) if gradient is None else gradient for gradient in gradients
    )
    return dx, dweight, dbias


@backward_operator.register_fake
def _(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    has_bias: bool,
    rms: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    del dy, mean, rstd, rms
    absent = x.new_empty(0)
    dweight = absent if weight is None else weight.new_empty(weight.shape)
    dbias = torch.empty_like(dweight) if has_bias else absent.clone()
    return x.new_empty(x.shape), dweight, dbias


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weight, bias, _, ctx.rms = inputs
    ctx.has_bias = bias is not None
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(x, weight, *output[1:])


def _differentiate(ctx: Any, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, mean, rstd = ctx.saved_tensors
    dx, dweight, dbias = backward_operator(dy, x, weight, mean, rstd, ctx.has_bias, ctx.rms)
    has_weight = weight is not None
    return dx, dweight if has_weight else None, dbias if ctx.has_bias else None, None, None


def _refuse(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
    del ctx, gradients
    raise NormError("a norm has no second derivative; call backward without create_graph=True")


forward_operator.register_autograd(_differentiate, setup_context=_save)
backward_operator.register_autograd(_refuse)


class _DifferentiableNorm(torch.autograd.Function):
    """The forward with its gradient, for a call that nothing traces.

    torch's wrapper of an operator with a registered gradient takes several times the host time. So
    does `setup_context`: torch inspects the forward's signature at each call.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, rms: bool
    ) -> Tensor:
        """Compute y."""
        y, mean, rstd = _forward(x, weight, bias, eps, rms=rms)
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.has_bias, ctx.rms = bias is not None, rms
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Compute gradients as the operator does; where gradients are traced too, by it."""
        x, weight, mean, rstd = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_eager(dy, x, weight):
            return _differentiate(ctx, dy)
        mean = None if ctx.rms else mean
        return *backward(dy, x, weight, mean, rstd, has_bias=ctx.has_bias), None, None


def _normalised(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, rms: bool
) -> Tensor:
    """Return y, with gradients, by the way that costs the least host time."""
    _check(x, weight, bias)
    y: Tensor
    if not is_eager(x, weight, bias):
        y = forward_operator(x, weight, bias, eps, rms)[0]
    elif torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (x, weight, bias)
    ):
        y = _DifferentiableNorm.apply(x, weight, bias, eps, rms)
    else:
        y = _forward(x, weight, bias, eps, rms=rms)[0]
    return y


def _check(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
    """Raise NormError for arguments that aren't served."""
    columns, device = x.shape[-1:], x.device  # torch makes both anew at each look
    if not x.dim() or not columns[0]:
        raise NormError(f"x must have columns, got shape {tuple(x.shape)}")
    _check_dtype("x", x)
    if weight is None and bias is not None:
        raise NormError("a bias needs a weight beside it; pass one of ones")
    for name, vector in (("weight", weight), ("bias", bias)):
        if vector is None:
            continue
        _check_dtype(name, vector)
        if vector.device != device:
            raise NormError(f"{name} must be on {device} like x, got {vector.device}")
        if vector.shape != columns:
            shape = tuple(vector.shape)
            raise NormError(f"{name} must have shape {tuple(columns)}, got {shape}")
    if weight is not None and bias is not None and weight.dtype != bias.dtype:
        kinds = dtype_name(weight.dtype), dtype_name(bias.dtype)
        raise NormError(f"bias must be {kinds[0]} like the weight, got {kinds[1]}")


def _check_dtype(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in DTYPES:
        dtypes = ", ".join(map(dtype_name, DTYPES))
        raise NormError(f"{name} must be {dtypes}, got {dtype_name(tensor.dtype)}")


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Return (x - mean) rstd weight + bias over the last axis.

    Gradients flow to x, weight and bias, and are bitwise repeatable on one device.

    Args:
        x: [..., n] in float32, float16 or bfloat16, with any strides.
        weight: [n], of x's or another of these dtypes, or None.
        bias: [n] like the weight, or None.
        eps: is added to the variance.

    Returns:
        [..., n] in x's dtype, packed.

    Raises:
        NormError: if the arguments aren't served.

    Example:
        y = layer_norm(x, weight, bias)
        y.sum().backward()
    """
    return _normalised(x, weight, bias, eps, rms=False)


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) weight over the last axis; otherwise as `layer_norm`."""
    return _normalised(x, weight, None, eps, rms=True)
