"""How far roundings that vary bring a result: a spread for each element, of many replays.

A worst case adds up magnitudes, layer by layer, and what cancels in a deep network is lost: ten
layers cost a factor of 1e5. Here the reference runs again some tens of times, each operation off by
normal numbers as large as what its rule promises of exact arguments. The spread of an element over
the replays estimates S, the root of the sum of squares of all that roundings may do to it, with
what they share and cancel; and a kernel's error is within lambda S. The proof and its assumptions
are in docs/derivations/analysis.md, "Bounds from replays".

Where a function isn't smooth on the scale of an error, as at the corner of a relu, and where it may
be near a pole, its rule says what errors do, and what replays don't show of that is drawn beside.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from kernel_workbench.oracles.analysis.chains import AdditionTree
from kernel_workbench.oracles.analysis.places import MADE, MOVES
from kernel_workbench.oracles.analysis.propagation import (
    SOURCES,
    Propagation,
    last_uses,
    output_nodes,
)
from kernel_workbench.oracles.analysis.quantities import Quantity, added_up, constant_error
from kernel_workbench.oracles.analysis.replay import count_operations
from kernel_workbench.oracles.analysis.rules import SUMS, overloads
from kernel_workbench.oracles.analysis.sums import flat_products
from kernel_workbench.oracles.analysis.trace import ROUNDS
from kernel_workbench.oracles.analysis.windows import addends_of, by_channel, flat_filters
from kernel_workbench.oracles.rounding import Gamma

_aten = torch.ops.aten
_RUNS = 32, 24, 16, 12  # replays: as many as there is room for
_PARTS = 4  # of a sum of products, whose partial sums are looked at
_FAILURE = 1e-6  # of an output of all elements together
_MOST_BYTES = 4 * 2**30  # that all replays of the numbers alive at one time may take
_CURVED = 1.25  # times what replays show: a rule that says more sees a corner
_ALIKE = "addends that are all but equal"
_NEAR_POLE = 1 / 16  # of a number: an error that large may not be taken for small
_WIDE = 1 / 8  # an error of an exponent that may not be taken for small


class _Root(Gamma):
    """The spread of n varying roundings, sqrt(n) u."""

    @property
    def _factor(self) -> float:
        return 1.0


class _Nothing(Gamma):
    """No roundings of sums: what a rule still says is of addends that are all but equal."""

    @property
    def _factor(self) -> float:
        return 0.0


_DIVIDES = overloads(_aten.div, _aten.reciprocal)
_EXPONENTIAL = overloads(
    *(_aten._softmax, _aten._softmax_backward_data, _aten._log_softmax, _aten.logsumexp)  # noqa: SLF001
)
# Roundings to nearest of numbers that vary; other errors may all be to one side.
_NEAREST = (SUMS - _EXPONENTIAL) | overloads(_aten.add, _aten.sub, _aten.mul)
# Operations that round nothing.
_EXACT = overloads(
    *(_aten.relu, _aten.maximum, _aten.minimum, _aten.clamp, _aten.clamp_min, _aten.clamp_max),
    *(_aten.where, _aten.masked_fill, _aten.amax, _aten.amin, _aten.max, _aten.min, _aten.abs),
    *(_aten.neg, _aten._to_copy, _aten.sort, _aten.topk, _aten.max_pool2d_with_indices),  # noqa: SLF001
    *(_aten.max_pool3d_with_indices, _aten.eq, _aten.ne, _aten.lt, _aten.le, _aten.gt, _aten.ge),
)
_ADDED = overloads(_aten.addmm, _aten.baddbmm)
_CONVOLUTIONS = overloads(_aten.convolution)
_PRODUCTS = _ADDED | _CONVOLUTIONS | overloads(_aten.mm, _aten.bmm)
# Smooth in all arguments as far as errors are small: replays show what errors do.
_LINEAR = MOVES | _NEAREST | overloads(_aten.neg) | {ROUNDS}


def quantile(chance: float, runs: int) -> float:
    """A number that the sum of squares of so many normal draws is below with less than this chance.

    P(X <= x r) <= (x e^(1 - x))^(r / 2) for x <= 1 (Chernoff).
    """
    target, low, high = 2 * math.log(chance) / runs, 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if middle > 0 and math.log(middle) + 1 - middle > target:
            high = middle
        else:
            low = middle
    return low * runs


@dataclass(frozen=True, slots=True)
class _Factor:
    """The factors of a root of a sum of squares of replays.

    spread   for the spread S, no less than that at once for all numbers
    error    for a bound of the error
    """

    spread: float
    error: float

    @classmethod
    def of(cls, numbers: int, coherent: int, runs: int) -> _Factor:
        """For so many numbers of a graph together, and sources that may err to one side."""
        numbers = max(numbers, 1)
        spread = 1 / math.sqrt(quantile(_FAILURE / (2 * numbers), runs))
        squared = 2 * math.log(4 * numbers / _FAILURE) + coherent
        return cls(spread, spread * math.sqrt(squared))

    @property
    def reach(self) -> float:
        """The error over the spread."""
        return self.error / self.spread


@dataclass(slots=True)
class _Number:
    """A result in float64 and those of the replays; no replays: all have the same numbers.

    is_open: of truth values and whole numbers, where a kernel may have others.
    """

    exact: Tensor
    runs: list[Tensor] | None = None
    is_open: Tensor | None = None
    root: Tensor | None = field(default=None)

    def run(self, place: int) -> Tensor:
        """The number in a replay."""
        return self.exact if self.runs is None else self.runs[place]

    def squares(self) -> Tensor:
        """The root of the sum of squares of what the replays are off by."""
        if self.root is None:
            assert self.runs is not None
            self.root = _root(self.exact, self.runs)
        return self.root

    def with_error(self, factor: float) -> Quantity:
        """Return the quantity with the bound of its error."""
        if self.runs is None or not self.exact.is_floating_point():
            return Quantity(self.exact, self.is_open)
        return Quantity(self.exact, self.squares() * factor)


def _drawn(
    shape: torch.Size, device: torch.device, generators: dict[torch.device, torch.Generator]
) -> Tensor:
    """Normal numbers, the next of a device."""
    if device not in generators:
        generators[device] = torch.Generator(device).manual_seed(0)
    chance = torch.empty(shape, dtype=torch.float32, device=device)
    return chance.normal_(generator=generators[device]).double()


def _root(exact: Tensor, runs: Sequence[Tensor]) -> Tensor:
    total = torch.zeros_like(exact)
    for run in runs:
        off = run - exact
        total.addcmul_(off, off)
    return total.sqrt_().masked_fill_(total.isnan() & exact.isfinite(), torch.inf)


def errors(
    walk: Propagation, constants: Mapping[str, Tensor], values: Sequence[Tensor]
) -> list[Tensor | None] | None:
    """How far each output may be off by varying roundings; None of it: not at all, of all: too big.

    Holds with probability 1 - 1e-6 for all elements of all outputs.
    """
    graph = walk.graph
    most = _bytes(walk)
    runs = next((item for item in _RUNS if most * (item + 2) <= _MOST_BYTES), None)
    if runs is None:
        return None
    root = replace(walk.sure, gamma=_Root(walk.sure.u, 1))
    walk = replace(walk, likely=root)
    without_sums = replace(walk, likely=replace(root, gamma=_Nothing(walk.sure.u, 1)))
    computed = (node for node in graph.nodes if node.op == "call_function")
    coherent = {node: _source(node) for node in computed if _is_coherent(node)}
    sources = len({*coherent.values(), _ALIKE})
    factor = _Factor.of(count_numbers(graph), sources, runs)
    replays = _Replays(walk, factor, without_sums, coherent, runs)
    output = replays.outputs(constants, values)
    return [None if item.runs is None else item.squares() * replays.factor.error for item in output]


def count_numbers(graph: Graph) -> int:
    """Return how many floating-point numbers a graph's operations compute."""
    return sum(
        item.numel()
        for node in graph.nodes
        if node.op == "call_function"
        for item in tree_leaves(node.meta.get("val"))
        if isinstance(item, Tensor) and item.is_floating_point()
    )


def shows_more(graph: Graph) -> bool:
    """Tell whether replays may show smaller errors than rules: not of one operation alone.

    A sum of products is the exception: its replays have no order that signs decide.
    """
    return count_operations(graph) > 1 or any(node.target in _PRODUCTS for node in graph.nodes)


def _is_coherent(node: Node) -> bool:
    """Tell whether errors may be to one side, as those of functions, casts and constants are."""
    if node.target in MOVES | MADE | _EXACT or node.target is operator.getitem:
        return False
    if node.target not in _NEAREST:
        return True
    numbers = tree_leaves((node.args, node.kwargs))
    return any(isinstance(item, float) and constant_error(item) > 0 for item in numbers)


def _source(node: Node) -> object:
    """Return the function and the constants that err to one side alike in all places."""
    numbers = tree_leaves((node.args, node.kwargs))
    return node.target, *(item for item in numbers if isinstance(item, float))


def _bytes(walk: Propagation) -> int:
    """The most that the results alive at one time take."""
    sizes: dict[Node, int] = {}
    alive = most = 0
    done = last_uses(walk.graph)
    for node in walk.graph.nodes:
        leaves = tree_leaves(node.meta.get("val"))
        computes = node.op == "call_function"
        sizes[node] = computes * sum(
            item.numel() * 8 for item in leaves if isinstance(item, Tensor)
        )
        alive += sizes[node]
        most = max(most, alive)
        alive -= sum(sizes[item] for item in done.get(node, ()))
    return most


@dataclass(slots=True)
class _Replays:
    """All replays of a graph at once, operation by operation."""

    walk: Propagation
    factor: _Factor
    without_sums: Propagation
    coherent: Mapping[Node, object]
    runs: int
    source: object = None
    signs: dict[object, list[float]] = field(default_factory=dict)
    common: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(1))
    generators: dict[torch.device, torch.Generator] = field(default_factory=dict)
    terms: dict[Node, AdditionTree] = field(default_factory=dict)

    def outputs(self, constants: Mapping[str, Tensor], values: Sequence[Tensor]) -> list[_Number]:
        """The outputs, of values in float64 for the graph's placeholders."""
        graph, results = self.walk.graph, dict[Node, Any]()
        sources, done = zip(values, self.walk.ranges, strict=True), last_uses(graph)
        for node in graph.nodes:
            if node.op == "output":
                break
            if node.op in SOURCES:
                source = self.walk.source(node, constants, sources)
                results[node] = self._off(_Number(source.value), added_up(source.sure), None)
            else:
                results[node] = self._result(node, results)
            for item in done.get(node, ()):
                del results[item]
                self.terms.pop(item, None)
        return [results[node] for node in output_nodes(graph)]

    def _result(self, node: Node, results: Mapping[Node, Any]) -> Any:  # noqa: ANN401
        if node.target is operator.getitem:
            several, place = node.args
            return results[several][place]  # type: ignore[index]

        def ran(run: int) -> Any:  # noqa: ANN401
            return _computed(node, lambda item: _mapped(results[item], lambda x: x.run(run)))

        numbers = [x for item in node.all_input_nodes for x in _leaves(results[item])]
        exact = _computed(node, lambda item: _mapped(results[item], lambda x: x.exact))
        varies = any(x.runs is not None or x.is_open is not None for x in numbers)
        runs = [ran(item) for item in range(self.runs)] if varies else None
        local = self.walk.local(
            node, exact, lambda item: _mapped(results[item], lambda x: x.exact), self.terms
        )
        through = self._through(node, exact, results) if varies else None
        if not isinstance(exact, list | tuple):
            alike = self._alike(node, exact, local, results)
            if node.target in _PRODUCTS and isinstance(local, Tensor) and not node.kwargs:
                least = torch.minimum(local, self._of_products(node, exact, results))
                local = least if alike is None else torch.where(alike > 0, local, least)
                alike = None if alike is None else alike.minimum(local)
            return self._rounded_off(exact, runs, local, through, alike)
        several = local if isinstance(local, list | tuple) else [local] * len(exact)
        parts = through if isinstance(through, list | tuple) else [through] * len(exact)
        alike = self._alike(node, exact, local, results)
        alikes = alike if isinstance(alike, list | tuple) else [alike] * len(exact)
        return [
            self._rounded_off(x, None if runs is None else [r[place] for r in runs], *rest)
            for place, (x, *rest) in enumerate(zip(exact, several, parts, alikes, strict=True))
        ]

    def _alike(self, node: Node, exact: Any, local: Any, results: Mapping[Node, Any]) -> Any:  # noqa: ANN401
        """Return errors to one side: a function's, and those of sums of equal addends; or None."""
        self.source = self.coherent.get(node, _ALIKE)
        if node in self.coherent:
            return local
        if node.target not in SUMS or local is None:
            return None
        if node.target in _PRODUCTS:
            flat = _flat(node.target, map_arg(node.args, lambda item: results[item].exact), exact)
            return None if flat is None else torch.where(flat, local, 0.0)
        left = self.without_sums.local(
            node, exact, lambda item: _mapped(results[item], lambda x: x.exact), self.terms
        )

        def part(one: Tensor | None, other: Tensor | None) -> Tensor | None:
            if one is None or other is None:
                return None
            return torch.where(other > one / 2, one, 0.0)

        if isinstance(local, list | tuple):
            return [part(*item) for item in zip(local, left, strict=True)]
        return part(local, left)

    def _rounded_off(
        self,
        exact: Tensor,
        runs: list[Tensor] | None,
        local: Tensor | None,
        through: Tensor | None,
        alike: Tensor | None,
    ) -> _Number:
        """A result of replays, off by an operation's own errors."""
        if not exact.is_floating_point():
            return _Number(exact, None, through)
        output = _Number(exact, runs)
        if through is not None and through.dtype != torch.bool:
            shown = _root(exact, runs or [])
            missed = through > shown * (_CURVED * self.factor.error) + 2.0**-1000
            if bool(missed.any()):
                beside = torch.where(missed, through, 0.0) / self.factor.reach
                output = self._off(output, beside, None)
        return self._off(output, local, alike)

    def _off(self, x: _Number, local: Tensor | None, alike: Tensor | None) -> _Number:
        """The number, in each replay off by a normal number times `local`, and a common one."""
        if not isinstance(local, Tensor) or not x.exact.is_floating_point():
            return x
        local = local.to(x.exact.device).expand(x.exact.shape)
        if not bool(local.any()):
            return x
        aside = None
        if isinstance(alike, Tensor) and bool(alike.any()):
            aside = alike.to(x.exact.device).expand(x.exact.shape).copysign(x.exact)
        runs = []
        for place in range(self.runs):
            chance = _drawn(local.shape, local.device, self.generators)
            run = torch.addcmul(x.run(place), local, chance)
            if aside is not None:
                run.add_(aside, alpha=self._signs(self.source)[place])
            runs.append(run)
        return _Number(x.exact, runs)

    def _signs(self, source: object) -> list[float]:
        """To which side a source of errors errs, in all replays."""
        if source not in self.signs:
            drawn = torch.randn(self.runs, dtype=torch.float64, generator=self.common)
            self.signs[source] = drawn.tolist()
        return self.signs[source]

    def _of_products(self, node: Node, exact: Tensor, results: Mapping[Node, Any]) -> Tensor:
        """Bound the roundings of a sum of products in an order that signs don't decide.

        A partial sum in such an order is as large as the whole sum, or as sqrt(3) times the root of
        the sum of squares.
        """
        args: Any = map_arg(node.args, lambda item: results[item].exact)
        product, n = _products_of(node.target, args)
        size = product(lambda x: x.square(), None).mul_(3).sqrt_()
        arithmetic = self.walk.likely or self.walk.sure
        bias = args[0] if node.target in _ADDED else args[2] if len(args) > 3 else None
        if isinstance(bias, Tensor):
            added = bias.abs() if node.target in _ADDED else by_channel(bias.abs(), exact)
            size = size + added
        size = torch.maximum(size, exact.abs())
        for place in range(1, _PARTS):
            size = torch.maximum(size, product(lambda x: x, n * place // _PARTS).abs())
        return size.mul_(arithmetic.growth(n + 1)).add_(2 * (n + 1) * arithmetic.eta)

    def _through(self, node: Node, exact: Any, results: Mapping[Node, Any]) -> Any:  # noqa: ANN401
        """Return the bound that the operation's rule gives; None where the operation is smooth."""
        target = node.target

        def with_error(x: _Number) -> Quantity:
            return x.with_error(self.factor.error)

        arguments = [with_error(x) for item in node.all_input_nodes for x in _leaves(results[item])]
        whole = not all(x.is_floating_point() for x in tree_leaves(exact))
        open_ = any(x.error is not None and x.error.dtype == torch.bool for x in arguments)
        if not whole and not open_ and self._is_smooth(target, node, results):
            return None
        args = map_arg(node.args, lambda item: _mapped(results[item], with_error))
        kwargs = map_arg(node.kwargs, lambda item: _mapped(results[item], with_error))
        result = Quantity(exact) if isinstance(exact, Tensor) else [Quantity(x) for x in exact]
        arithmetic = self.walk.likely or self.walk.sure
        error = self.walk._error(node, arithmetic, result, args, kwargs)  # noqa: SLF001
        for item in arguments:
            item.memory.clear()
        return _mapped(error, added_up)

    def _is_smooth(self, target: object, node: Node, results: Mapping[Node, Any]) -> bool:
        numbers = [x for item in node.all_input_nodes for x in _leaves(results[item])]
        if target in _EXPONENTIAL:
            return all(_most(x) * self.factor.error < _WIDE for x in numbers)
        if target in _LINEAR:
            return True
        if target in _DIVIDES and node.kwargs.get("rounding_mode") is None:
            divisor = node.args[-1]
            if not isinstance(divisor, Node):
                return True
            x = results[divisor]
            if x.runs is None:
                return True
            return bool((x.squares() * self.factor.error < x.exact.abs() * _NEAR_POLE).all())
        return False


def _products_of(
    target: object,
    args: Any,  # noqa: ANN401
) -> tuple[Callable[[Callable[[Tensor], Tensor], int | None], Tensor], int]:
    """The sum of products of changed factors, of the first few of them, and how many there are."""
    if target in _CONVOLUTIONS:
        a, w, _, stride, padding, dilation, transposed, *rest, groups = args
        channels = w.shape[0] // groups if transposed else w.shape[1]
        n = addends_of(w.shape, stride, dilation, groups, transposed=transposed)

        def convolved(change: Callable[[Tensor], Tensor], first: int | None) -> Tensor:
            x: Tensor = a
            y: Tensor = w
            if first is not None:
                part = max(channels * first // n, 1)
                if groups > 1 or part == channels:
                    return x.new_zeros([])
                x = x.narrow(1, 0, part)
                y = y.narrow(0 if transposed else 1, 0, part)
            output: Tensor = _aten.convolution(
                change(x), change(y), None, stride, padding, dilation, transposed, *rest, groups
            )
            return output

        return convolved, n
    a, b = args[1:3] if target in _ADDED else args[:2]

    def multiplied(change: Callable[[Tensor], Tensor], first: int | None) -> Tensor:
        x, y = a, b
        if first is not None:
            x, y = x.narrow(-1, 0, first), y.narrow(-2, 0, first)
        result: Tensor = change(x) @ change(y)
        return result

    return multiplied, a.shape[-1]


def _flat(target: object, args: Any, out: Tensor) -> Tensor | None:  # noqa: ANN401
    """Where a sum of products may be of addends that are all but equal; None: nowhere."""
    if target in _CONVOLUTIONS:
        w, transposed, groups = args[1], args[6], args[-1]
        flat = flat_filters(w, groups, transposed=transposed)
        return by_channel(flat, out) if bool(flat.any()) else None
    a, b = args[1:3] if target in _ADDED else args[:2]
    return flat_products(Quantity(a), Quantity(b))


def _most(x: _Number) -> float:
    return 0.0 if x.runs is None or not x.exact.numel() else float(x.squares().amax())


def _leaves(x: Any) -> list[_Number]:  # noqa: ANN401
    return list(x) if isinstance(x, list | tuple) else [x]


def _mapped(x: Any, change: Callable[[Any], Any]) -> Any:  # noqa: ANN401
    return [change(item) for item in x] if isinstance(x, list | tuple) else change(x)


def _computed(node: Node, value_of: Callable[[Node], Any]) -> Any:  # noqa: ANN401
    args: Any = map_arg(node.args, value_of)
    kwargs: Any = map_arg(node.kwargs, value_of)
    if node.target == ROUNDS:
        return args[0]
    return node.target(*args, **kwargs)  # type: ignore[operator]
