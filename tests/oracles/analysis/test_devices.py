"""Truth, bounds and emulation of ops that are functions, where tensors aren't on the CPU."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.analysis import replay, stochastic
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
