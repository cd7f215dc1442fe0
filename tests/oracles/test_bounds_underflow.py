"""Arithmetic that flushes subnormals stays within the bound that promises to allow it.

Each input makes another term of the bound necessary: without it a correct kernel that flushes, as
a GPU's fast paths do, would be called wrong by a factor of 4 to 1700.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.layer_norm.cases import layer_norm_case
from kernel_workbench.oracles.op import Inputs, Numerics


@pytest.fixture(autouse=True)
def _flushing() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU has no mode that flushes subnormals")
    yield
    torch.set_flush_denormal(False)


def _inputs(dy: Tensor, x: Tensor, weight: Tensor, *, rms_norm: bool = False) -> Inputs:
    wide = x.double()
    mean = torch.zeros(x.shape[0]) if rms_norm else wide.mean(1).float()
    rstd = ((wide - mean.double()[:, None]).square().mean(1) + 1e-5).rsqrt().float()
    return {"dy": dy, "x": x, "weight": weight, "mean": None if rms_norm else mean, "rstd": rstd}


def _flushed_difference() -> tuple[Inputs, int]:
    """An x of 1.9 * 2^-127 in a row of 1e-3: flushed, and then multiplied by r = 300."""
    x = torch.full((1, 7), 1e-3)
    x[0, 3] = 1.9 * 2.0**-127
    dy = torch.full((1, 7), 1e4)
    dy[0, 3] = 0
    return _inputs(dy, x, torch.ones(7), rms_norm=True), 7


def _flushed_product() -> tuple[Inputs, int]:
    """dx itself is subnormal, with an r of 1e-4: no factor r makes its loss small."""
    draw = torch.Generator().manual_seed(0)
    x = 1e4 * torch.randn(5, 64, generator=draw)
    return _inputs(2.0**-113 * torch.randn(5, 64, generator=draw), x, torch.ones(64)), 64


def _flushed_dy() -> tuple[Inputs, int]:
    """dy about the smallest normal number: flushed or not, times a weight of 1000."""
    draw = torch.Generator().manual_seed(1)
    dy = 2.0**-126 * (0.5 + torch.rand(5, 64, generator=draw))
    weight = torch.full((64,), 1000.0)
    return _inputs(dy, torch.randn(5, 64, generator=draw), weight), 64


def _flushed_dweight() -> tuple[Inputs, int]:
    """A flushed dy times an x^ of 32, in a row of one outlier."""
    x = torch.zeros(1, 1025)
    x[0, 0] = 1e5
    dy = torch.zeros(1, 1025)
    dy[0, 0] = 1.9 * 2.0**-127
    return _inputs(dy, x, torch.ones(1025)), 1025


@pytest.mark.parametrize(
    "made", [_flushed_difference, _flushed_product, _flushed_dy, _flushed_dweight]
)
def test_flushing_arithmetic_is_within_the_bound(made: object) -> None:
    """The closed form in fp32 with flushing on, against the oracle with flushing off."""
    assert callable(made)
    torch.set_flush_denormal(False)
    inputs, n = made()
    dy, x, weight, rstd = (inputs[name] for name in ("dy", "x", "weight", "rstd"))
    mean = inputs["mean"]
    for each in (dy, x, weight, rstd):
        assert isinstance(each, Tensor)
    options = frozenset({"rms_norm"}) if mean is None else frozenset[str]()
    case = layer_norm_case(x.shape[0], n, (torch.float32, torch.float32), options=options)
    truth = LAYER_NORM_BACKWARD.oracle(case, inputs)
    bounds = LAYER_NORM_BACKWARD.bound(case, inputs, truth, Numerics())
    torch.set_flush_denormal(True)
    r = rstd[:, None]
    x_hat = x * r if mean is None else (x - mean[:, None]) * r
    g = (dy * 1.0) * weight  # a read that flushes, as the product by 1 does
    c1 = torch.zeros_like(r) if mean is None else g.mean(1, keepdim=True)
    outputs = {
        "dx": (g - c1 - x_hat * (g * x_hat).mean(1, keepdim=True)) * r,
        "dweight": ((dy * 1.0) * x_hat).sum(0),
        "dbias": (dy * 1.0).sum(0),
    }
    torch.set_flush_denormal(False)
    for name, output in outputs.items():
        exact = truth[name]
        assert exact is not None
        assert ((output.double() - exact).abs() <= bounds[name].deterministic).all(), name
