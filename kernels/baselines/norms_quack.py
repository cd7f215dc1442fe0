"""Quack's backward of layer norm and of RMS norm, where the package quack-kernels is installed.

Its kernels in the CuTe DSL run a program for each SM, which sums dweight and dbias of its share of
the rows in fp32; PyTorch adds up the programs' sums; several SMs share a wide row. Each kernel is
compiled at its first call, for seconds. RMS norm's backward takes rstd from the case or from its
own forward.

Source: Dao-AILab/quack, quack/rmsnorm.py (0.6.5).
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from kernel_workbench.kernels.baselines.layer_norm_torch import (
    DTYPES,
    Gradients,
    rms_norm_without_bias,
)
from kernel_workbench.kernels.baselines.optional import peer
from kernel_workbench.kernels.registry import Domain
from kernel_workbench.oracles import LAYER_NORM_BACKWARD, RMS_NORM_BACKWARD

_WIDEST = 65536


def _quack() -> Any:  # noqa: ANN401
    return import_module("quack.rmsnorm")


def layer_norm(
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
        dx, dweight, *_ = _quack().rmsnorm_bwd(x, weight, dy, rstd)
        return dx, dweight, None
    gradients: Gradients = _quack().layernorm_bwd(x, weight, dy, rstd, mean, has_bias=has_bias)
    return gradients


def rms_norm(dy: Tensor, x: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Compute dx and dweight."""
    quack = _quack()
    rstd = quack.rmsnorm_fwd(x, weight, eps=eps, store_rstd=True)[2]
    dx, dweight, *_ = quack.rmsnorm_bwd(x, weight, dy, rstd)
    return dx, dweight


def _domain(*features: str) -> Domain:
    return Domain(
        dtypes=DTYPES,
        weight_dtypes=DTYPES,
        strides="contiguous",
        alignment=16,
        sizes={"m": (1, None), "n": (1, _WIDEST)},
        features=frozenset(features),
        sm=(90, 121),
        devices=("cuda",),
        also=rms_norm_without_bias,
    )


_PEERS = (
    (LAYER_NORM_BACKWARD, layer_norm, _domain("no_bias", "rms_norm")),
    (RMS_NORM_BACKWARD, rms_norm, _domain()),
)
for _op, _function, _served in _PEERS:
    peer(
        _op,
        _function,
        _served,
        name="quack",
        priority=-13,
        installed=find_spec("quack") is not None,
        package="quack-kernels",
    )
