"""Replays with random roundings: within the bounds of all ops, and what they take power from."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.analysis import bounds, truth
from kernel_workbench.oracles.analysis.arithmetic import Arithmetic
from kernel_workbench.oracles.analysis.propagation import Propagation, range_of
from kernel_workbench.oracles.analysis.replay import spread
from kernel_workbench.oracles.analysis.trace import tensors_of, trace
from kernel_workbench.oracles.op import Numerics
from kernel_workbench.oracles.reference import ReferenceOp

CPU = torch.device("cpu")
_DERIVED = [each for each in OPS.values() if isinstance(each, ReferenceOp)]
_NUMERICS = Numerics(gradual_underflow=True)
_CASES = 4  # an op


def _reciprocal(steps: int, x: Tensor) -> Tensor:
    """1 / (1 + x^2) by Newton's steps, each of which takes off what the one before was off by."""
    a = 1 + x.square()
    y = torch.full_like(a, 0.05)
    for _ in range(steps):
        y = y * (2 - a * y)
    return y


def _long(x: Tensor) -> Tensor:
    return _reciprocal(14, x)


def _short(x: Tensor) -> Tensor:
    return 1 / (1 + x.square())


def test_bound_that_counts_what_cancels_has_no_power() -> None:
    """It is small beside the values, and thousands of times what roundings do.

    Where roundings are to nearest the bound of more replays is taken in its place.
    """
    inputs = {"x": torch.rand(33, generator=torch.Generator().manual_seed(3)) * 2}
    numerics = Numerics(gradual_underflow=True, accumulation_roundoff=2.0**-23)
    (made,) = bounds(_long, inputs, numerics, (torch.float32,))
    (exact,) = truth(_long, inputs)
    assert bool((made.deterministic < exact / 20).all())
    assert made.powerless is not None
    assert bool(made.powerless.all())
    (other,) = bounds(_long, inputs, _NUMERICS, (torch.float32,))
    assert other.powerless is None
    assert other.replayed is not None
    assert other.probabilistic is not None
    assert bool((other.probabilistic < other.deterministic / 20).all())
    error = (_long(**inputs) - exact).abs()
    assert bool((error <= other.probabilistic).all())
    (plain,) = bounds(_short, inputs, _NUMERICS, (torch.float32,))
    assert plain.powerless is None


def test_last_cast_is_one_of_the_roundings() -> None:
    """A bound far above fp32's roundings has power where the output is rounded to bfloat16."""
    inputs = {"x": torch.rand(33, generator=torch.Generator().manual_seed(3)) * 2}
    (made,) = bounds(_long, inputs, _NUMERICS, (torch.bfloat16,))
    assert made.powerless is None


@pytest.mark.parametrize("op", _DERIVED, ids=lambda each: each.name)
def test_replays_are_within_the_bound(op: ReferenceOp) -> None:
    """An error of each operation that its rule allows leaves outputs within theirs."""
    cases = [
        each for each in op.cases() if each.tier == "ci" and each.distribution in {"normal", "inf"}
    ]
    for case in cases[:: len(cases) // _CASES]:
        inputs = op.inputs(case, CPU)
        values = tuple(tensors_of(inputs, torch.float64).values())
        ranges = [range_of(each) for each in inputs.values() if isinstance(each, Tensor)]
        graph = trace(op.reference.function, inputs)
        walk = Propagation(graph.graph, ranges, Arithmetic.of(_NUMERICS, case.dtype), None, str)
        constants = {name: each for name, each in vars(graph).items() if isinstance(each, Tensor)}
        constants |= dict(graph.named_buffers())
        for shown, pair in zip(
            spread(walk, constants, values), walk(constants, values), strict=True
        ):
            error = pair.before.error
            within = shown <= (0 if error is None else error)
            assert bool((~pair.value.isfinite() | within).all())


def test_errors_of_one_operation_cancel_nothing() -> None:
    """Four draws are all small for a few elements, which have power nevertheless."""
    x = torch.randn(16, 4096, generator=torch.Generator().manual_seed(0))
    (made,) = bounds(
        lambda x: torch.nn.functional.avg_pool1d(x, 8, 1), {"x": x}, _NUMERICS, [torch.float32]
    )
    assert made.powerless is None


@pytest.mark.parametrize(("rows", "columns", "replays"), [(1, 1, 0), (1, 64, 1), (64, 2, 1)])
def test_replays_of_all_are_for_more_than_a_few_elements(
    rows: int, columns: int, replays: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An element near 0 alone isn't worth them; a row of such, or one in 1024, is."""
    x = torch.full((64, 64), -1.0)
    x[:rows, :columns] = -1e-7
    calls = []
    inside = "kernel_workbench.oracles.analysis.bounds"  # the function of its name hides it
    monkeypatch.setattr(sys.modules[inside], "errors", lambda *_: calls.append(1))
    (made,) = bounds(lambda x: -x.expm1(), {"x": x}, _NUMERICS, [torch.float32])
    assert made.powerless is not None
    assert len(calls) == replays


def test_factor_of_one_is_no_operation() -> None:
    """elu multiplies by its alpha and its scale, which are 1."""
    graph = trace(torch.nn.functional.elu, {"input": torch.randn(8)}).graph
    assert not [node for node in graph.nodes if node.target == torch.ops.aten.mul.Tensor]


def test_places_without_power_are_the_same_by_rows_and_by_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Statistics of several axes, and weights of fewer, are those of each row."""
    draw = torch.Generator().manual_seed(0)
    x = -torch.rand(3, 4, 5, 6, generator=draw) - 0.5
    x[torch.rand(x.shape, generator=draw) < 1 / 8] = -1e-7  # whose exponential less 1 is lost
    inputs = {"x": x, "w": torch.randn(4, 5, 6, generator=draw)}

    def scaled(x: Tensor, w: Tensor) -> Tensor:
        return torch.expm1(x) * w * x.abs().amax((1, 2, 3), keepdim=True)

    (by_rows,) = bounds(scaled, inputs, _NUMERICS, [torch.float32], with_replays=False)
    inside = sys.modules["kernel_workbench.oracles.analysis.bounds"]
    monkeypatch.setattr(inside, "scale_of_rows", lambda *_: None)
    (by_all,) = bounds(scaled, inputs, _NUMERICS, [torch.float32], with_replays=False)
    assert by_rows.powerless is not None
    assert by_all.powerless is not None
    assert torch.equal(by_rows.powerless, by_all.powerless)
    assert torch.equal(by_all.powerless, x == x.amax())


def test_running_sum_has_power_where_it_comes_near_zero() -> None:
    """Its scale is that of a sum of so many numbers."""
    x = torch.randn(2, 8192, generator=torch.Generator().manual_seed(0))
    (made,) = bounds(lambda x: x.cumsum(-1), {"x": x}, _NUMERICS, [torch.float32])
    assert made.powerless is None


def test_statistics_of_several_axes_are_known_to_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer norm over three axes has small ones; nothing of all its numbers is computed again."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 16, 16, 16, generator=draw)
    x[0, 0, 0, 0] = x[0].flatten()[1:].mean()  # which is the mean of all
    inside = sys.modules["kernel_workbench.oracles.analysis.bounds"]
    calls = []

    def scales(*arguments: Any) -> dict[Any, Tensor]:  # noqa: ANN401
        calls.append(arguments)
        return {}

    monkeypatch.setattr(inside, "scales", scales)

    def norm(x: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, x.shape[1:])

    bounds(norm, {"x": x}, _NUMERICS, [torch.float32], with_replays=False)
    assert not calls
