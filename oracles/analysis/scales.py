"""How large an output's parts are: what its bound must be below to say something.

The scale of an input is its magnitude. That of a sum is what a third of its addends come to, three
times: max(|sum|, min(sum of scales, sqrt(3 sum of their squares))), addends of either sign taken to
be as likely. A bound above a third of that lets a third of what was added be left out. Any other
result has its magnitude as its scale; a logarithm has 1, a factor of e.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_map

from kernel_workbench.oracles.analysis.gelu import BETA, KAPPA, cumulative
from kernel_workbench.oracles.analysis.places import MOVES
from kernel_workbench.oracles.analysis.propagation import SOURCES, last_uses
from kernel_workbench.oracles.analysis.trace import ROUNDS

_aten = torch.ops.aten
Scale = Callable[..., Tensor]
_SCALES: dict[object, Scale] = {}
_HANDS_ON = MOVES | {ROUNDS, operator.getitem}  # scales go the way of values
_READ: set[object] = set()  # operations whose scale depends on their result


def _of(*names: str, reads: bool = False) -> Callable[[Scale], Scale]:
    def register(function: Scale) -> Scale:
        for name in names:
            packet = getattr(_aten, name)
            functions = {getattr(packet, overload): function for overload in packet.overloads()}
            _SCALES.update(functions)
            _READ.update(functions if reads else ())
        return function

    return register


def _size(x: Any) -> Any:  # noqa: ANN401
    """The scale of an argument; those of real numbers and of truth values are no less than 0."""
    is_scale = isinstance(x, Tensor) and (x.is_floating_point() or x.dtype == torch.bool)
    return x if is_scale else abs(x)


@_of("add", "sub")
def _add(out: Tensor, a: Any, b: Any, alpha: float = 1) -> Tensor:  # noqa: ANN401
    del out
    result: Tensor = _size(a) + (_size(b) if alpha in {1, -1} else _size(b) * abs(alpha))
    return result


@_of("mul")
def _mul(out: Tensor, a: Any, b: Any) -> Tensor:  # noqa: ANN401
    del out
    result: Tensor = _size(a) * _size(b)
    return result


@_of("div")
def _div(out: Tensor, a: Any, b: Any, rounding_mode: str | None = None) -> Tensor:  # noqa: ANN401
    del out, rounding_mode
    result: Tensor = _size(a) / _size(b)
    return result


def _summed(out: Tensor, a: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:  # noqa: ANN401,FBT001,FBT002
    return torch.maximum(out.abs(), _added_up(a, dim, keepdim=keepdim))


def _added_up(a: Tensor, dim: Any, *, keepdim: bool) -> Tensor:  # noqa: ANN401
    axes = tuple(range(a.dim())) if dim is None or dim == [] else dim
    whole, squares = a.sum(axes, keepdim=keepdim), a.square().sum(axes, keepdim=keepdim)
    return torch.minimum(whole, squares.mul_(3).sqrt_())


@_of("_softmax_backward_data")
def _softmax_gradient(out: Tensor, dy: Tensor, p: Tensor, dim: int, *_: object) -> Tensor:
    del out
    products = dy * p
    return products.addcmul_(p, _added_up(products, dim, keepdim=True))


@_of("sum", reads=True)
def _sum(out: Tensor, a: Tensor, *rest: Any, **_: object) -> Tensor:  # noqa: ANN401
    return _summed(out, a, *rest[:2])


@_of("mean", reads=True)
def _mean(out: Tensor, a: Tensor, *rest: Any, **_: object) -> Tensor:  # noqa: ANN401
    n = a.numel() / max(out.numel(), 1)
    return _summed(out * n, a, *rest[:2]) / n


@_of("mm", "bmm", "mv", "dot", "matmul", reads=True)
def _product(out: Tensor, a: Tensor, b: Tensor) -> Tensor:
    size = (a.square() @ b.square()).mul_(3).sqrt_()
    return torch.maximum(out.abs(), size, out=size)


@_of("convolution", reads=True)
def _convolution(
    out: Tensor,
    a: Tensor,
    w: Tensor,
    bias: Tensor | None,
    *geometry: Any,  # noqa: ANN401
) -> Tensor:
    squares: Tensor = _aten.convolution(a.square(), w.square(), None, *geometry)
    size = squares.mul_(3).sqrt_()
    if bias is not None:
        size += bias.view(-1, *[1] * (out.dim() - 2))
    return torch.maximum(out.abs(), size, out=size)


@_of("avg_pool2d", "avg_pool3d", reads=True)
def _pooled(out: Tensor, a: Tensor, kernel: Any, *rest: Any) -> Tensor:  # noqa: ANN401
    pool = _aten.avg_pool3d if len(kernel) == 3 else _aten.avg_pool2d
    size = torch.minimum(pool(a, kernel, *rest), pool(a.square(), kernel, *rest).mul_(3).sqrt_())
    return torch.maximum(out.abs(), size)


@_of("addmm", "baddbmm", reads=True)
def _added_product(
    out: Tensor, c: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1
) -> Tensor:
    size = (a.square() @ b.square()).mul_(3).sqrt_().mul_(abs(alpha))
    return torch.maximum(out.abs(), c * abs(beta) + size)


@_of("where")
def _where(out: Tensor, mask: Tensor, a: Any, b: Any) -> Tensor:  # noqa: ANN401
    del out
    return torch.where(mask, _size(a), _size(b))


@_of("masked_fill")
def _masked_fill(out: Tensor, a: Tensor, mask: Tensor, value: Any) -> Tensor:  # noqa: ANN401
    del out
    return a.masked_fill(mask, abs(value))


@_of("gelu", reads=True)
def _gelu(out: Tensor, a: Tensor, **_: object) -> Tensor:
    size = out.abs()
    return torch.maximum(size, a - size)  # |x| (1 + |t|) / 2


@_of("gelu_backward")
def _gelu_gradient(out: Tensor, dy: Tensor, a: Tensor, **_: object) -> Tensor:
    del out
    p, steep = cumulative(a), (a.square() * (3 * KAPPA) + 1) * (BETA * a)
    return dy * (p + steep * ((2 * p - 1).square() + 1) / 2)


@_of("cumsum", reads=True)
def _running(out: Tensor, a: Tensor, dim: int, **_: object) -> Tensor:
    if not out.dim():
        return out.abs()
    size = torch.minimum(a.cumsum(dim), a.square().cumsum(dim).mul_(3).sqrt_())
    return torch.maximum(out.abs(), size, out=size)


@_of("neg", "abs", "relu", "_to_copy", reads=True)
def _same(out: Tensor, a: Tensor, *_: object, **__: object) -> Tensor:
    return torch.maximum(out.abs(), a) if out.is_floating_point() else out


@_of("log", "log2", "log1p", "logsumexp", "_log_softmax", reads=True)
def _logarithm(out: Tensor, *_: object, **__: object) -> Tensor:
    return torch.ones_like(out)


def _sources(
    graph: Graph, constants: Mapping[str, Tensor], values: Sequence[Tensor]
) -> dict[Node, Tensor]:
    """Return the constants and the arguments, in float64."""
    arguments, result = iter(values), {}
    for node in graph.nodes:
        if node.op in SOURCES:
            value = next(arguments) if node.op == "placeholder" else constants[str(node.target)]
            result[node] = value.double() if value.is_floating_point() else value
    return result


def scales(
    graph: Graph,
    constants: Mapping[str, Tensor],
    values: Sequence[Tensor],
    kept: Mapping[Node, Tensor],
    wanted: Sequence[Node],
) -> dict[Node, Tensor]:
    """Return the scale of each wanted output, in its shape; kept are values already computed."""
    results: dict[Node, Any] = {**kept, **_sources(graph, constants, values)}
    sizes: dict[Node, Any] = {}
    scaled, needed = _needed(graph, kept, wanted)
    done = last_uses(graph)
    for node in graph.nodes:
        if node.op == "output":
            break
        if node in needed and node not in results:
            args: Any = map_arg(node.args, lambda argument: results[argument])
            kwargs: Any = map_arg(node.kwargs, lambda argument: results[argument])
            results[node] = _computed(node, args, kwargs)
        if node in scaled:
            sizes[node] = _scaled(node, results.get(node), sizes)
        for ended in done.get(node, ()):
            results.pop(ended, None)
            sizes.pop(ended, None)
    return {node: sizes[node] for node in wanted}


def scale_of_rows(
    graph: Graph,
    constants: Mapping[str, Tensor],
    values: Sequence[Tensor],
    kept: Mapping[Node, Tensor],
    wanted: Node,
    rows: tuple[Tensor, ...],
) -> Tensor | None:
    """Return the scale of some rows of an output; None where it depends on other rows too."""
    available = {**kept, **_sources(graph, constants, values)}
    lead = wanted.meta["val"].shape[:-1]
    scaled, needed = _needed(graph, available, [wanted])
    results: dict[Node, Any] = {}
    sizes: dict[Node, Any] = {}
    for node in graph.nodes:
        if node not in scaled | needed:
            continue
        is_known = node in available and node in needed
        if is_known:
            value = available[node]
            if value.dim() > 1 and value.shape[:-1] != lead:
                try:
                    value = value.expand(*lead, value.shape[-1])
                except RuntimeError:  # no broadcast makes rows of it
                    return None
            results[node] = select_rows(value, rows) if value.dim() > 1 else value
        computes = node in needed and not is_known
        made_of = computes or (node in scaled and not _is_magnitude(node))
        if made_of and not _is_of_rows(node, len(lead)):
            return None
        if computes:
            args: Any = map_arg(node.args, lambda argument: results[argument])
            kwargs: Any = map_arg(node.kwargs, lambda argument: results[argument])
            results[node] = _computed(node, args, kwargs)
        if node in scaled:
            sizes[node] = _scaled(node, results.get(node), sizes)
    result: Tensor = sizes[wanted]
    return result


def select_rows(x: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
    """Return some rows, copied in one piece where rows are counted along one axis."""
    return x.index_select(0, *rows) if len(rows) == 1 else x[rows]


def _is_of_rows(node: Node, last: int) -> bool:
    """Return True if each number depends on the numbers of its own row alone."""
    softmax = _aten._softmax_backward_data.default  # noqa: SLF001  # torch's own name
    running = _aten.cumsum.default
    axis = {_aten.sum.dim_IntList: 1, _aten.mean.dim: 1, running: 1, softmax: 2}
    if node.target not in axis:
        return node.target == ROUNDS or torch.Tag.pointwise in getattr(node.target, "tags", ())
    stated: Any = node.args[axis[node.target]]
    along = [stated] if isinstance(stated, int) else stated
    keeps = node.target in {softmax, running} or node.args[2:3] == (True,)
    return keeps and (along == [-1] or (along == [last] and last == 1))


def _needed(
    graph: Graph,
    kept: Mapping[Node, Tensor],
    wanted: Sequence[Node],
) -> tuple[set[Node], set[Node]]:
    """Return the nodes that need a scale for the wanted ones, and the nodes that need a value."""
    scaled, needed = set(wanted), set[Node]()
    for node in reversed(graph.nodes):
        if node in scaled:
            if not _is_magnitude(node):
                scaled.update(node.all_input_nodes)
            if _is_magnitude(node) or node.target in _READ:
                needed.add(node)
        if node in needed and node not in kept:
            needed.update(node.all_input_nodes)
    return scaled, needed


def _is_magnitude(node: Node) -> bool:
    """Return True if a node's scale is its value's magnitude."""
    if node.op != "call_function":
        return True
    if node.target is operator.getitem:  # a small one is kept, where the others aren't
        return _is_magnitude(node.all_input_nodes[0])
    if node.target in _HANDS_ON:
        return False
    return node.target not in _SCALES or not node.meta["val"].is_floating_point()


def _computed(node: Node, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    if node.target == ROUNDS:
        return args[0]
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _scaled(node: Node, out: Any, sizes: Mapping[Node, Any]) -> Any:  # noqa: ANN401
    """Return the scale of an operation's result; out is the result, where it is needed."""
    if _is_magnitude(node):
        return tree_map(_magnitude, out)
    args: Any = map_arg(node.args, lambda argument: sizes[argument])
    kwargs: Any = map_arg(node.kwargs, lambda argument: sizes[argument])
    if node.target in _HANDS_ON:
        return _computed(node, args, kwargs)
    return _SCALES[node.target](out, *args, **kwargs)


def _magnitude(x: Any) -> Any:  # noqa: ANN401
    return x.abs() if isinstance(x, Tensor) and x.is_floating_point() else x
