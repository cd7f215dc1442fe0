"""How errors go through operations that move numbers and change none: as the numbers do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kernel_workbench.oracles.analysis.arithmetic import Arithmetic
from kernel_workbench.oracles.analysis.functions import of_products
from kernel_workbench.oracles.analysis.quantities import (
    Combination,
    Quantity,
    constant_error,
    magnitude,
    number,
)
from kernel_workbench.oracles.analysis.rules import (
    EPS_DIVISION,
    EPS_POWER,
    SUMS,
    UnknownError,
    overloads,
    rule,
    times_number,
)
from kernel_workbench.oracles.rounding import UNIT_ROUNDOFF

_aten = torch.ops.aten
_HALF = 0.5

VIEWS = overloads(
    *(_aten.view, _aten._unsafe_view, _aten.permute, _aten.transpose, _aten.t, _aten.expand),  # noqa: SLF001  # torch's own name
    *(_aten.unsqueeze, _aten.squeeze, _aten.slice, _aten.select, _aten.alias, _aten.detach),
)
"""Operations whose result is another view of its one argument."""

MOVES = VIEWS | overloads(
    *(_aten.cat, _aten.stack, _aten.split, _aten.split_with_sizes, _aten.unbind),
    *(_aten.unsafe_split, _aten.unsafe_split_with_sizes, _aten.unsafe_chunk, _aten.chunk),
    *(_aten.take, _aten.index_copy, _aten.diagonal_scatter, _aten.pixel_shuffle),
    *(_aten.pixel_unshuffle, _aten.im2col, _aten.reflection_pad1d, _aten.reflection_pad2d),
    *(_aten.reflection_pad3d, _aten.replication_pad1d, _aten.replication_pad2d),
    *(_aten.replication_pad3d, _aten.channel_shuffle, _aten.rot90, _aten.diagonal_copy),
    *(_aten.index, _aten.index_select, _aten.gather, _aten.clone, _aten.reshape),
    *(_aten.flip, _aten.roll, _aten.repeat, _aten.tril, _aten.triu, _aten.diagonal),
    *(_aten.as_strided, _aten.unfold, _aten.lift_fresh_copy, _aten.select_scatter),
    *(_aten.slice_scatter, _aten.copy, _aten.contiguous, _aten.narrow),
)
"""Operations whose result's error is the operation done on its arguments' errors."""

BY_INDEX = overloads(
    *(_aten.scatter, _aten.scatter_add, _aten.scatter_reduce, _aten.index_add),
    *(_aten.index_put, _aten._unsafe_index_put, _aten.index_reduce),  # noqa: SLF001
)
"""Other operations that put numbers where an index says, which a kernel must have, too."""

MADE = overloads(
    *(_aten.zeros, _aten.ones, _aten.full, _aten.arange, _aten.empty, _aten.eye, _aten.zero),
    *(_aten.zeros_like, _aten.ones_like, _aten.full_like, _aten.empty_like),
    *(_aten.new_zeros, _aten.new_ones, _aten.new_full, _aten.new_empty, _aten.scalar_tensor),
    *(_aten.empty_strided, _aten.new_empty_strided, _aten.sym_size, _aten.sym_numel),
)
"""Operations that make tensors of constants."""


def of_constants(out: Tensor) -> Tensor | None:
    """The error of what is made of constants: what fp32 makes of them."""
    if not out.is_floating_point() or not out.numel():
        return None
    low, high = map(float, torch.aminmax(out))
    if low == high and not constant_error(low):
        return None
    if bool((out.float().double() == out).all()):
        return None
    return out.abs() * UNIT_ROUNDOFF[torch.float32]


@rule("linspace")
def _linspace(
    arithmetic: Arithmetic,
    out: Quantity,
    start: Quantity | float,
    end: Quantity | float,
    steps: int,
    **_: object,
) -> Tensor | None:
    """Bound start + i step, or end - i step: a product and a sum, of a rounded step."""
    first, last = number(start), number(end)
    step = (last.value - first.value) / max(steps - 1, 1)
    multiples = out.value - first.value
    parts = torch.cat([x.flatten() for x in (first.value, last.value, step, multiples, out.value)])
    exact = first.error is None and last.error is None
    if exact and bool((parts.float().double() == parts).all()):
        return None
    most = torch.maximum(first.reach, last.reach)
    error = most * (4 * arithmetic.u)
    for x in (first, last):
        error = error if x.error is None else error + x.error
    return error.expand(out.value.shape)


@rule("logspace")
def _logspace(
    arithmetic: Arithmetic,
    out: Quantity,
    start: Quantity | float,
    end: Quantity | float,
    steps: int,
    base: float = 10.0,
    **_: object,
) -> Tensor:
    """Bound powers of the base, whose exponents are evenly spaced."""
    line = Quantity(out.value.abs().log() / math.log(base))
    off = _linspace(arithmetic, line, start, end, steps)
    steep = line.size * (4 * arithmetic.u) + (0.0 if off is None else off)
    return steep.mul_(abs(math.log(base))).expm1_().add_(EPS_POWER).mul_(out.size)


def _zero(like: Quantity) -> Tensor:
    return like.value.new_zeros(()).expand(like.value.shape)


@rule("constant_pad_nd")
def _pad(
    _: Arithmetic, out: Quantity, a: Quantity, pad: Sequence[int], value: float = 0
) -> Tensor | None:
    del out
    own = abs(value) * constant_error(value)
    if a.error is None and not own:
        return None
    result: Tensor = _aten.constant_pad_nd(_zero(a) if a.error is None else a.error, pad, own)
    return result


@rule("fill")
def _fill(_: Arithmetic, out: Quantity, a: Quantity, value: Quantity | float) -> Tensor | None:
    del a
    error = number(value).error
    return None if error is None else error.expand(out.value.shape)


@rule("scatter")
def _scatter(
    arithmetic: Arithmetic,
    out: Quantity,
    a: Quantity,
    dim: int,
    index: Quantity,
    source: Quantity | float,
    reduce: str | None = None,
) -> Combination | Tensor | None:
    if reduce is not None:
        if isinstance(source, Quantity):
            return _scatter_reduce(arithmetic, out, a, dim, index, source, reduce)
        constant = number(source)
        error = None if constant.error is None else constant.error.expand(index.value.shape)
        several = Quantity(constant.value.expand(index.value.shape), error)
        return _scatter_reduce(arithmetic, out, a, dim, index, several, reduce)
    error = number(source).error
    if a.error is None and error is None:
        return None
    if isinstance(source, Quantity):
        error = _zero(source) if error is None else error
    replaced = _zero(a) if a.error is None else a.error
    result: Tensor = _aten.scatter(replaced, dim, index.value, 0.0 if error is None else error)
    return result


@rule("scatter_reduce", sums=True)
def _scatter_reduce(
    arithmetic: Arithmetic,
    out: Quantity,
    a: Quantity,
    dim: int,
    index: Quantity,
    source: Quantity,
    reduce: str,
    include_self: bool = True,  # noqa: FBT001,FBT002  # aten's own
) -> Combination | Tensor | None:
    """Add up or take the extreme of what comes to one place.

    The largest of numbers is off by no more than the largest of their errors. A mean is a sum, and
    a division by a whole number.
    """
    if reduce in _MULTIPLIES:
        return _multiplied(arithmetic, a, dim, index, source, include_self=include_self)
    if reduce not in _ADDS | _EXTREMES | {"mean"}:
        raise UnknownError(f"reduces by {reduce!r}, which no rule is for")
    before, error = (_zero(x) if x.error is None else x.error for x in (a, source))
    if reduce in _EXTREMES:
        if a.exact and source.exact:
            return None
        return before.scatter_reduce(dim, index.value, error, "amax", include_self=include_self)
    if not include_self:
        values = (a.value.scatter(dim, index.value, 0), before.scatter(dim, index.value, 0))
        a = Quantity(values[0], None if a.exact else values[1])

    def put(one: Tensor, other: Tensor) -> Tensor:
        return one.scatter_add(dim, index.value, other)

    if reduce in _ADDS:
        return _added(arithmetic, out, a, source, put)
    ones = torch.ones_like(a.value)
    start = ones if include_self else ones.scatter(dim, index.value, 0)
    count = put(start, torch.ones_like(source.value)).clamp_(min=1)
    total = _added(arithmetic, Quantity(put(a.value, source.value)), a, source, put)
    return arithmetic.rounded(out, total.tensor() / count, EPS_DIVISION / arithmetic.u)


_ADDS, _EXTREMES, _MULTIPLIES = {"add", "sum"}, {"amax", "amin"}, {"multiply", "prod"}
SUMS |= {_aten.scatter.reduce, _aten.scatter.value_reduce}


def _multiplied(
    arithmetic: Arithmetic,
    a: Quantity,
    dim: int,
    index: Quantity,
    source: Quantity,
    *,
    include_self: bool,
) -> Tensor:
    """Multiply the numbers that come to one place."""
    ones = torch.ones_like(a.value)
    count = ones.scatter_add(dim, index.value, torch.ones_like(source.value))

    def whole(change: Callable[[Quantity], Tensor]) -> Tensor:
        factors = change(a), dim, index.value, change(source), "prod"
        return torch.scatter_reduce(*factors, include_self=include_self)

    return of_products(arithmetic, whole, int(count.amax()) if count.numel() else 1)


def _added(
    arithmetic: Arithmetic,
    out: Quantity,
    a: Quantity,
    source: Quantity,
    put: Callable[[Tensor, Tensor], Tensor],
) -> Combination:
    """Return the error of numbers that `put` adds to a at its places."""

    def counted() -> tuple[Tensor, float]:
        ones = put(torch.ones_like(a.value), torch.ones_like(source.value))
        most = int(ones.amax()) if ones.numel() else 0
        growth = arithmetic.sure.growth(most - 1)
        out.of_value["most"] = 2 * (a.most + most * source.most) if growth <= _HALF else math.nan
        size = put(a.size, source.size)
        return size.mul_(growth).add_(ones, alpha=arithmetic.eta), growth

    local, growth = out.once("local", counted)
    result = Combination(out, [(1.0, magnitude(local))], 0.0)
    if a.exact and source.exact:
        return result
    before, error = (
        torch.zeros_like(operand.value) if operand.error is None else operand.error
        for operand in (a, source)
    )
    return result.plus(put(before, error), 1 + growth)


@rule("scatter_add", sums=True)
def _scatter_add(
    arithmetic: Arithmetic, out: Quantity, a: Quantity, dim: int, index: Quantity, source: Quantity
) -> Combination:
    return _added(
        arithmetic, out, a, source, lambda one, other: one.scatter_add(dim, index.value, other)
    )


@rule("index_add", sums=True)
def _index_add(
    arithmetic: Arithmetic,
    out: Quantity,
    a: Quantity,
    dim: int,
    index: Quantity,
    source: Quantity,
    alpha: float = 1,
) -> Combination:
    scaled = source if alpha == 1 else times_number(arithmetic, source, alpha)
    return _added(
        arithmetic, out, a, scaled, lambda one, other: one.index_add(dim, index.value, other)
    )


@rule("index_put", "_unsafe_index_put", sums=True)
def _index_put(
    arithmetic: Arithmetic,
    out: Quantity,
    a: Quantity,
    indices: Sequence[Quantity | None],
    source: Quantity,
    accumulate: bool = False,  # noqa: FBT001,FBT002  # aten's own
) -> Combination | Tensor | None:
    places = [None if index is None else index.value for index in indices]
    if accumulate:
        # A list of indices as aten has it: None leaves an axis as it is.
        shape = _aten.index(out.value, places).shape
        whole = Quantity(source.value.expand(shape), source.error)

        def put(one: Tensor, other: Tensor) -> Tensor:
            result: Tensor = _aten.index_put(one, places, other, accumulate=True)
            return result

        return _added(arithmetic, out, a, whole, put)
    if a.error is None and source.error is None:
        return None
    errors = (_zero(operand) if operand.error is None else operand.error for operand in (a, source))
    before, error = errors
    result: Tensor = _aten.index_put(before, places, error)
    return result
