"""Whole numbers that a reference returns: which of them a right kernel may return.

An index says where the p-th largest of a row lies (argmax, top k, sort), and rounded numbers that
are near to each other may change places. A kernel has numbers c with |c - v| <= e for the
reference's v, so that its p-th largest lies between the p-th largest of v - e and of v + e. An
index i at place p is right where v_i - e_i and v_i + e_i reach into that interval, and where the
same row has it at no other place: a set, judged by the number at the index. Where numbers are exact
and equal, the reference's index alone is right if PyTorch promises which one it is, as for the
first of several in `argmax`; else any of them.

Other whole numbers, and truth values, have a distance to the truth, which an error bounds: 0 where
none reaches them, 1 of a code near to a tie.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from kernel_workbench.oracles.analysis.propagation import Pair
from kernel_workbench.oracles.op import Bound, Chosen

_aten = torch.ops.aten
_RESHAPES = {
    *(_aten.view.default, _aten.reshape.default),
    _aten._unsafe_view.default,  # noqa: SLF001  # torch's own name
    *(_aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims, _aten.unsqueeze.default),
    *(_aten.clone.default, _aten.alias.default, _aten.detach.default),
    _aten._to_copy.default,  # noqa: SLF001  # torch's own name
}
_SORTS = {_aten.sort.default, _aten.sort.stable, _aten.topk.default}
_EXTREMES = {
    _aten.max.dim: True,
    _aten.min.dim: False,
    _aten.argmax.default: True,
    _aten.argmin.default: False,
}
READ_AS_SETS = _SORTS | _EXTREMES.keys()
"""Operations whose indices an output may hold."""

_Origin = tuple[Node, int | None, bool, Sequence[int], bool]


@dataclass(frozen=True, slots=True)
class Choice:
    """An output that holds indices of numbers in order.

    source: the node of these numbers. axis: along which they are ordered; None: all of them.
    shape: of the indices, before they are reshaped. promised: which one of equal numbers it is.
    """

    source: Node
    axis: int | None
    largest: bool
    shape: tuple[int, ...]
    promised: bool

    def bound(self, pair: Pair, index: Tensor) -> Bound:
        """Return what indices are judged by: the numbers, their errors, and the reference's own."""
        value, error = pair.value.double(), pair.with_error(pair.sure).error
        error = torch.zeros_like(value) if error is None else error.double().expand_as(value)
        if self.axis is None:
            value, error, axis = value.flatten(), error.flatten(), 0
        else:
            axis = self.axis
        if value.dim() == 0:
            value, error = value[None], error[None]
        side = 1.0 if self.largest else -1.0
        first = index.reshape(self.shape) if self.promised else None
        chosen = Chosen(side * value, error, axis, self.shape, first)
        return Bound(torch.zeros_like(index, dtype=torch.float64), None, chosen=chosen)


def choice_of(node: Node) -> Choice | None:
    """Return what indices a node holds; None where it holds something else."""
    lengths: Sequence[int] | None = None
    while node.target in _RESHAPES or node.target == _aten.slice.Tensor:
        before = node.args[0]
        assert isinstance(before, Node)
        if node.target == _aten.slice.Tensor:
            origin = _origin(before)
            if origin is None or lengths is not None or not _is_first(node, origin):
                return None
            lengths = node.meta["val"].shape
        elif lengths is None and node.meta["val"].numel() != before.meta["val"].numel():
            return None
        node = before
    origin = _origin(node)
    if origin is None:
        return None
    source, axis, largest, shape, promised = origin
    return Choice(source, axis, largest, tuple(lengths or shape), promised)


def _origin(node: Node) -> _Origin | None:
    """Return the numbers that a node has indices of, axis, order, shape, and if ties are ruled."""
    if node.target is operator.getitem and node.args[1] == 1:
        node = node.args[0]  # type: ignore[assignment]
    elif node.target not in {_aten.argmax.default, _aten.argmin.default}:
        return None
    if node.target not in _SORTS | _EXTREMES.keys():
        return None
    named = dict(zip((item.name for item in node.target._schema.arguments), node.args))  # noqa: B905, SLF001
    named |= node.kwargs
    source: Any = named["self"]
    shape = source.meta["val"].shape
    axis: Any = named.get("dim", -1 if node.target in _SORTS else None)
    promised = True
    if node.target in _SORTS:
        by_size = node.target == _aten.topk.default
        largest = named.get("largest", True) if by_size else named.get("descending", False)
        promised = bool(named.get("stable"))
        if not named.get("sorted", True):
            return None
        result = node.meta["val"][1].shape
    else:
        largest = _EXTREMES[node.target]
        result = list(shape) if axis is not None else [1]
        if axis is not None and shape:
            result[axis % len(shape)] = 1
    if not shape:
        return source, 0, bool(largest), [1], promised
    return source, None if axis is None else axis % len(shape), bool(largest), result, promised


def _is_first(node: Node, origin: _Origin) -> bool:
    """Say whether a slice takes the first of an order."""
    _, axis, *_ = origin
    passed: tuple[Any, ...] = (*node.args, *(0, 0, None, 1)[len(node.args) - 1 :])
    _, place, start, _, step = passed[:5]
    rank = len(node.meta["val"].shape)
    return axis is not None and place % rank == axis and not start and step == 1
