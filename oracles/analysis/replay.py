"""Effects of roundings: a reference run again with a random part of each operation's error.

An operation's own error is what its rule says of exact arguments. A replay adds it times a number
drawn from -1 to 1, element by element, and hands the result on: errors that cancel further on do
so, which a bound that adds up magnitudes can't know.

In k operations, whose sums have n addends at most, k n such errors meet in an output at most.
Their magnitudes add up to no more than sqrt(k n) times the root of their squares (Cauchy, Schwarz),
which is sqrt(3) times what uniform draws come to. A bound that is above `largest_ratio` times what
replays show isn't that of errors that all err to one side: it counts what cancels.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from kernel_workbench.oracles.analysis.chains import AdditionTree
from kernel_workbench.oracles.analysis.places import MADE, MOVES
from kernel_workbench.oracles.analysis.propagation import (
    SOURCES,
    Propagation,
    last_uses,
    output_nodes,
)
from kernel_workbench.oracles.analysis.rules import SUMS
from kernel_workbench.oracles.analysis.trace import ROUNDS
from kernel_workbench.oracles.analysis.windows import addends_of

_aten = torch.ops.aten
_REPLAYS = 4
_PLACES = 4096  # that a tensor's random numbers may begin at
_FEWEST = 16  # numbers that are drawn are 2 to the power of that at least
_CHANCE = 4  # four draws come to a fourth of their root mean square in one of 150 elements


def addends(graph: Graph) -> int:
    """Return the largest number of addends in a sum of the graph."""
    sums = (node for node in graph.nodes if node.target in SUMS)
    return max((size for node in sums for size in _sizes(node)), default=1)


def count_operations(graph: Graph) -> int:
    """Return the number of operations that compute: the errors of one alone cancel nothing."""
    computed = (node for node in graph.nodes if node.op == "call_function")
    return sum(node.target not in MOVES | MADE | {operator.getitem} for node in computed)


def largest_ratio(graph: Graph, longest: int) -> float:
    """Return the largest ratio of a bound to a replay's root mean square where nothing cancels.

    longest: the result of `addends`.
    """
    return _CHANCE * math.sqrt(3 * count_operations(graph) * longest)


def _sizes(node: Node) -> Iterator[int]:
    """Yield the numbers of addends that a node may have: along one axis, or along all."""
    if node.target == _aten.convolution.default:
        _, weight, _, stride, _, dilation, transposed, _, groups = node.args
        shape = weight.meta["val"].shape  # type: ignore[union-attr]
        yield addends_of(shape, stride, dilation, groups, transposed=transposed)  # type: ignore[arg-type]
        return
    results = node.meta["val"]
    first = results[0] if isinstance(results, list | tuple) else results
    for argument in node.all_input_nodes:
        value = argument.meta["val"]
        yield from value.shape
        if isinstance(first, Tensor) and first.numel():
            yield value.numel() // first.numel()


def spread(
    walk: Propagation, constants: Mapping[str, Tensor], values: Sequence[Tensor]
) -> list[Tensor]:
    """Return the root mean square of each output's error over a few replays, in its shape."""
    draw = random.Random(0)  # noqa: S311  # of places

    def off(value: Any, local: Any) -> Any:  # noqa: ANN401
        if not isinstance(local, Tensor) or not value.is_floating_point():
            return value
        start = draw.randrange(_PLACES)
        numbers = _numbers(value.device, value.numel() + _PLACES)
        chance = numbers[start : start + value.numel()].view(value.shape)
        return torch.addcmul(value, local, chance)

    def bounded(local: Any, device: torch.device) -> Any:  # noqa: ANN401
        """An error, 0 where it isn't known; a constant's is made on the CPU."""
        if not isinstance(local, Tensor):
            return local
        local = local.to(device)
        if local.dtype == torch.bool or not local.numel() or float(local.amax()) < math.inf:
            return local
        return local.nan_to_num(nan=0.0, posinf=0.0)

    # A node's values: the exact one first, then those of the replays.
    results: dict[Node, list[Any]] = {}
    terms: dict[Node, AdditionTree] = {}
    arguments, done = zip(values, walk.ranges, strict=True), last_uses(walk.graph)
    for node in walk.graph.nodes:
        if node.op == "output":
            break
        if node.op in SOURCES:
            source = walk.source(node, constants, arguments)
            exact, local = source.value, source.sure
            runs = [exact] * _REPLAYS
        else:
            exact, *runs = (_result(node, results, replay) for replay in range(_REPLAYS + 1))
            local = walk.local(node, exact, lambda other: results[other][0], terms)
        if isinstance(exact, list | tuple):
            several = local if isinstance(local, list | tuple) else [local] * len(exact)
            several = [
                bounded(*part) for part in zip(several, (x.device for x in exact), strict=True)
            ]
            replayed = [list(map(off, run, several)) for run in runs]
        else:
            local = bounded(local, exact.device)
            replayed = [off(run, local) for run in runs]
        results[node] = [exact, *replayed]
        for ended in done.get(node, ()):
            del results[ended]
            terms.pop(ended, None)
    squares = []
    for node in output_nodes(walk.graph):
        exact, *runs = results[node]
        squares.append(sum((run.double() - exact.double()).square() for run in runs) / _REPLAYS)
    return [square.sqrt() for square in squares]


@lru_cache(maxsize=4)
def _drawn(device: torch.device, count: int) -> Tensor:
    draw = torch.Generator(device).manual_seed(0)
    return torch.empty(count, dtype=torch.float64, device=device).uniform_(-1, 1, generator=draw)


def _numbers(device: torch.device, count: int) -> Tensor:
    """Return at least `count` numbers from -1 to 1, kept because drawing takes long."""
    return _drawn(device, 1 << max((count - 1).bit_length(), _FEWEST))


def _result(node: Node, results: Mapping[Node, list[Any]], run: int) -> Any:  # noqa: ANN401
    args: Any = map_arg(node.args, lambda argument: results[argument][run])
    kwargs: Any = map_arg(node.kwargs, lambda argument: results[argument][run])
    if node.target is operator.getitem:
        return args[0][args[1]]
    if node.target == ROUNDS:
        return args[0]
    return node.target(*args, **kwargs)  # type: ignore[operator]
