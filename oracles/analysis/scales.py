"""How large an output's parts are: what its bound must be below to say something.

The scale of an input is its magnitude. That of a sum is what a third of its addends come to, three
times: max(|sum|, min(sum of scales, sqrt(3 sum of their squares))), addends of either sign taken to
be as likely. A bound above a third of that lets a third of what was added be left out. Of what
isn't a sum or a product the scale is its magnitude; of a logarithm 1, a factor of e.
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

from oracles.analysis.places import MOVES
from oracles.analysis.propagation import last_uses
from oracles.analysis.trace import ROUNDS

_aten = torch.ops.aten
Scale = Callable[..., Tensor]
_SCALES: dict[object, Scale] = {}


def _of(*names: str) -> Callable[[Scale], Scale]:
    def register(function: Scale) -> Scale:
        for name in names:
            packet = getattr(_aten, name)
            _SCALES.update({getattr(packet, each): function for each in packet.overloads()})
        return function

    return register


def _size(x: Any) -> Any:  # noqa: ANN401
    """The scale of an argument; those of tensors of real numbers are no less than 0."""
    return x if isinstance(x, Tensor) and x.is_floating_point() else abs(x)


@_of("add", "sub")
def _add(out: Tensor, a: Any, b: Any, alpha: float = 1) -> Tensor:  # noqa: ANN401
    del out
    made: Tensor = _size(a) + _size(b) * abs(alpha)
    return made


@_of("mul")
def _mul(out: Tensor, a: Any, b: Any) -> Tensor:  # noqa: ANN401
    del out
    made: Tensor = _size(a) * _size(b)
    return made


@_of("div")
def _div(out: Tensor, a: Any, b: Any) -> Tensor:  # noqa: ANN401
    del out
    made: Tensor = _size(a) / _size(b)
    return made


def _summed(out: Tensor, a: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:  # noqa: ANN401,FBT001,FBT002
    axes = tuple(range(a.dim())) if dim is None or dim == [] else dim
    whole, squares = a.sum(axes, keepdim=keepdim), a.square().sum(axes, keepdim=keepdim)
    return torch.maximum(out.abs(), torch.minimum(whole, squares.mul_(3).sqrt_()))


@_of("sum")
def _sum(out: Tensor, a: Tensor, *rest: Any, **_: object) -> Tensor:  # noqa: ANN401
    return _summed(out, a, *rest[:2])


@_of("mean")
def _mean(out: Tensor, a: Tensor, *rest: Any, **_: object) -> Tensor:  # noqa: ANN401
    n = a.numel() / max(out.numel(), 1)
    return _summed(out * n, a, *rest[:2]) / n


@_of("mm", "bmm", "mv", "dot", "matmul")
def _product(out: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.maximum(out.abs(), (a.square() @ b.square()).mul_(3).sqrt_())


@_of("addmm", "baddbmm")
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


@_of("neg", "abs", "relu", "cumsum", "_to_copy")
def _same(out: Tensor, a: Tensor, *_: object, **__: object) -> Tensor:
    return torch.maximum(out.abs(), a) if out.is_floating_point() else out


@_of("log", "log2", "log1p", "logsumexp", "_log_softmax")
def _logarithm(out: Tensor, *_: object) -> Tensor:
    return torch.ones_like(out)


def scales(graph: Graph, constants: Mapping[str, Tensor], values: Sequence[Tensor]) -> list[Tensor]:
    """The scale of each output."""
    held: dict[Node, Any] = {}
    sizes: dict[Node, Any] = {}
    given, done = iter(values), last_uses(graph)
    for node in graph.nodes:
        if node.op == "output":
            outputs = node.args[0]
            return [
                sizes[each]
                for each in (outputs if isinstance(outputs, list | tuple) else (outputs,))
            ]
        if node.op in {"placeholder", "get_attr"}:
            value = next(given) if node.op == "placeholder" else constants[str(node.target)]
            held[node] = value.double() if value.is_floating_point() else value
            sizes[node] = _magnitude(held[node])
        else:
            held[node], sizes[node] = _scaled(node, held, sizes)
        for each in done.get(node, ()):
            del held[each], sizes[each]
    raise AssertionError("a graph has an output")


def _scaled(node: Node, held: Mapping[Node, Any], sizes: Mapping[Node, Any]) -> tuple[Any, Any]:
    """The result of an operation, and its scale."""
    args: Any = map_arg(node.args, lambda each: held[each])
    kwargs: Any = map_arg(node.kwargs, lambda each: held[each])
    sized: Any = map_arg(node.args, lambda each: sizes[each])
    if node.target == ROUNDS:
        return args[0], sized[0]
    out, scale = node.target(*args, **kwargs), _SCALES.get(node.target)  # type: ignore[operator]
    if node.target is operator.getitem:
        return out, sized[0][sized[1]]
    if node.target in MOVES:
        return out, node.target(*sized, **kwargs)  # type: ignore[operator]
    if scale is None or not out.is_floating_point():
        return out, tree_map(_magnitude, out)
    return out, scale(out, *sized, **kwargs)


def _magnitude(x: Any) -> Any:  # noqa: ANN401
    return x.abs() if isinstance(x, Tensor) and x.is_floating_point() else x
