"""The walk over a reference's graph: values in float64, and the errors of a kernel beside them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_map

from kernel_workbench.oracles.analysis import (  # noqa: F401  # they register rules
    atoms,
    bags,
    functions,
    gelu,
    positions,
    sums,
    windows,
)
from kernel_workbench.oracles.analysis.arithmetic import LARGEST, Arithmetic
from kernel_workbench.oracles.analysis.chains import AdditionTree, terms_of, trees
from kernel_workbench.oracles.analysis.distributed import (
    PARTS,
    distributing,
    parts_of,
    with_parts,
)
from kernel_workbench.oracles.analysis.places import BY_INDEX, MADE, MOVES, VIEWS, of_constants
from kernel_workbench.oracles.analysis.quantities import Combination, Quantity, added_up
from kernel_workbench.oracles.analysis.rules import (
    POLES,
    RULES,
    SUMS,
    ZEROS,
    UnknownError,
    keep_zeros,
    overloads,
)
from kernel_workbench.oracles.analysis.sums import axes_of
from kernel_workbench.oracles.analysis.trace import (
    CODES,
    DECIDES,
    ROUNDS,
    NoRuleError,
    UndecidedError,
    function_of,
)
from kernel_workbench.oracles.rounding import FLUSHED, UNIT_ROUNDOFF

_aten = torch.ops.aten


_ADDITIONS = overloads(_aten.add)
_SQUARES = overloads(_aten.pow)
_TIMES = overloads(_aten.mul)
_MEANS_OF_SQUARES = overloads(_aten.var, _aten.var_mean)
_JUMPS = overloads(_aten.sign, _aten.ceil, _aten.floor, _aten.copysign)
_KEEPS_SIGN = overloads(_aten.sum, _aten.mean)
SOURCES = {"placeholder", "get_attr"}  # operations of nodes that aren't computed
_MOST_SAID = 300  # characters of an error of torch's
_SMALL = 16  # times fewer numbers: such values can be kept
_SLOW = {
    *(_aten.tanh.default, _aten.erf.default, _aten.exp.default),
    _aten._softmax.default,  # noqa: SLF001  # torch's own name
}
Error = Any  # as in `Quantity`, or a tuple of them where an operation has several results


@dataclass(frozen=True, slots=True)
class Pair:
    """A value, its deterministic error and its probable one; the same tensor where they agree.

    of_value: as in `Quantity`; plain: known to be finite, and its errors. terms: what it adds up,
    where a later operation takes that in.
    """

    value: Tensor
    sure: Combination | Tensor | None
    likely: Combination | Tensor | None
    of_value: dict[object, Any] = field(default_factory=dict)
    plain: bool = False
    terms: AdditionTree | None = None

    @property
    def before(self) -> Quantity:
        """The quantity with the smaller of the errors."""
        return self.with_error(self.sure if self.likely is None else self.likely)

    def with_error(self, error: Combination | Tensor | None) -> Quantity:
        """Return the value with one of the errors."""
        return Quantity(self.value, error, of_value=self.of_value)


_TENSORS = Pair, Quantity
_ALONE = VIEWS | {_aten.clone.default, _aten.reshape.default}  # they move one tensor's numbers
_OF_ERRORS = "most", "relative"  # what is noted of a value that depends on its error
_TREES = list, tuple, dict


def count_sums(graph: Graph) -> int:
    """Return the number of sums of a graph, for which the probable form holds together."""
    count = 0
    for node in graph.nodes:
        results = node.meta["val"] if node.target in SUMS else None
        for result in results if isinstance(results, list | tuple) else [results]:
            if not isinstance(result, Tensor):
                continue
            rows = node.target == _aten._softmax_backward_data.default and result.dim()  # noqa: SLF001
            count += result.numel() // (result.shape[node.args[2]] or 1 if rows else 1)
    _, more = trees(graph)
    return count + more


def least_of(node: Any) -> float:  # noqa: ANN401
    """Return a number that no sound kernel is below: eps for a variance and eps; or 0."""
    if node.target in MOVES and len(node.all_input_nodes) == 1:
        return least_of(node.all_input_nodes[0])
    if node.target not in _ADDITIONS:
        return 0.0
    numbers = [item for item in node.args if isinstance(item, int | float)]
    nodes = node.all_input_nodes
    is_plain = len(numbers) == 1 and numbers[0] > 0 and len(nodes) == 1 and not node.kwargs
    return numbers[0] * (1 - 2.0**-20) if is_plain and _is_nonnegative(nodes[0]) else 0.0


def _is_nonnegative(node: Node) -> bool:
    """Tell whether no kernel has a number below 0: squares, variances, and sums of them."""
    target, nodes = node.target, node.all_input_nodes
    if target is operator.getitem and nodes[0].target in _MEANS_OF_SQUARES:
        return bool(node.args[1] == 0)
    if target in _SQUARES:
        return bool(node.args[1] == 2)
    if target in _TIMES:
        same = len(node.args) == 2 and node.args[0] is node.args[1]
        number = next((item for item in node.args if isinstance(item, int | float)), 0.0)
        return same or (number > 0 and _is_nonnegative(nodes[0]))
    if target in _KEEPS_SIGN or (target in MOVES and len(nodes) == 1):
        return _is_nonnegative(nodes[0])
    return target in _MEANS_OF_SQUARES and len(nodes) == 1


def output_nodes(graph: Graph) -> tuple[Node, ...]:
    """Return the nodes that a graph returns."""
    outputs: Any = graph.output_node().args[0]
    return tuple(outputs) if isinstance(outputs, list | tuple) else (outputs,)


def last_uses(graph: Graph) -> dict[Node, list[Node]]:
    """After which node each is done with; one that none uses after itself."""
    seen: set[Node] = set()
    result: dict[Node, list[Node]] = {}
    for node in reversed(graph.nodes):
        for source in (*node.all_input_nodes, *([] if node in seen else [node])):
            if source not in seen:
                seen.add(source)
                result.setdefault(node, []).append(source)
    return result


def range_of(x: Tensor) -> tuple[float, float] | None:
    """The least and the largest magnitude of an argument, as it is given: in float64 it is longer.

    None for whole numbers, and where there are none.
    """
    if not x.is_floating_point() or not x.numel():
        return None
    size = (x.float() if x.itemsize == 1 else x).abs()  # torch compares no fp8
    return float(size.amin()), float(size.amax())  # faster than aminmax


@dataclass(frozen=True, slots=True)
class Propagation:
    """A graph and the arithmetic of a kernel.

    ranges: of each placeholder, as `range_of` has it; None where nothing is flushed.
    where: the line that a node comes from.
    joined: the nodes whose terms a later addition takes in.
    distributing: the nodes whose parts are needed, and whether each rounds them (distributed.py).
    jumps: whether some operation makes a large difference of a small one, as a comparison with 0.
    """

    graph: Graph
    ranges: Sequence[tuple[float, float] | None]
    sure: Arithmetic
    likely: Arithmetic | None
    where: Callable[[Node], str]
    joined: frozenset[Node] = field(init=False)
    distributing: dict[Node, bool] = field(init=False)
    jumps: bool = field(init=False)

    def __post_init__(self) -> None:
        """Find the additions that follow each other."""
        object.__setattr__(self, "joined", trees(self.graph)[0])
        object.__setattr__(self, "distributing", distributing(self.graph))
        object.__setattr__(self, "jumps", any(map(_jumps, self.graph.nodes)))

    def __call__(
        self,
        constants: Mapping[str, Tensor],
        values: Sequence[Tensor],
        kept: dict[Node, Tensor] | None = None,
        wanted: dict[Node, Pair | None] | None = None,
    ) -> list[Pair]:
        """Return the outputs for float64 values of the graph's placeholders.

        kept: takes values that are small beside the largest argument, or slow to compute. wanted:
        takes the results of the nodes that it has.
        """
        results: dict[Node, Any] = {}
        small = max((value.numel() for value in values), default=0) / _SMALL
        arguments = zip(values, self.ranges, strict=True)
        done = last_uses(self.graph)
        for node in self.graph.nodes:
            if node.op == "output":
                return [results[output_node] for output_node in output_nodes(self.graph)]
            if node.op in SOURCES:
                results[node] = self.source(node, constants, arguments)
            else:
                results[node] = result = self._stated_result(node, results)
                if (
                    kept is not None
                    and isinstance(result, Pair)
                    and (node.target in _SLOW or result.value.numel() <= small)
                ):
                    kept[node] = result.value
            if wanted is not None and node in wanted:
                wanted[node] = results[node]
            for ended in done.get(node, ()):
                del results[ended]
        raise AssertionError("a graph has an output")

    def source(
        self,
        node: Node,
        constants: Mapping[str, Tensor],
        arguments: Iterator[tuple[Tensor, tuple[float, float] | None]],
    ) -> Pair:
        """Return a constant, or the next argument, exact but for subnormals that are flushed.

        arguments: values in float64 and their ranges, for the graph's placeholders in their order.
        """
        if node.op == "get_attr":
            constant = constants[str(node.target)]
            constant = constant.double() if constant.is_floating_point() else constant
            error = of_constants(constant)
            return Pair(constant, error, error)
        value, its_range = next(arguments)
        a = Quantity(value)
        if self.jumps and value.is_floating_point():
            a.of_value[ZEROS] = True
        error = None if its_range is None else _flushed(a, *its_range)
        return Pair(value, error, error, a.of_value)

    def local(
        self,
        node: Node,
        out: Any,  # noqa: ANN401
        value_of: Callable[[Node], Any],
        terms: dict[Node, AdditionTree],
    ) -> Error:
        """Return the error of one operation on exact arguments.

        terms: of the nodes before, to which those of this one are added.
        """
        if node.target is operator.getitem:
            return None

        def exact(argument: Node) -> Any:  # noqa: ANN401
            added_before = terms.get(argument)
            return tree_map(
                lambda x: Pair(x, None, None, terms=added_before) if isinstance(x, Tensor) else x,
                value_of(argument),
            )

        arithmetic = self.likely or self.sure
        added_up_to = self._terms(node, map_arg(node.args, exact), map_arg(node.kwargs, exact))
        if added_up_to is not None:
            terms[node] = added_up_to
            if added_up_to.nested:
                return added_up(added_up_to.error(arithmetic, Quantity(out), None, alone=True))

        def exact_quantity(argument: Node) -> Any:  # noqa: ANN401
            return tree_map(
                lambda x: Quantity(x) if isinstance(x, Tensor) else x, value_of(argument)
            )

        args: Any = map_arg(node.args, exact_quantity)
        kwargs: Any = map_arg(node.kwargs, exact_quantity)
        result = _as_quantity(out)
        error = self._error(node, arithmetic, result, args, kwargs)
        _forget(result, _flat((args, kwargs)))
        return tree_map(added_up, error)

    def _stated_result(self, node: Node, results: Mapping[Node, Any]) -> object:
        """Return the result; raise NoRuleError where the rule fails on these arguments."""
        try:
            if node.target == DECIDES:
                return _decided(results[node.all_input_nodes[0]])
            return self._result(node, results)
        except (
            NoRuleError,
            UndecidedError,
            MemoryError,
            torch.OutOfMemoryError,
            torch.AcceleratorError,
        ):
            raise
        except Exception as error:
            message = " ".join(str(error).split())[:_MOST_SAID]
            raise NoRuleError(
                f"{self.where(node)}: the rule of {function_of(node)} isn't written for these "
                f"arguments ({type(error).__name__}: {message}); write it in other operations"
            ) from error

    def _result(self, node: Node, results: Mapping[Node, Any]) -> object:
        args: Any = map_arg(node.args, lambda argument: results[argument])
        kwargs: Any = map_arg(node.kwargs, lambda argument: results[argument])
        target = node.target
        if target is operator.getitem:
            return args[0][args[1]]
        out = _as_quantity(_value(target, args, kwargs))
        pairs = [argument for argument in _flat((args, kwargs)) if isinstance(argument, Pair)]
        agree = all(pair.likely is pair.sure for pair in pairs)
        terms = self._terms(node, args, kwargs)
        varies = target in SUMS or (terms is not None and terms.varies)
        forms = 1 if self.likely is None or (agree and not varies) else 2
        if target == ROUNDS:
            of_value = pairs[0].of_value
            out = replace(
                out, of_value={key: of_value[key] for key in of_value if key not in _OF_ERRORS}
            )
        elif target in VIEWS and "size" in pairs[0].of_value:
            out.of_value["size"] = target(pairs[0].of_value["size"], *args[1:], **kwargs)  # type: ignore[operator]
        knowns = {id(pair): pair.with_error(pair.sure) for pair in pairs}

        def error(arithmetic: Arithmetic) -> Error:
            if terms is not None and terms.nested:
                through = terms.sure if arithmetic is self.sure else terms.likely
                return terms.error(arithmetic, out, through)

            def quantity(pair: Pair) -> Quantity:
                return knowns[id(pair)]

            return self._error(
                node, arithmetic, out, _mapped(args, quantity), _mapped(kwargs, quantity)
            )

        errors, operands = [error(self.sure)], [list(knowns.values())]
        if self.likely is not None and forms > 1:
            for pair in pairs:
                if pair.likely is not pair.sure:
                    knowns[id(pair)] = pair.with_error(pair.likely)
            errors.append(error(self.likely))
            operands.append(list(knowns.values()))
        if node in self.distributing and isinstance(out, Quantity):
            errors = self._distributed(node, out, errors, args, kwargs)
        _forget(out, operands)
        if isinstance(out, Quantity):
            _hand_on(out, pairs, moves=target in MOVES)
            by_terms = terms is not None and terms.nested
            plain = _is_plain(None if by_terms else target, out, errors[0], args, kwargs)
            if target not in MOVES and not plain:
                errors = [_tidy(node, out, *form) for form in zip(errors, operands, strict=True)]
            errors = [_whole(out.value, form) for form in errors]
            plain = plain and bool(out.of_value.get("finite"))
            kept = terms if node in self.joined else None
            return Pair(out.value, errors[0], errors[-1], out.of_value, plain, kept)
        for part in out if target in MOVES else ():
            _hand_on(part, pairs, moves=True)
        several = [form if isinstance(form, list | tuple) else [form] * len(out) for form in errors]
        return [
            Pair(part.value, several[0][place], several[-1][place], part.of_value)
            for place, part in enumerate(out)
        ]

    def _distributed(
        self,
        node: Node,
        out: Quantity,
        errors: list[Error],
        args: Any,  # noqa: ANN401
        kwargs: Any,  # noqa: ANN401
    ) -> list[Error]:
        """Return the errors with the roundings of a product that is distributed over a sum."""
        parts = parts_of(node, args, kwargs)
        if parts is None:
            return errors
        out.of_value[PARTS] = parts
        if not self.distributing[node]:
            return errors
        return [with_parts(error, self.sure.u, parts) for error in errors]

    def _terms(self, node: Node, args: Any, kwargs: Any) -> AdditionTree | None:  # noqa: ANN401
        """Return what the result adds up, by `Pair` for arguments; None where it is no tree."""
        return terms_of(node, args, kwargs, self.sure, wanted=node in self.joined)

    def _error(
        self,
        node: Node,
        arithmetic: Arithmetic,
        out: Any,  # noqa: ANN401
        args: Any,  # noqa: ANN401
        kwargs: Any,  # noqa: ANN401
    ) -> Error:
        """Return the error by the rule of the node's operation."""
        target = node.target
        knowns = [argument for argument in _flat((args, kwargs)) if isinstance(argument, Quantity)]
        exact = all(quantity.exact for quantity in knowns)
        if target == ROUNDS:
            if node.args[2] == CODES and any(user.op != "output" for user in node.users):
                raise NoRuleError(
                    f"{self.where(node)}: it casts to fp8 on the way, where a small error may "
                    "become a large one; an output alone can be fp8"
                )
            after = _marked(arithmetic, *args)
            return keep_zeros(target, out, after, args) if self.jumps else after
        if target in MADE:
            return of_constants(out.value)
        if target in MOVES and exact:
            return None
        if target in _ALONE and isinstance(args[0], Quantity) and _is_open_index(args[0]):
            return target(args[0].error, *args[1:], **kwargs)  # type: ignore[operator]
        if (target in MOVES or target in BY_INDEX) and any(map(_is_open_index, knowns)):
            raise NoRuleError(
                f"{self.where(node)}: {function_of(node)} is given indices that depend on rounded "
                "values, of which a kernel may have others"
            )
        if target in MOVES:
            return target(*_mapped(args, _moved), **_mapped(kwargs, _moved))  # type: ignore[operator]
        outs = [out] if isinstance(out, Quantity) else out
        if any(output.value.is_complex() for output in outs):
            raise NoRuleError(
                f"{self.where(node)}: it computes with complex numbers ({function_of(node)}), "
                "where errors can't be followed; write it in real numbers"
            )
        if exact and not any(output.value.is_floating_point() for output in outs):
            return None
        rule_ = RULES.get(target)
        if rule_ is None:
            raise NoRuleError(
                f"{self.where(node)}: {function_of(node)} has no rule for its errors; write it in "
                "operations that have one (docs/derivations/analysis.md)"
            )
        if target == _aten.rsqrt.default:
            args[0].of_value["least"] = least_of(node.args[0])
        try:
            stated = rule_(arithmetic, out, *args, **kwargs)
        except UnknownError as error:
            raise NoRuleError(f"{self.where(node)}: {function_of(node)} {error}") from error
        is_one = self.jumps and isinstance(out, Quantity)
        return keep_zeros(target, out, stated, args) if is_one else stated


def _jumps(node: Node) -> bool:
    """Return True if an operation makes a truth value of real numbers, or rounds to one side."""
    result = node.meta.get("val")
    is_truth = isinstance(result, Tensor) and result.dtype == torch.bool
    before = (item.meta.get("val") for item in node.all_input_nodes)
    return node.target in _JUMPS or (
        is_truth and any(isinstance(x, Tensor) and x.is_floating_point() for x in before)
    )


def _value(target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    """Return an operation's result in float64, of pairs."""
    if target == ROUNDS:
        return args[0].value
    if target == _aten.abs.default:
        return args[0].before.size
    args, kwargs = _mapped(args, _value_of), _mapped(kwargs, _value_of)
    return _VALUES.get(target, target)(*args, **kwargs)


def _value_of(pair: Pair) -> Tensor:
    return pair.value


def _variance_and_mean(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return what `torch.var_mean` does, in a fourth of its time in float64."""
    axes = axes_of(x, dim)
    degrees = math.prod(x.shape[axis] for axis in axes) - (1 if correction is None else correction)
    mean = x.mean(axes, keepdim=True)
    variance = (x - mean).square_().sum(axes, keepdim=keepdim).div_(degrees)
    return variance, mean if keepdim else mean.squeeze(axes)


_VALUES = {_aten.var_mean.correction: _variance_and_mean}


def _forget(*knowns: Any) -> None:  # noqa: ANN401
    """Clear what was computed for one operation: it may refer to what refers to it."""
    for leaf in _flat(knowns):
        if isinstance(leaf, Quantity):
            leaf.memory.clear()


def _flushed(a: Quantity, least: float, most: float) -> Tensor | None:
    """Return the flushed part of an argument whose magnitudes are from `least` to `most`."""
    a.of_value["most"] = most + FLUSHED
    if least >= FLUSHED:
        return None
    small = a.size < FLUSHED
    if not bool(a.size[small].any()):  # all of them are zeros
        return None
    return a.size.masked_fill(~small, 0)


def _as_quantity(out: Any) -> Any:  # noqa: ANN401
    return Quantity(out) if isinstance(out, Tensor) else [Quantity(part) for part in out]


def _hand_on(out: Quantity, pairs: Sequence[Pair], *, moves: bool) -> None:
    """Note that a tensor may have zeros, as its sources do; a moved one is no larger than they."""
    if any(ZEROS in pair.of_value for pair in pairs):
        out.of_value[ZEROS] = True
    if moves and pairs and all("most" in pair.of_value for pair in pairs):
        out.of_value["most"] = max(pair.of_value["most"] for pair in pairs)


def _is_plain(target: object, out: Quantity, error: Error, args: Any, kwargs: Any) -> bool:  # noqa: ANN401
    """Ask if all numbers are finite, and with their errors below fp32's largest number.

    target: None where the error doesn't follow from that of the arguments. That the value is finite
    is noted with it. The deterministic error is the one to ask about: the probable one is smaller.
    """
    if not out.value.is_floating_point() or not out.value.numel():
        return True
    if error is None:  # exact, as a product with a power of two, which may overflow
        return target not in _LARGEST or float(out.size.amax()) < LARGEST
    of_arguments = _LARGEST.get(target)
    most = out.of_value.get("most", math.nan)
    if target in MOVES and not most < LARGEST:
        return False
    if of_arguments is not None and isinstance(error, Combination):
        sure = _mapped(args, lambda pair: pair.with_error(pair.sure))
        most = of_arguments(*map(_most, sure), **kwargs) * _ROUNDED + _FLUSHED
    if not most < LARGEST:
        own = error.apart()[0] if isinstance(error, Combination) else 0.0
        most = float(added_up(error).amax())  # NaN where some number is
        most += most / own if isinstance(own, float) and own else float(out.size.amax())
    if not most < LARGEST:
        return False
    out.of_value["most"], out.of_value["finite"] = most, True
    return True


def _most(x: object) -> float:
    return x.most if isinstance(x, Quantity) else abs(x) if isinstance(x, int | float) else math.nan


def _of_power(a: float, k: float) -> float:
    whole = float(k).is_integer() and 0 <= k <= _POWERS
    return (k + 1) * a**k if whole and a**k < LARGEST else math.nan


# The most that a result can be with its error, from the most that its arguments can be.
_ROUNDED, _FLUSHED = 1 + 2.0**-5, 2.0**-24  # several roundings to 8 bits; subnormals of a half
_POWERS = 4
_LARGEST: dict[object, Callable[..., float]] = {
    getattr(packet, overload): most
    for packet, most in (
        (_aten.add, lambda a, b, alpha=1: a + abs(alpha) * b),
        (_aten.sub, lambda a, b, alpha=1: a + abs(alpha) * b),
        (_aten.mul, operator.mul),
        (_aten.neg, abs),
        (_aten.abs, abs),
        (_aten.pow, _of_power),
    )
    for overload in packet.overloads()
}
_LARGEST[ROUNDS] = lambda x, *_: x


def _whole(out: Tensor, error: Combination | Tensor | None) -> Combination | Tensor | None:
    """An error on the device of the result and in its shape: a constant's is made on the CPU."""
    if error is None or isinstance(error, Combination):
        return error
    if error.shape == out.shape and error.device == out.device:
        return error
    return error.to(out.device).expand(out.shape)


def _tidy(
    node: Node, out_quantity: Quantity, stated: Error, knowns: Sequence[Quantity]
) -> Tensor | None:
    """Return the error: 0 of a number that isn't finite, infinite where it isn't known.

    Nothing is known of a number past fp32's largest one.
    """
    out, error = out_quantity.value, added_up(stated)
    finite = out.isfinite()
    if error is None:
        past = finite & (out.abs() >= LARGEST)
        return torch.where(past, torch.inf, 0.0).double() if bool(past.any()) else None
    error = error.to(out.device).nan_to_num(nan=torch.inf, posinf=torch.inf)
    error = torch.where(out.abs() + error >= LARGEST, torch.inf, error)
    unknown = torch.zeros_like(finite)
    for operand in knowns:
        if operand.error is None or operand.error.dtype == torch.bool:
            continue
        open_ = operand.error.isinf()
        if node.target in POLES:
            open_ = open_ | ((operand.error > 0) & operand.value.isfinite())
        try:
            unknown = unknown | open_.expand(out.shape)
        except RuntimeError:  # not an operation element by element
            unknown = unknown | open_.any()
    return torch.where(finite, error, torch.where(unknown, torch.inf, 0.0).double())


def _flat(tree: Any) -> list[Any]:  # noqa: ANN401
    result: list[Any] = []
    for branch in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(branch, _TREES):
            result += _flat(branch)
        else:
            result.append(branch)
    return result


def _mapped(tree: Any, change: Callable[[Any], object]) -> Any:  # noqa: ANN401
    """Return a tree of arguments with its tensors changed."""
    if isinstance(tree, _TENSORS):
        return change(tree)
    if not isinstance(tree, _TREES):
        return tree
    if isinstance(tree, dict):
        return {name: _mapped(branch, change) for name, branch in tree.items()} if tree else tree
    return [_mapped(branch, change) for branch in tree]


def _is_open_index(quantity: Quantity) -> bool:
    """Return True if a tensor holds whole numbers of which a kernel may have others."""
    is_whole = not quantity.value.is_floating_point() and quantity.value.dtype != torch.bool
    return is_whole and not quantity.exact


def _decided(pair: Pair) -> Pair:
    """Return what a reference goes by. Raises UndecidedError where a kernel may have others."""
    error = pair.with_error(pair.sure).error
    if error is not None and bool((error > 0).any()):
        raise UndecidedError
    return pair


def _moved(quantity: Quantity) -> Tensor:
    """Return the error to move in an argument's place; an index stays itself."""
    value = quantity.value
    if not value.is_floating_point() and value.dtype != torch.bool:
        return value
    return torch.zeros_like(value) if quantity.error is None else quantity.error


def _marked(
    arithmetic: Arithmetic, x: Quantity, name: str, dtype: torch.dtype | None
) -> Combination | Tensor | None:
    """Return the error after a marked cast; infinite where the type's largest may be exceeded."""
    if not arithmetic.casts(name):
        return x.lazy_error
    to = arithmetic.dtype if dtype is None else dtype
    after = arithmetic.cast(x, to)
    if not isinstance(after, Combination) or after is x.lazy_error:
        return after
    most, most_finite = x.most * (1 + 2 * UNIT_ROUNDOFF[to]), torch.finfo(to).max
    if most < most_finite:
        return after
    error = after.tensor()
    return error.masked_fill(x.size + error >= most_finite, torch.inf)
