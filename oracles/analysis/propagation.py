"""The walk over a reference's graph: values in float64, and the errors of a kernel beside them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_map

from oracles.analysis import atoms, sums  # noqa: F401  # they register rules
from oracles.analysis.arithmetic import LARGEST, Arithmetic
from oracles.analysis.places import MADE, MOVES, of_constants
from oracles.analysis.rules import POLES, RULES, SUMS, Known, UnknownError
from oracles.analysis.trace import CODES, ROUNDS, NoRuleError
from oracles.rounding import FLUSHED

Error = Any  # Tensor | None, or a tuple of them where an operation has several results


@dataclass(frozen=True, slots=True)
class Pair:
    """A value, its deterministic error and its probable one; the same tensor where they agree."""

    value: Tensor
    sure: Tensor | None
    likely: Tensor | None


def count_sums(graph: Graph) -> int:
    """How many sums a graph makes: of so many the probable form holds together."""
    made = (node.meta["val"] for node in graph.nodes if node.target in SUMS)
    return sum(each.numel() for each in made if isinstance(each, Tensor))


def output_nodes(graph: Graph) -> tuple[Node, ...]:
    """What a graph returns."""
    outputs: Any = graph.output_node().args[0]
    return tuple(outputs) if isinstance(outputs, list | tuple) else (outputs,)


def last_uses(graph: Graph) -> dict[Node, list[Node]]:
    """After which node each is done with."""
    seen: set[Node] = set()
    made: dict[Node, list[Node]] = {}
    for node in reversed(graph.nodes):
        for used in node.all_input_nodes:
            if used not in seen:
                seen.add(used)
                made.setdefault(node, []).append(used)
    return made


@dataclass(frozen=True, slots=True)
class Propagation:
    """A graph and the arithmetic of a kernel; where: the line that a node comes from."""

    graph: Graph
    sure: Arithmetic
    likely: Arithmetic | None
    where: Callable[[Node], str]

    def __call__(self, constants: Mapping[str, Tensor], values: Sequence[Tensor]) -> list[Pair]:
        """The outputs, of values in float64 for the graph's placeholders."""
        held: dict[Node, Any] = {}
        given = iter(values)
        done = last_uses(self.graph)
        for node in self.graph.nodes:
            if node.op == "output":
                return [held[each] for each in output_nodes(self.graph)]
            if node.op == "placeholder":
                value = next(given)
                error = self.read(value)
                held[node] = Pair(value, error, error)
            elif node.op == "get_attr":
                constant = constants[str(node.target)]
                constant = constant.double() if constant.is_floating_point() else constant
                error = of_constants(constant)
                held[node] = Pair(constant, error, error)
            else:
                held[node] = self._result(node, held)
            for each in done.get(node, ()):
                del held[each]
        raise AssertionError("a graph has an output")

    def read(self, value: Tensor) -> Tensor | None:
        """The error of an argument: exact, but for subnormals that are flushed as it is read."""
        if self.sure.numerics.gradual_underflow or not value.is_floating_point():
            return None
        size = value.abs()
        if not value.numel() or float(size.amin()) >= FLUSHED:
            return None
        error = size.masked_fill_(~(size < FLUSHED), 0)
        return error if bool(error.any()) else None

    def local(self, node: Node, out: Any, value_of: Callable[[Node], Any]) -> Error:  # noqa: ANN401
        """The error of one operation on exact arguments."""
        if node.target is operator.getitem:
            return None
        knowns: list[Known] = []

        def known(each: Node) -> Any:  # noqa: ANN401
            made = tree_map(lambda x: Known(x) if isinstance(x, Tensor) else x, value_of(each))
            knowns.extend(each for each in _flat(made) if isinstance(each, Known))
            return made

        args: Any = map_arg(node.args, known)
        kwargs: Any = map_arg(node.kwargs, known)
        return self._error(node, self.likely or self.sure, out, args, kwargs, knowns)

    def _result(self, node: Node, held: Mapping[Node, Any]) -> object:
        args: Any = map_arg(node.args, lambda each: held[each])
        kwargs: Any = map_arg(node.kwargs, lambda each: held[each])
        target = node.target
        if target is operator.getitem:
            return args[0][args[1]]
        pairs = [each for each in _flat((args, kwargs)) if isinstance(each, Pair)]
        if target == ROUNDS:
            out = args[0].value
        else:
            out = target(  # type: ignore[operator]
                *_mapped(args, lambda each: each.value), **_mapped(kwargs, lambda each: each.value)
            )
        same = target not in SUMS and all(each.likely is each.sure for each in pairs)
        largest = _largest(out)
        knowns = {id(each): Known(each.value, each.sure) for each in pairs}

        def error(arithmetic: Arithmetic) -> Error:
            def known(pair: Pair) -> Known:
                return knowns[id(pair)]

            given = _mapped(args, known), _mapped(kwargs, known)
            made = self._error(node, arithmetic, out, *given, list(knowns.values()))
            if isinstance(out, Tensor) and target not in MOVES:
                return self._tidy(node, out, made, list(knowns.values()), largest)
            return made

        sure = likely = error(self.sure)
        if self.likely is not None and not same:
            for each in pairs:
                if each.likely is not each.sure:
                    knowns[id(each)] = Known(each.value, each.likely)
            likely = error(self.likely)
        if isinstance(out, Tensor):
            return Pair(out, sure, likely)
        if not isinstance(sure, list | tuple):
            sure, likely = ((each,) * len(out) for each in (sure, likely))
        return [Pair(*each) for each in zip(out, sure, likely, strict=True)]

    def _error(
        self,
        node: Node,
        arithmetic: Arithmetic,
        out: Any,  # noqa: ANN401
        args: Any,  # noqa: ANN401
        kwargs: Any,  # noqa: ANN401
        knowns: Sequence[Known],
    ) -> Error:
        """What a rule says."""
        target, exact = node.target, all(each.error is None for each in knowns)
        if target == ROUNDS:
            if node.args[2] == CODES and any(each.op != "output" for each in node.users):
                raise NoRuleError(
                    f"{self.where(node)}: it casts to fp8 on the way, where a small error may "
                    "become a large one; an output alone can be fp8"
                )
            return _marked(arithmetic, *args)
        if target in MADE:
            return of_constants(out)
        if target in MOVES:
            if exact:
                return None
            if any(
                each.error is not None
                and not each.value.is_floating_point()
                and each.value.dtype != torch.bool
                for each in knowns
            ):
                raise NoRuleError(
                    f"{self.where(node)}: {target} is given indices that depend on rounded values"
                )
            return target(*_mapped(args, _moved), **_mapped(kwargs, _moved))  # type: ignore[operator]
        outs = out if isinstance(out, list | tuple) else (out,)
        if exact and not any(each.is_floating_point() for each in outs):
            return None
        found = RULES.get(target)
        if found is None:
            raise NoRuleError(
                f"{self.where(node)}: the errors of {target} have no rule; write it in operations "
                "that have one (docs/derivations/analysis.md)"
            )
        try:
            return found(arithmetic, out, *args, **kwargs)
        except UnknownError as error:
            raise NoRuleError(f"{self.where(node)}: {target} {error}") from error

    def _tidy(
        self,
        node: Node,
        out: Tensor,
        error: Tensor | None,
        knowns: Sequence[Known],
        largest: float,
    ) -> Tensor | None:
        """The error in the result's shape: 0 of what isn't finite, infinite where it isn't known.

        Nothing is known of what is past fp32's largest number.
        """
        if error is None or error.dtype == torch.bool or not out.is_floating_point():
            return error
        # A constant's error is made on the CPU.
        error = error.to(out.device).expand(out.shape)
        if not out.numel() or largest + float(error.amax()) < LARGEST:
            return error
        finite = out.isfinite()
        error = error.nan_to_num(nan=torch.inf, posinf=torch.inf)
        error = error.masked_fill(out.abs() + error >= LARGEST, torch.inf)
        unknown = torch.zeros_like(finite)
        for each in knowns:
            if each.error is None or each.error.dtype == torch.bool:
                continue
            open_ = each.error.isinf()
            if node.target in POLES:
                open_ = open_ | ((each.error > 0) & each.value.isfinite())
            try:
                unknown = unknown | open_.expand(out.shape)
            except RuntimeError:  # not an operation element by element
                unknown = unknown | open_.any()
        return torch.where(finite, error, torch.where(unknown, torch.inf, 0.0).double())


def _largest(out: object) -> float:
    """The largest magnitude; NaN where some is."""
    if not isinstance(out, Tensor) or not out.is_floating_point() or not out.numel():
        return 0.0
    low, high = torch.aminmax(out)
    return float(torch.maximum(-low, high))


def _flat(tree: object) -> list[Any]:
    if isinstance(tree, list | tuple):
        return [leaf for each in tree for leaf in _flat(each)]
    if isinstance(tree, dict):
        return _flat(list(tree.values()))
    return [tree]


def _mapped(tree: Any, change: Callable[[Any], object]) -> Any:  # noqa: ANN401
    """A tree of arguments with its tensors changed."""
    if isinstance(tree, Pair | Known):
        return change(tree)
    if isinstance(tree, dict):
        return {name: _mapped(each, change) for name, each in tree.items()}
    if isinstance(tree, list | tuple):
        return [_mapped(each, change) for each in tree]
    return tree


def _moved(known: Known) -> Tensor:
    """What stands for an argument where errors are moved; an index is itself."""
    value = known.value
    if not value.is_floating_point() and value.dtype != torch.bool:
        return value
    return torch.zeros_like(value) if known.error is None else known.error


def _marked(
    arithmetic: Arithmetic, x: Known, name: str, dtype: torch.dtype | None
) -> Tensor | None:
    """The error after a marked cast; infinite where the number may be past the type's largest."""
    if not arithmetic.casts(name):
        return x.error
    to = arithmetic.dtype if dtype is None else dtype
    after = arithmetic.cast(x.value, x.error, to)
    if after is None or after is x.error:
        return x.error
    return after.masked_fill_(x.value.abs() + after >= torch.finfo(to).max, torch.inf)
