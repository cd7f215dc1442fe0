"""Code that torch.compile makes runs where it is judged, as it runs for a user."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.suites.sandbox.worker_side.allocations import fresh_memory, see_compiled_code
from tests.builders.by_hand import kernel_of, run_on

CASE = next(
    each for each in LAYER_NORM_BACKWARD.cases() if each.id().endswith("m5-n5-float32-contiguous")
)


def closed_form(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, ...]:
    """The honest outputs, which a compiler's fault may be planted in."""
    x_hat = (x - mean[:, None]) * rstd[:, None]
    g = dy * weight
    c1, c2 = g.mean(1, keepdim=True), (g * x_hat).mean(1, keepdim=True)
    return (g - c1 - x_hat * c2) * rstd[:, None], (dy * x_hat).sum(0), dy.sum(0)


@pytest.fixture(autouse=True)
def _on_the_host(device: torch.device) -> Iterator[None]:
    if device.type != "cpu":
        pytest.skip("a compiler for the host is enough")
    yield
    torch._dynamo.reset()


def _counting(
    graphs: list[object], factor: float = 1.0
) -> Callable[..., Callable[..., tuple[Tensor, ...]]]:
    """A compiler that keeps the graphs, whose code makes each output larger by a factor."""

    def compiler(graph: torch.fx.GraphModule, _: object) -> Callable[..., tuple[Tensor, ...]]:
        graphs.append(graph)
        return lambda *args: tuple(each * factor for each in graph(*args))

    return compiler


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_compiled_kernel_is_one_graph_and_what_is_judged(factor: float) -> None:
    """So one that is wrong only when it is compiled fails, and its sound twin passes."""
    graphs: list[object] = []
    compiled = torch.compile(closed_form, backend=_counting(graphs, factor), fullgraph=True)

    def candidate(*args: Tensor, **named: Tensor) -> object:
        return compiled(*args, **named)

    row = run_on(torch.device("cpu")).try_pair(kernel_of(candidate), CASE)
    assert len(graphs) == 1
    assert (row.status, row.rule) == (
        ("passed", None) if factor == 1.0 else ("failed", "deterministic bound")
    )


def test_compiled_kernel_is_compiled_for_each_of_many_cases() -> None:
    """Ten are more than torch's limit of graphs, after which it runs a function uncompiled."""
    cases = [replace(CASE, sizes=(("m", 5), ("n", columns))) for columns in range(5, 15)]
    graphs: list[object] = []
    compiled = torch.compile(closed_form, backend=_counting(graphs, 1.01), dynamic=False)

    def candidate(*args: Tensor, **named: Tensor) -> object:
        return compiled(*args, **named)

    suite = run_on(torch.device("cpu"))
    rows = [suite.try_pair(kernel_of(candidate), case) for case in cases]
    assert {row.rule for row in rows} == {"deterministic bound"}
    assert len(graphs) == len(cases)


def test_memory_of_compiled_code_is_filled_and_counted() -> None:
    """The functions that such code takes for memory come through the dispatcher."""
    see_compiled_code()
    empty = vars(torch._C._dynamo.guards)["_empty_strided_cpu"]
    with fresh_memory(math.nan, torch.device("cpu")) as memory:
        made = empty((3, 4), (1, 3), torch.float32)
    assert made.stride() == (1, 3)
    assert bool(made.isnan().all())
    assert memory.peak_bytes == 48
