"""Truth, bounds and emulation of ops that are functions, where tensors aren't on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import OPS, analysis
from kernel_workbench.oracles.analysis import replay, stochastic
from kernel_workbench.oracles.analysis.trace import trace
from kernel_workbench.oracles.op import Numerics
from kernel_workbench.oracles.reference import ReferenceOp
from tests.builders.elsewhere import (
    ELSEWHERE,
    MixedDevicesError,
    brought_back,
    elsewhere,
    placed,
)

pytestmark = pytest.mark.long_run

_NAMES = [name for name, op in OPS.items() if isinstance(op, ReferenceOp)]
_DRAWN = replay._drawn
_NORMAL = stochastic._drawn


def _drawn_here(device: torch.device, count: int) -> Tensor:
    """A generator of random numbers is of a real device."""
    made = _DRAWN(torch.device("cpu"), count)
    return placed(made) if device == ELSEWHERE else made


def _normal_here(
    shape: torch.Size, device: torch.device, generators: dict[torch.device, torch.Generator]
) -> Tensor:
    drawn = _NORMAL(shape, torch.device("cpu"), generators)
    return placed(drawn) if device == ELSEWHERE else drawn


@pytest.mark.parametrize("name", _NAMES)
def test_bounds_are_the_same_on_another_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit; an operation on tensors of both devices fails here as it does on a GPU."""
    monkeypatch.setattr(replay, "_drawn", _drawn_here)
    monkeypatch.setattr(stochastic, "_drawn", _normal_here)
    op = OPS[name]
    assert op.emulate is not None
    for case in [each for each in op.cases() if each.tier == "ci"][::15]:
        inputs = op.inputs(case, torch.device("cpu"))
        truth = op.oracle(case, inputs)
        bounds = op.bound(case, inputs, truth, Numerics())
        there = {each: placed(value) for each, value in inputs.items()}
        with elsewhere():
            truth = op.oracle(case, there)
            other = op.bound(case, there, truth, Numerics())
            op.emulate(case, there, Numerics())
        for output, bound in bounds.items():
            its = brought_back(other[output].deterministic)
            assert torch.equal(bound.deterministic.nan_to_num(), its.nan_to_num()), case.id()


def test_operation_on_tensors_of_both_devices_fails() -> None:
    """But for numbers where PyTorch takes them, and copies."""
    with elsewhere():
        there, here = torch.ones(3, device=ELSEWHERE), torch.ones(3)
        assert (there + torch.tensor(2.0)).device == ELSEWHERE
        assert there.to("cpu").device == here.device
        for mixed in (
            partial(torch.add, there, here),
            partial(torch.addcmul, there, there, here[0]),
        ):
            with pytest.raises(MixedDevicesError, match="tensors of both devices"):
                mixed()


def _chained(x: Tensor) -> Tensor:
    return x - 0.5 - 0.2 + 0.1


def _chosen(x: Tensor) -> Tensor:
    return torch.where(x > 0, x + 0.1 + 0.7, 0.3 - x) - 0.9


def _created(x: Tensor) -> Tensor:
    places = torch.arange(x.shape[-1], device=x.device, dtype=x.dtype)
    return (x * places + torch.full_like(x, 0.1)).sum(-1) + torch.zeros((), device=x.device)


def _fused_on_a_gpu(x: Tensor) -> Tensor:
    return torch.sin(x) if x.device.type == "cpu" else torch.special.zeta(x, x)


_HOME = {"device": ELSEWHERE}


def _at_home(x: Tensor) -> Tensor:
    """Fail on another device, as a function does that holds tensors of its own."""
    if x.device != _HOME["device"]:
        raise RuntimeError("expected all tensors to be on the same device")
    return 3 * x - 0.1


@pytest.mark.parametrize("reference", [_chained, _chosen, _created, _fused_on_a_gpu, _at_home])
def test_users_function_has_the_same_bounds_on_another_device(
    reference: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked there first, so that no graph of the CPU's is kept."""
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    with elsewhere():
        inputs = {"x": placed(x)}
        (there,) = analysis.bounds(reference, inputs, Numerics(), (torch.float32,))
    monkeypatch.setitem(_HOME, "device", x.device)
    (here,) = analysis.bounds(reference, {"x": x}, Numerics(), (torch.float32,))
    assert torch.equal(brought_back(there.deterministic), here.deterministic)


def test_what_a_graph_creates_is_on_the_inputs_device() -> None:
    """Also where a graph of the same shapes is kept for another device."""
    x = torch.randn(4, 6)
    with elsewhere():
        graph = trace(_created, {"x": placed(x)})
    devices = {node.kwargs["device"] for node in graph.graph.nodes if "device" in node.kwargs}
    assert devices == {ELSEWHERE}
    graph = trace(_created, {"x": x})
    devices = {node.kwargs["device"] for node in graph.graph.nodes if "device" in node.kwargs}
    assert devices == {torch.device("cpu")}
