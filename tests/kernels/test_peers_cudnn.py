"""cuDNN's norms: how their operators are called, which cases they refuse, when they are absent."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from kernel_workbench.kernels.baselines import norms_cudnn
from kernel_workbench.kernels.registry import Domain, all_absent, all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import CONTIGUOUS, Case
from tests.builders.by_hand import DTYPES, kernel_of, run_on

F32, F16, BF16 = DTYPES
_FUNCTIONS = {op.name: (function, domain) for op, function, domain in norms_cudnn._PEERS}


def _case(
    op: str,
    options: str = "",
    dtype: torch.dtype = BF16,
    weight: torch.dtype | None = None,
    m: int = 13,
) -> Case:
    return Case(
        op=op,
        sizes=(("m", m), ("n", 264)),
        dtype=dtype,
        weight_dtype=weight or dtype,
        layout=CONTIGUOUS,
        options=frozenset(options.split()),
    )


def _is_of(x: Tensor, parameter: Tensor, dtype: torch.dtype) -> bool:
    """Return True if x is [m, n, 1, 1] and the parameter [1, n, 1, 1], as the operators ask."""
    (m, n), rest = x.shape[:2], (1, 1)
    return (
        x.shape == (m, n, *rest)
        and parameter.shape == (1, n, *rest)
        and parameter.dtype == dtype
        and x.is_contiguous()
    )


def _normalised(x: Tensor, eps: float, *, centred: bool) -> tuple[Tensor, Tensor, Tensor]:
    wide = x.double()
    mean = wide.mean(1, keepdim=True) if centred else torch.zeros_like(wide[:, :1])
    rstd = ((wide - mean).square().mean(1, keepdim=True) + eps).rsqrt()
    return (wide - mean) * rstd, mean.float(), rstd.float()


def _layernorm(x: Tensor, scale: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, ...]:
    assert _is_of(x, scale, F32)
    assert _is_of(x, bias, F32)
    x_hat, mean, rstd = _normalised(x, eps, centred=True)
    return (x_hat * scale + bias).to(x.dtype), mean, rstd


def _rmsnorm(x: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    assert _is_of(x, scale, x.dtype)
    x_hat, _, rstd = _normalised(x, eps, centred=False)
    return (x_hat * scale.double()).to(x.dtype), rstd


def _backward(dy: Tensor, scale: Tensor, x_hat: Tensor, rstd: Tensor, *, centred: bool) -> Tensor:
    g = dy.double() * scale.double()
    dx = g - x_hat * (g * x_hat).mean(1, keepdim=True)
    return (dx - g.mean(1, keepdim=True) * centred) * rstd


def _layernorm_bwd(
    dy: Tensor, x: Tensor, scale: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    assert _is_of(x, scale, F32)
    assert dy.shape == x.shape
    assert mean.shape == rstd.shape == (x.shape[0], 1, 1, 1)
    x_hat = (x.double() - mean) * rstd
    dx = _backward(dy, scale, x_hat, rstd, centred=True).to(x.dtype)
    dweight, dbias = ((dy.double() * factor).sum(0, keepdim=True) for factor in (x_hat, 1.0))
    return dx, dweight.float(), dbias.float()


def _rmsnorm_bwd(
    dy: Tensor, x: Tensor, scale: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    assert _is_of(x, scale, x.dtype)
    assert dy.shape == x.shape
    assert rstd.shape == (x.shape[0], 1, 1, 1)
    x_hat = x.double() * rstd
    dx = _backward(dy, scale, x_hat, rstd, centred=False).to(x.dtype)
    return dx, (dy.double() * x_hat).sum(0, keepdim=True).to(x.dtype), x.new_empty(0)


@pytest.fixture
def _operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators with the signatures and the checks of cuDNN's."""
    operators = SimpleNamespace(
        layernorm=_layernorm,
        rmsnorm=_rmsnorm,
        layernorm_bwd=_layernorm_bwd,
        rmsnorm_bwd=_rmsnorm_bwd,
    )
    monkeypatch.setattr(norms_cudnn, "_cudnn", lambda: operators)


@pytest.mark.usefixtures("_operators")
@pytest.mark.parametrize(
    "case",
    [
        *(
            _case(op, dtype=dtype)
            for op in ("layer_norm_backward", "layer_norm_forward", "rms_norm_forward")
            for dtype in DTYPES
        ),
        _case("rms_norm_backward", dtype=F32),
        _case("layer_norm_backward", weight=F32),
        _case("layer_norm_backward", "no_bias", F16),
        _case("layer_norm_backward", "no_bias rms_norm"),
        _case("layer_norm_forward", dtype=F16, weight=F32),
    ],
    ids=Case.id,
)
def test_operators_get_what_they_ask_for(case: Case) -> None:
    """Four axes, statistics of a row, a layer norm's weight in fp32, an RMS norm's in x's dtype."""
    function, domain = _FUNCTIONS[case.op]
    assert domain.reject(case, 90) is None
    candidate = kernel_of(function, op=OPS[case.op], features=domain.features)
    row = run_on(torch.device("cpu")).try_pair(candidate, case)
    assert row.status == "passed", row.reason


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (_case("layer_norm_backward", m=0), "serves m of 1 or more, got 0"),
        (
            _case("layer_norm_backward", "no_bias rms_norm", weight=F32),
            "serves RMS norm with a weight in the dtype of x",
        ),
        (_case("layer_norm_backward", "rms_norm"), "serves RMS norm without a bias"),
        (_case("layer_norm_backward", "no_weight"), "doesn't serve no_weight"),
    ],
)
def test_other_cases_are_refused(case: Case, reason: str) -> None:
    """By a sentence about what is missing."""
    domain: Domain = _FUNCTIONS[case.op][1]
    assert domain.reject(case, 90) == reason


def test_they_are_baselines_or_absent() -> None:
    """Absent with the command that installs them."""
    present = {kernel.op.name for kernel in all_kernels() if kernel.name == "cudnn"}
    absent = {peer.op.name: peer.reason for peer in all_absent() if peer.name == "cudnn"}
    assert present | set(absent) == set(_FUNCTIONS)
    assert set(absent.values()) <= {"not installed: pip install nvidia-cudnn-frontend"}
