"""cuDNN's norms, where the package nvidia-cudnn-frontend is installed.

They are PyTorch operators, which that package registers. The front end builds a graph for each
shape and dtype at its first call, in about half a second. cuDNN's layer norm takes its weight and
bias in fp32 and gives their gradients so; the conversions here are those of the package's own
`layer_norm`. RMS norm takes a weight in the dtype of x.

Source: NVIDIA/cudnn-frontend, python/cudnn/ops/norm (1.32.0).
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.kernels.baselines.layer_norm_torch import (
    DTYPES,
    Gradients,
    rms_norm_without_bias,
)
from kernel_workbench.kernels.baselines.optional import peer
from kernel_workbench.kernels.registry import Domain
from kernel_workbench.oracles import (
    LAYER_NORM_BACKWARD,
    LAYER_NORM_FORWARD,
    RMS_NORM_BACKWARD,
    RMS_NORM_FORWARD,
)
from kernel_workbench.oracles.op import Case


@cache
def _cudnn() -> Any:  # noqa: ANN401  (a namespace of operators has no public type)
    """Return the namespace of cuDNN's operators."""
    for name in ("layernorm", "rmsnorm"):
        import_module(f"cudnn.ops.norm.{name}")
    return torch.ops.cudnn


def _rows(tensor: Tensor) -> Tensor:
    """Return [m, n] as [m, n, 1, 1], or a statistic [m] as [m, 1, 1, 1]."""
    return tensor.view(*tensor.shape, *(1,) * (4 - tensor.dim()))


def _parameter(tensor: Tensor) -> Tensor:
    """Return a weight or bias [n] as [1, n, 1, 1]."""
    return tensor.view(1, -1, 1, 1)


def layer_norm_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    *,
    has_bias: bool = True,
) -> Gradients:
    """Compute dx, dweight and dbias; without a mean, those of RMS norm."""
    if mean is None:
        dx, dweight = _rms_norm_gradients(dy, x, weight, _rows(rstd))
        return dx, dweight, None
    dx, dweight, dbias = _cudnn().layernorm_bwd(
        _rows(dy), _rows(x), _parameter(weight.float()), _rows(mean), _rows(rstd)
    )
    dweight, dbias = (sums.view_as(weight).to(weight.dtype) for sums in (dweight, dbias))
    return dx.view_as(x), dweight, dbias if has_bias else None


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Compute y."""
    parameters = (_parameter(tensor.float()) for tensor in (weight, bias))
    y: Tensor = _cudnn().layernorm(_rows(x), *parameters, eps)[0]
    return y.view_as(x)


def _rms_norm_gradients(
    dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    dx, dweight, _ = _cudnn().rmsnorm_bwd(_rows(dy), _rows(x), _parameter(weight), rstd)
    return dx.view_as(x), dweight.view_as(weight)


def rms_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, *, eps: float
) -> tuple[Tensor, Tensor]:
    """Compute dx and dweight; rstd is that of cuDNN's forward."""
    rstd = _cudnn().rmsnorm(_rows(x), _parameter(weight), eps)[1]
    return _rms_norm_gradients(dy, x, weight, rstd)


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Compute y."""
    y: Tensor = _cudnn().rmsnorm(_rows(x), _parameter(weight), eps)[0]
    return y.view_as(x)


def _refusal(case: Case) -> str | None:
    if "rms_norm" in case.options and case.weight_dtype != case.dtype:
        return "serves RMS norm with a weight in the dtype of x"
    return rms_norm_without_bias(case)


def _domain(*features: str, weights: tuple[torch.dtype, ...] | None = DTYPES) -> Domain:
    return Domain(
        dtypes=DTYPES,
        weight_dtypes=weights,
        strides="contiguous",
        alignment=16,
        sizes={"m": (1, None), "n": (1, None)},
        features=frozenset(features),
        sm=(80, 999),
        devices=("cuda",),
        also=_refusal,
    )


_PEERS = (
    (LAYER_NORM_BACKWARD, layer_norm_backward, _domain("no_bias", "rms_norm")),
    (LAYER_NORM_FORWARD, layer_norm, _domain()),
    (RMS_NORM_BACKWARD, rms_norm_backward, _domain(weights=None)),
    (RMS_NORM_FORWARD, rms_norm, _domain(weights=None)),
)
for _op, _function, _served in _PEERS:
    peer(
        _op,
        _function,
        _served,
        name="cudnn",
        priority=-14,
        installed=find_spec("cudnn") is not None,
        package="nvidia-cudnn-frontend",
    )
