"""`layer_norm(x, weight, bias)` and `rms_norm(x, weight)`: functions with gradients, for a model.

Two operators of torch.library carry them, so that torch.compile, autograd and torch's own checks
(`torch.library.opcheck`) see what they expect. The forward is PyTorch's own, with its statistics in
fp32; the backward is the kernel of ours that dispatch takes. First derivatives alone: a second one
is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.kernels.device import sm_of, unlaunchable
from kernel_workbench.kernels.layer_norm.call import DTYPES, Gradients, as_matrix
from kernel_workbench.kernels.layer_norm.column_owning import column_owning
from kernel_workbench.kernels.layer_norm.row_persistent import WIDEST as WIDEST_PERSISTENT
from kernel_workbench.kernels.layer_norm.row_persistent import row_persistent
from kernel_workbench.kernels.layer_norm.row_sharing import SM, row_sharing
from kernel_workbench.kernels.layer_norm.row_sharing import WIDEST as WIDEST_SHARED
from kernel_workbench.oracles.op import dtype_name

_aten = torch.ops.aten


class NormError(ValueError):
    """What a norm can't serve; the message is a sentence for the user."""


def is_aligned(*tensors: Tensor) -> bool:
    """Whether pointers and rows of matrices, and of vectors, are whole 16 bytes, without gaps."""
    for each in tensors:
        lengths = [] if each.dim() == 1 else [each.shape[-1]]
        if each.dim() > 1 and each.shape[0] > 1:
            lengths.append(each.stride(0))
        places = [each.data_ptr(), *(length * each.element_size() for length in lengths)]
        if each.stride(-1) != 1 or any(place % 16 for place in places):
            return False
    return True


def kernel_for(x: Tensor) -> Callable[..., Gradients]:
    """By the width of its rows, and by its GPU."""
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
    """dx, dweight and dbias, by the kernel that dispatch takes for such a case."""
    matrices = as_matrix(dy).data, as_matrix(x).data
    aligned = is_aligned(*matrices, *(() if weight is None else (weight,)))
    kernel = kernel_for(x)
    dx, dweight, dbias = kernel(*matrices, weight, mean, rstd, aligned=aligned, has_bias=has_bias)
    return dx.view(x.shape), dweight, dbias


@torch.library.custom_op("kernel_workbench::norm_forward", mutates_args=())
def forward_operator(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rms: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, and mean and rstd [..., 1] in fp32; of RMS norm the mean is empty."""
    reason = unlaunchable(x)  # a gradient would be
    if reason is not None:
        raise NormError(reason)
    shape, wide, wide_weight, wide_bias = [x.shape[-1]], x, weight, bias
    # On a CPU PyTorch keeps statistics in a half, and of mixed types it isn't always right.
    if not x.is_cuda or (weight is not None and weight.dtype != x.dtype):
        wide = x.float()
        wide_weight = None if weight is None else weight.float()
        wide_bias = None if bias is None else bias.float()
    if rms:
        y, rstd = _aten._fused_rms_norm(wide, shape, wide_weight, eps)  # noqa: SLF001  # torch's own
        mean = rstd.new_empty(0)
    else:
        y, mean, rstd = torch.native_layer_norm(wide, shape, wide_weight, wide_bias, eps)
    return y.to(x.dtype).contiguous(), mean, rstd


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
    """dx, dweight and dbias; what there isn't a gradient of is empty."""
    made = backward(dy, x, weight, None if rms else mean, rstd, has_bias=has_bias)
    dx, dweight, dbias = (x.new_empty(0) if each is None else each for each in made)
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
    given = weight is not None
    return dx, dweight if given else None, dbias if ctx.has_bias else None, None, None


def _refuse(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
    del ctx, gradients
    raise NormError("a norm has no second derivative; call backward without create_graph=True")


forward_operator.register_autograd(_differentiate, setup_context=_save)
backward_operator.register_autograd(_refuse)


def _check(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
    """Raises NormError for what can't be served."""
    known = ", ".join(map(dtype_name, DTYPES))
    if not x.dim() or not x.shape[-1]:
        raise NormError(f"x must have columns, got shape {tuple(x.shape)}")
    if weight is None and bias is not None:
        raise NormError("a bias needs a weight beside it; pass one of ones")
    for name, each in (("x", x), ("weight", weight), ("bias", bias)):
        if each is None:
            continue
        if each.dtype not in DTYPES:
            raise NormError(f"{name} must be {known}, got {dtype_name(each.dtype)}")
        if each.device != x.device:
            raise NormError(f"{name} must be on {x.device} like x, got {each.device}")
        if name != "x" and each.shape != x.shape[-1:]:
            shape = tuple(each.shape)
            raise NormError(f"{name} must have shape {tuple(x.shape[-1:])}, got {shape}")
    if weight is not None and bias is not None and weight.dtype != bias.dtype:
        kinds = dtype_name(weight.dtype), dtype_name(bias.dtype)
        raise NormError(f"bias must be {kinds[0]} like the weight, got {kinds[1]}")


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """(x - mean) rstd weight + bias over the last axis: x [..., n], weight and bias [n].

    In float32, float16 or bfloat16, with any strides; the weight's type may differ from x's.
    Gradients flow to x, weight and bias, and are bitwise repeatable on one device. Raises
    NormError for what can't be served.
    """
    _check(x, weight, bias)
    y: Tensor = forward_operator(x, weight, bias, eps, False)[0]
    return y


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """x / sqrt(mean(x^2) + eps) weight over the last axis; else as `layer_norm`."""
    _check(x, weight, None)
    y: Tensor = forward_operator(x, weight, None, eps, True)[0]
    return y
