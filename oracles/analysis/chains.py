"""Additions in any order: what a tree of them adds up, and how far any order may be from it.

A kernel may add a, b, c and d in another order than a reference writes them in. So the additions of
a graph that follow each other are taken for one sum: through views, negations, factors that are
plain numbers, and sums over axes. With n terms t_i, each with an error e_i and k roundings of its
own on the way, every order is within

    sum e_i + G(n - 1 + k) sum(|t_i| + e_i) + what underflows

as a sum over an axis is (docs/derivations/analysis.md, "Additions in any order").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from kernel_workbench.oracles.analysis.arithmetic import LARGEST, Arithmetic
from kernel_workbench.oracles.analysis.places import MOVES
from kernel_workbench.oracles.analysis.quantities import (
    Combination,
    Quantity,
    constant_error,
    magnitude,
    number,
)
from kernel_workbench.oracles.analysis.rules import SUMS, added, is_power_of_two, overloads
from kernel_workbench.oracles.analysis.sums import axes_of, is_flat
from kernel_workbench.oracles.analysis.windows import addends_of, by_channel, flat_filters
from kernel_workbench.oracles.rounding import NEAREST

if TYPE_CHECKING:
    from kernel_workbench.oracles.analysis.propagation import Pair

_aten = torch.ops.aten
_MOST_LEAVES = 16  # that are looked at for equal numbers
_MOST_EXACT = 2**24  # whole numbers up to that are fp32 numbers
_EPS_QUOTIENT = 3 * NEAREST  # of div.full of PTX, beside one rounding


_ADDS = overloads(_aten.add, _aten.sub)
_DIV, _NEG, _WHERE = (overloads(item) for item in (_aten.div, _aten.neg, _aten.where))
_PAD, _MEAN, _RUNNING = (
    overloads(item) for item in (_aten.constant_pad_nd, _aten.mean, _aten.cumsum)
)
_FACTORS = overloads(_aten.mul) | _DIV
_AXES = overloads(_aten.sum) | _MEAN | _RUNNING
_PRODUCTS = overloads(_aten.mm, _aten.bmm, _aten.mv, _aten.dot, _aten.matmul)
_ADDED_PRODUCTS = overloads(_aten.addmm, _aten.baddbmm)
_CONVOLUTIONS = overloads(_aten.convolution)
_PASSES = MOVES | _NEG | _WHERE | _PAD | _FACTORS
_JOINS = _ADDS | _AXES
_YIELDS = (_JOINS | _PRODUCTS | _ADDED_PRODUCTS | _CONVOLUTIONS | _PASSES) - _MEAN
_ORDERED = _JOINS | _FACTORS  # whose result may differ by the order of additions


@dataclass(frozen=True, slots=True)
class AdditionTree:
    """The addends of a tree of additions.

    count         of the terms of a result, at most
    size          the sum of their magnitudes
    sure, likely  the sums of their errors in the two forms; None: they are exact
    leaves        the terms as tensors, where they are few and no sum over an axis is among them
    roundings     that a term meets beside additions
    own           roundings of the last operation alone
    lost          how many results may be flushed to zero
    summed        whether a sum over an axis is in it
    varies        whether the probable growth holds: addends of such sums are nowhere all but equal
    nested        whether the last operation is on what is added up already: then it has orders
    """

    count: int
    size: Tensor
    sure: Tensor | None
    likely: Tensor | None
    leaves: tuple[Tensor, ...] = ()
    roundings: float = 0.0
    own: float = 1.0
    lost: float = 0.0
    summed: bool = False
    varies: bool = False
    nested: bool = False

    def error(
        self, arithmetic: Arithmetic, out: Quantity, errors: Tensor | None, *, alone: bool = False
    ) -> Combination | Tensor:
        """Return the error of a result in any order. alone: by the last operation's roundings."""
        form = arithmetic if self.varies else arithmetic.sure
        growth = form.growth(self.own if alone else self.count - 1 + self.roundings)
        lost = self.lost * arithmetic.eta
        result = Combination(out, [(growth, magnitude(self.size))], lost).plus(errors, 1 + growth)
        most = float(self.size.amax()) if self.size.numel() else 0.0
        if most < arithmetic.u * LARGEST:
            return result
        return result.tensor().masked_fill(~(self.size < LARGEST), torch.inf)

    def after(
        self, change: Callable[[Tensor], Tensor], *, keeps_leaves: bool = True
    ) -> AdditionTree:
        """The terms after an operation that does the same to sizes, errors and leaves."""
        sure = None if self.sure is None else change(self.sure)
        same = self.likely is self.sure
        likely = sure if same else None if self.likely is None else change(self.likely)
        leaves = tuple(map(change, self.leaves)) if keeps_leaves else ()
        return replace(self, size=change(self.size), sure=sure, likely=likely, leaves=leaves)


def trees(graph: Graph) -> tuple[frozenset[Node], int]:
    """The nodes whose terms a later operation takes, and how many results add to sums."""
    wanted: set[Node] = set()
    for node in reversed(graph.nodes):
        result = node.meta.get("val")
        is_real = isinstance(result, Tensor) and result.is_floating_point()
        if node.op != "call_function" or node.target not in _YIELDS or not is_real:
            continue
        if node.target in _FACTORS and _factor(node.target, node.args) is None:
            continue
        takers = (
            item.target in _JOINS or (item in wanted and item.target in _PASSES)
            for item in node.users
        )
        if any(takers) or (node.target in _ADDS and any(map(_rounds_by_number, node.users))):
            wanted.add(node)
    summed: set[Node] = set()
    count = 0
    for node in graph.nodes:
        inside = any(item in summed for item in node.all_input_nodes)
        if inside and node.target in _ADDS:
            count += node.meta["val"].numel()
        if node in wanted and node.target not in _FACTORS and (inside or node.target in SUMS):
            summed.add(node)
    return frozenset(wanted), count


def _rounds_by_number(node: Node) -> bool:
    """Ask if it multiplies by a number, and rounds: a kernel may multiply each term by it."""
    by = _factor(node.target, node.args)
    return by is not None and not is_power_of_two(by)


def _factor(target: object, args: Any) -> float | None:  # noqa: ANN401
    """The number that a product or quotient has beside a tensor; None where it has none."""
    if target not in _FACTORS:
        return None
    (a, b), numbers = args[:2], (int, float)
    if isinstance(b, numbers) and not isinstance(a, numbers):
        return float(b)
    return float(a) if isinstance(a, numbers) and target not in _DIV else None


def terms_of(
    node: Node,
    args: Any,  # noqa: ANN401
    kwargs: Mapping[str, Any],
    arithmetic: Arithmetic,
    *,
    wanted: bool,
) -> AdditionTree | None:
    """The terms of a result, of a `Pair` for each tensor; None where it isn't taken for a tree.

    wanted: whether a later operation takes them.
    """
    nested = any(item.terms is not None for item in _pairs(args))
    if not (wanted or (nested and node.target in _ORDERED)):
        return None
    if not nested and node.target in _PASSES:
        return None
    result = _of_operation(node, args, kwargs, arithmetic)
    return None if result is None else replace(result, nested=nested and node.target in _ORDERED)


def _of_operation(
    node: Node,
    args: Any,  # noqa: ANN401
    kwargs: Mapping[str, Any],
    arithmetic: Arithmetic,
) -> AdditionTree | None:
    target = node.target
    if target in _ADDS:
        alpha = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
        return _joined(_leaf(args[0]), _leaf(args[1]), alpha, node.meta["val"].shape)
    if target in _AXES:
        return _of_axes(target, args, kwargs)
    if target in _PRODUCTS:
        return _of_product(args[0], args[1], arithmetic)
    if target in _ADDED_PRODUCTS:
        beta, alpha = (kwargs.get(item, 1) for item in ("beta", "alpha"))
        product = _scaled(_of_product(args[1], args[2], arithmetic), alpha)
        if not beta:  # then the addend isn't read
            return product
        return _joined(product, _leaf(args[0]), beta, node.meta["val"].shape)
    if target in _CONVOLUTIONS:
        return _of_convolution(*args, arithmetic=arithmetic)
    if target in _FACTORS:
        return _of_factor(target, args, kwargs)
    if target in _NEG:
        result: AdditionTree | None = args[0].terms
        return None if result is None else replace(result, own=0.0)
    if target in _WHERE:
        return _of_choice(*args)
    return _of_move(target, args, kwargs)


def _pairs(args: Any) -> list[Pair]:  # noqa: ANN401
    parts: list[Pair] = []
    for item in args:
        if isinstance(item, list | tuple):
            parts += _pairs(item)
        elif hasattr(item, "terms"):
            parts.append(item)
    return parts


def _leaf(x: Pair | float) -> AdditionTree:
    """The terms of an argument: itself alone, where it is no tree."""
    if isinstance(x, int | float):
        value = number(x)
        return AdditionTree(1, value.size, value.error, value.error, (value.value,))
    if x.terms is not None:
        return x.terms
    sure, likely = number(x.with_error(x.sure)), number(x.with_error(x.likely))
    same = x.likely is x.sure
    error = sure.error
    return AdditionTree(1, sure.size, error, error if same else likely.error, (sure.value,))


def _joined(a: AdditionTree, b: AdditionTree, times: float, shape: torch.Size) -> AdditionTree:
    """a and `times` b."""
    b = _scaled(b, times)
    sure = added(a.sure, b.sure)
    same = a.likely is a.sure and b.likely is b.sure
    leaves = (*a.leaves, *b.leaves)
    is_whole = len(leaves) == a.count + b.count <= _MOST_LEAVES
    summed = a.summed or b.summed
    result = AdditionTree(
        count=a.count + b.count,
        size=a.size + b.size,
        sure=sure,
        likely=sure if same else added(a.likely, b.likely),
        leaves=leaves if is_whole else (),
        roundings=max(a.roundings, b.roundings),
        lost=a.lost + b.lost + 1,
        summed=summed,
        varies=summed and all(item.varies for item in (a, b) if item.summed),
    )
    return result.after(lambda x: x.to(result.size.device).expand(shape))


def _scaled(a: AdditionTree, by: float, *, divides: bool = False) -> AdditionTree:
    """Return terms of which each, or their sum, is multiplied or divided by a number."""
    if by in {1, -1}:
        return a
    times = abs(1 / by if divides else by)
    off = constant_error(by) + (_EPS_QUOTIENT if divides else 0.0)
    more = 0.0 if is_power_of_two(by) else 1 + off / NEAREST
    result = _still_past(a, a.after(lambda x: x * times))
    lost = a.lost * times + a.count
    return replace(result, roundings=a.roundings + more, own=more, lost=lost)


def _still_past(before: AdditionTree, after: AdditionTree) -> AdditionTree:
    """Return terms that became smaller, of infinite size where their sum may have overflowed."""
    size = before.size
    if not size.numel() or float(size.amax()) < LARGEST:
        return after
    return replace(after, size=after.size.masked_fill(size >= LARGEST, torch.inf))


def _of_factor(target: object, args: Any, kwargs: Mapping[str, Any]) -> AdditionTree | None:  # noqa: ANN401
    """Scale the terms by a plain number. A sum over an axis is multiplied whole."""
    by = _factor(target, args)
    (terms,) = (item.terms for item in _pairs(args)) if by is not None else (None,)
    if terms is None or terms.summed or not by or not math.isfinite(by):
        return None
    if kwargs.get("rounding_mode") is not None:
        return None
    return _scaled(terms, by, divides=target in _DIV)


def _of_choice(mask: Any, a: Pair | float, b: Pair | float) -> AdditionTree | None:  # noqa: ANN401
    """Choose terms by a mask that all kernels have."""
    if mask.sure is not None:
        return None
    x, y = _leaf(a), _leaf(b)
    shape = torch.broadcast_shapes(mask.value.shape, x.size.shape, y.size.shape)
    for tree, everywhere in ((x, mask.value), (y, ~mask.value)):
        if bool(everywhere.all()):
            chosen_tree = tree.after(lambda part: part.expand(shape))
            return replace(chosen_tree, own=0.0, nested=False)
    zero = x.size.new_zeros(())

    def chosen(one: Tensor | None, other: Tensor | None) -> Tensor | None:
        if one is None and other is None:
            return None
        first, second = (zero if item is None else item for item in (one, other))
        return torch.where(mask.value, first, second)

    sure, size = chosen(x.sure, y.sure), chosen(x.size, y.size)
    assert size is not None
    same = x.likely is x.sure and y.likely is y.sure
    summed = x.summed or y.summed
    is_whole = all(len(item.leaves) == item.count for item in (x, y))
    is_whole &= not any(_may_be_flat(leaf, math.prod(shape)) for leaf in (*x.leaves, *y.leaves))
    leaves = zip_longest(x.leaves, y.leaves) if is_whole else ()
    return AdditionTree(
        count=max(x.count, y.count),
        size=size,
        sure=sure,
        likely=sure if same else chosen(x.likely, y.likely),
        leaves=tuple(leaf for pair in leaves if (leaf := chosen(*pair)) is not None),
        roundings=max(x.roundings, y.roundings),
        own=0.0,
        lost=max(x.lost, y.lost),
        summed=summed,
        varies=summed and all(item.varies for item in (x, y) if item.summed),
    )


def _of_move(target: Any, args: Any, kwargs: Mapping[str, Any]) -> AdditionTree:  # noqa: ANN401
    """Move terms as their numbers move. A number that pads is a term."""
    real = [item for item in _pairs(args) if item.value.is_floating_point()]
    parts = [_leaf(item) for item in real]

    def moved(part: Callable[[AdditionTree], Tensor | None]) -> Tensor:
        def change(x: Any) -> Any:  # noqa: ANN401
            if isinstance(x, list | tuple):
                return [change(item) for item in x]
            if not hasattr(x, "terms"):
                return x
            if not x.value.is_floating_point():
                return x.value
            result = part(_leaf(x))
            return torch.zeros_like(x.value) if result is None else result

        result: Tensor = target(*change(args), **kwargs)
        return result

    def error(part: Callable[[AdditionTree], Tensor | None]) -> Tensor | None:
        if all(part(item) is None for item in parts):
            return None
        if target in _PAD:
            result: Tensor = _aten.constant_pad_nd(part(parts[0]), args[1])
            return result
        return moved(part)

    sure = error(lambda item: item.sure)
    same = all(item.likely is item.sure for item in parts)
    alone = len(parts) == 1 and target not in _PAD
    whole = alone and len(parts[0].leaves) == parts[0].count

    def leaf_at(place: int) -> Tensor:
        return moved(lambda item: item.leaves[place])

    leaves = [leaf_at(place) for place in range(parts[0].count)] if whole else []
    summed = any(item.summed for item in parts)
    return AdditionTree(
        count=max(item.count for item in parts),
        size=moved(lambda item: item.size).abs(),
        sure=sure,
        likely=sure if same else error(lambda item: item.likely),
        leaves=tuple(leaves),
        roundings=max(item.roundings for item in parts),
        own=0.0,
        lost=max(item.lost for item in parts),
        summed=summed,
        varies=summed and all(item.varies for item in parts if item.summed),
    )


def _of_axes(target: object, args: Any, kwargs: Mapping[str, Any]) -> AdditionTree | None:  # noqa: ANN401
    """Take in the terms of a sum over axes, their mean, or a running sum."""
    a = args[0]
    if not a.value.is_floating_point():
        return None
    inner, shape = _leaf(a), a.value.shape
    axes = axes_of(a.value, args[1] if len(args) > 1 else kwargs.get("dim"))
    keep = bool(args[2] if len(args) > 2 else kwargs.get("keepdim", False))
    n = math.prod(shape[axis] for axis in axes)
    if target in _RUNNING and axes:  # a number has no axis to run along
        result = inner.after(lambda x: x.expand(shape).cumsum(axes[0]), keeps_leaves=False)
        lost, count = n * (inner.lost + 1), max(n, 1) * inner.count
        return replace(result, count=count, own=n, lost=lost, summed=True, varies=False)
    is_leafless = not inner.summed and not inner.leaves
    flat = is_leafless or any(
        is_flat(Quantity(item.expand(shape)), axes) and not _adds_exactly(item, n)
        for item in (a.value, *inner.leaves)
    )
    result = inner.after(lambda x: x.expand(shape).sum(axes, keepdim=keep), keeps_leaves=False)
    varies = not flat and (inner.varies or not inner.summed)
    result = replace(
        result,
        count=max(n, 1) * inner.count,
        own=max(n - 1, 0),
        lost=n * (inner.lost + 1),
        summed=True,
        varies=varies,
    )
    if target not in _MEAN or n < 2:  # of one number there is nothing to divide
        return result
    if n & (n - 1):
        result = replace(result, roundings=result.roundings + 2, own=result.own + 2)
    result = replace(result, lost=result.lost / n + 2)
    return _still_past(result, result.after(lambda x: x / n))


def _is_one_number(x: Tensor) -> bool:
    """Ask if a term is one plain number in all places."""
    steps = (step for size, step in zip(x.shape, x.stride(), strict=True) if size > 1)
    return x.numel() > 0 and not any(steps)


def _adds_exactly(x: Tensor, n: int) -> bool:
    """Ask if n addends that are all one plain number have exact sums in fp32, in any order."""
    if not _is_one_number(x):
        return False
    value = float(x[(0,) * x.dim()])
    if not math.isfinite(value):
        return False
    numerator, _ = value.as_integer_ratio()
    odd = numerator // (numerator & -numerator) if numerator else 0
    return abs(odd) * n <= _MOST_EXACT


def _may_be_flat(leaf: Tensor, n: int) -> bool:
    """Ask if chosen numbers of a term may be all but equal, so that n of them err to one side."""
    if _is_one_number(leaf):
        return not _adds_exactly(leaf, n)
    axes = tuple(range(leaf.dim()))
    return any(is_flat(Quantity(leaf), some) for some in (axes, axes[-1:]))


def _of_product(a: Pair, b: Pair, arithmetic: Arithmetic) -> AdditionTree:
    """Take each product of two matrices' numbers for a term, which is rounded once."""
    x, y = a.value, b.with_error(b.sure)
    flat = is_flat(y, (max(y.value.dim() - 2, 0),)) and is_flat(
        a.with_error(a.sure), (x.dim() - 1,)
    )
    return _products(a, b, torch.matmul, x.shape[-1], arithmetic, varies=not flat)


def _products(
    a: Pair,
    b: Pair,
    times: Callable[[Tensor, Tensor], Tensor],
    k: int,
    arithmetic: Arithmetic,
    *,
    varies: bool,
) -> AdditionTree:
    """Return the terms of an operation that is linear in a and in b: k products at most.

    times: the operation. varies: the products of one number are not all alike.
    """
    x, y = a.with_error(a.sure), b.with_error(b.sure)

    def error(x: Quantity, y: Quantity) -> Tensor | None:
        ea, eb = arithmetic.operand(x), arithmetic.operand(y)
        left = None if ea is None else times(ea, y.size if eb is None else y.size + eb)
        return added(left, None if eb is None else times(x.size, eb))

    sure = error(x, y)
    same = a.likely is a.sure and b.likely is b.sure
    return AdditionTree(
        count=max(k, 1),
        size=times(x.size, y.size),
        sure=sure,
        likely=sure if same else error(a.with_error(a.likely), b.with_error(b.likely)),
        roundings=1.0,
        own=k,
        lost=2 * k,
        summed=True,
        varies=varies,
    )


def _of_convolution(
    a: Pair,
    b: Pair,
    bias: Pair | None,
    *geometry: Any,  # noqa: ANN401
    arithmetic: Arithmetic,
) -> AdditionTree:
    """Take each product of a convolution for a term, which is rounded once, and its bias."""
    stride, _, dilation, transposed, _, groups = geometry

    def convolved(one: Tensor, other: Tensor) -> Tensor:
        result: Tensor = _aten.convolution(one, other, None, *geometry)
        return result

    k = addends_of(b.value.shape, stride, dilation, groups, transposed=transposed)
    flat = bool(flat_filters(b.value, groups, transposed=transposed).any())
    terms = _products(a, b, convolved, k, arithmetic, varies=not flat)
    if bias is None:
        return terms
    of_channels = _leaf(bias).after(lambda x: by_channel(x, terms.size))
    return _joined(terms, of_channels, 1.0, terms.size.shape)
