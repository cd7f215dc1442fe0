"""The roundings of a product that a library distributes over a sum: x s + (b - m s).

Libraries compute a normalisation (x - m) s + b so, with s and b - m s computed once for each
channel or row, and some compute lerp as (1 - w) a + w b. Each product of an addend is rounded by
itself then, and so is the sum of three numbers, in any order: these roundings count by the addends'
magnitudes, where those of the function as it is documented count by the magnitude of the
difference. Only PyTorch's functions of these names are taken apart. In a formula that a user
writes, x - m is exact where x is near m; a kernel that rounds x s and m s apart loses that.

The parts of a number are the sum of these magnitudes. An addition begins them, views and factors
change them as they change the number, and a product adds a rounding of the parts to the error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard, cast

import torch
from torch import Tensor
from torch.fx import Graph, Node

from kernel_workbench.oracles.analysis.places import VIEWS
from kernel_workbench.oracles.analysis.quantities import Combination, magnitude
from kernel_workbench.oracles.analysis.rules import overloads
from kernel_workbench.oracles.analysis.trace import function_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernel_workbench.oracles.analysis.propagation import Pair

_aten = torch.ops.aten
_ADDS = overloads(_aten.add, _aten.sub)
_TIMES, _OVER = overloads(_aten.mul), overloads(_aten.div)
PARTS = "parts"  # the key among what is known of a value
_FUNCTIONS = {
    *("batch_norm", "group_norm", "instance_norm", "layer_norm"),
    *("native_batch_norm", "native_group_norm", "native_layer_norm", "lerp", "lerp_"),
}


def _is_real(node: object) -> bool:
    """Return True if a node's result is a tensor of real numbers."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, Tensor) and value.is_floating_point()


def distributing(graph: Graph) -> dict[Node, bool]:
    """Return the nodes whose parts are needed, and whether each rounds them.

    They lead from an addition to the last product that follows, and to a sum with that product.
    """
    have: set[Node] = set()
    for node in graph.nodes:
        is_of_one = node.op == "call_function" and function_of(node).split(".")[-1] in _FUNCTIONS
        if is_of_one and _is_real(node) and _has_parts(node, have):
            have.add(node)
    rounding = {node for node in have if _rounds(node, have)}
    needed: dict[Node, bool] = {}
    for node in reversed(graph.nodes):
        users = have.intersection(node.users)
        if node in rounding or (node in have and not users.isdisjoint(needed)):
            needed[node] = node in rounding
    return needed


def _rounds(node: Node, have: set[Node]) -> bool:
    """Return True if an operation rounds parts: a product does, and a sum with a product in it."""
    if node.target in _ADDS:
        return any(
            isinstance(item, Node) and item in have and _is_product(item) for item in node.args[:2]
        )
    return _is_product(node)


def _is_product(node: Node) -> bool:
    """Return True for a product or quotient of two tensors of real numbers."""
    return node.target in _TIMES | _OVER and all(map(_is_real, node.args[:2]))


def _has_parts(node: Node, have: set[Node]) -> bool:
    if node.target in _ADDS:
        return True
    if node.target in _TIMES:
        return any(item in have for item in node.args[:2])
    return node.target in VIEWS | _OVER and node.args[0] in have


def parts_of(node: Node, args: Any, kwargs: Mapping[str, Any]) -> Tensor | None:  # noqa: ANN401
    """Return the parts of a result, of `Pair` for each tensor; None where no argument has any."""
    target, first = node.target, args[0]
    if target in _ADDS:
        alpha = abs(kwargs.get("alpha", args[2] if len(args) > 2 else 1))
        result = _size(first) + _size(args[1]) * alpha
        return result if isinstance(result, Tensor) else None
    if target in VIEWS:
        parts = _parts(first)
        return None if parts is None else target(parts, *args[1:], **kwargs)  # type: ignore[operator]
    if kwargs.get("rounding_mode") is not None:
        return None
    a, b = args[:2]
    if _parts(a) is None and target in _TIMES:
        a, b = b, a
    parts = _parts(a)
    if parts is None:
        return None
    by = _magnitude(b)
    return parts * by if target in _TIMES else parts / by


def _is_pair(x: Pair | float) -> TypeGuard[Pair]:
    return not isinstance(x, int | float)


def _parts(x: Pair | float) -> Tensor | None:
    return x.of_value.get(PARTS) if _is_pair(x) else None


def _size(x: Pair | float) -> Tensor | float:
    """Return the parts of a number, or its magnitude where it has none."""
    parts = _parts(x)
    return _magnitude(x) if parts is None else parts


def _magnitude(x: Pair | float) -> Tensor | float:
    return x.before.size if _is_pair(x) else abs(cast("float", x))


def with_parts(
    error: Combination | Tensor | None, u: float, parts: Tensor
) -> Combination | Tensor | None:
    """Return an error with one more rounding of the parts; what is exact stays so."""
    if error is None:
        return None
    if isinstance(error, Combination):
        return error.plus_term(u, magnitude(parts.expand(error.of.value.shape)))
    return torch.add(error, parts, alpha=u)
