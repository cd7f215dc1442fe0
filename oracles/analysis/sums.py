"""How errors go through sums and products of matrices, whatever the order of addition.

With G(n) >= (1 + u)^n - 1, what n roundings in a row do (`Arithmetic.growth`):

    sum of n       sum ea + G(n - 1) sum(|a| + ea) + n eta
    mean           that over n, with two roundings: of 1 / n and of the product
    A B over K     (ea + G(K)(|a| + ea)) (|b| + eb) + |a| eb + 2 K eta
    cumsum         as the sum of what it has met

The probable G isn't for rows whose addends are all but equal: their roundings are too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from oracles.analysis.arithmetic import LARGEST, Arithmetic
from oracles.analysis.rules import (
    Known,
    UnknownError,
    added,
    number,
    product,
    rule,
    square_root,
)

_EQUAL = 2.0**-18  # numbers nearer to each other than that, of the largest, are taken for equal


def _axes(a: Tensor, dim: int | Sequence[int] | None) -> tuple[int, ...]:
    given = (dim,) if isinstance(dim, int) else tuple(dim or ())
    return tuple(each % max(a.dim(), 1) for each in given) or tuple(range(a.dim()))


def _flat(values: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Where all numbers of a sum are all but equal; the axes stay, of size 1."""
    if len(axes) == 1:
        low, high = values.aminmax(dim=axes[0], keepdim=True)
    else:
        low, high = values.amin(axes, keepdim=True), values.amax(axes, keepdim=True)
    return high - low <= _EQUAL * torch.maximum(high.abs(), low.abs())


def _grown(arithmetic: Arithmetic, size: Tensor, n: int, flat: Tensor | None) -> Tensor:
    """G(n) times `size`; by the deterministic form where `flat`."""
    factor = arithmetic.growth(n)
    if flat is None:
        return size * factor
    return size * torch.where(flat, arithmetic.sure.growth(n), factor)


def _varies(arithmetic: Arithmetic, n: int) -> bool:
    """Whether it matters that addends vary: the probable form is the smaller one."""
    return arithmetic.growth(n) < arithmetic.sure.growth(n)


def _overflowed(error: Tensor, size: Tensor) -> Tensor:
    return error.masked_fill_(size >= LARGEST, torch.inf)


def _total(arithmetic: Arithmetic, a: Known, axes: tuple[int, ...], *, keep: bool) -> Tensor | None:
    value, error = number(a)
    n = math.prod(value.shape[axis] for axis in axes)
    if not axes or not n or n == 1:
        return None if error is None else error.sum(axes, keepdim=keep)
    if not a.value.is_floating_point() and error is None:
        return None

    def sizes() -> tuple[Tensor, Tensor | None]:
        size = value.abs()
        if error is None:
            return size.sum(axes, keepdim=keep), None
        return size.add_(error).sum(axes, keepdim=keep), error.sum(axes, keepdim=keep)

    size, through = a.once(("total", axes, keep), sizes)
    flat = None
    if _varies(arithmetic, n - 1):
        flat = _flat(value, axes)
        flat = flat if keep else flat.squeeze(axes)
    made = _grown(arithmetic, size, n - 1, flat).add_(n * arithmetic.eta)
    return _overflowed(made if through is None else made.add_(through), size)


@rule("sum", sums=True)
def _sum(
    arithmetic: Arithmetic,
    out: Tensor,
    a: Known,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,  # noqa: FBT001,FBT002  # aten's own
    dtype: torch.dtype | None = None,
) -> Tensor | None:
    del out, dtype
    return _total(arithmetic, a, _axes(a.value, dim), keep=keepdim)


@rule("mean", sums=True)
def _mean(
    arithmetic: Arithmetic,
    out: Tensor,
    a: Known,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,  # noqa: FBT001,FBT002  # aten's own
    dtype: torch.dtype | None = None,
) -> Tensor | None:
    del dtype
    axes = _axes(a.value, dim)
    n = math.prod(a.value.shape[axis] for axis in axes)
    total = _total(arithmetic, a, axes, keep=keepdim)
    if total is None or n < 2:  # of one number there is nothing to divide
        return total
    total /= n
    return total if n & (n - 1) == 0 else arithmetic.rounded(out, total, 2)


def _variance(
    arithmetic: Arithmetic, a: Known, axes: tuple[int, ...], correction: float, *, keep: bool
) -> tuple[Known, Known]:
    """mean((a - mean)^2), and the mean. A running mean is off by no more."""
    n = math.prod(a.value.shape[axis] for axis in axes)
    mean = a.value.mean(axes, keepdim=True)
    e_mean = _mean(arithmetic, mean, a, axes, keepdim=True)
    apart = a.value - mean
    off = arithmetic.rounded(apart, added(a.error, e_mean))
    squares = apart.square()
    e_squares = arithmetic.rounded(squares, product(apart, off, apart, off))
    total = _total(arithmetic, Known(squares, e_squares), axes, keep=keep)
    value = squares.sum(axes, keepdim=keep) / (n - correction)
    assert total is not None
    error = arithmetic.rounded(value, total / (n - correction), 2)
    held = Known(mean, e_mean)
    if not keep:
        held = Known(mean.squeeze(axes), None if e_mean is None else e_mean.squeeze(axes))
    return Known(value, error), held


@rule("var", "var_mean", sums=True)
def _var(
    arithmetic: Arithmetic,
    out: Tensor | Sequence[Tensor],
    a: Known,
    dim: int | Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> object:
    degrees = 1 if correction is None else correction
    variance, mean = _variance(arithmetic, a, _axes(a.value, dim), degrees, keep=keepdim)
    return variance.error if isinstance(out, Tensor) else (variance.error, mean.error)


@rule("std", sums=True)
def _std(
    arithmetic: Arithmetic,
    out: Tensor,
    a: Known,
    dim: int | Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:
    degrees = 1 if correction is None else correction
    variance, _ = _variance(arithmetic, a, _axes(a.value, dim), degrees, keep=keepdim)
    return square_root(arithmetic, out, variance)


@rule("cumsum", sums=True)
def _cumsum(arithmetic: Arithmetic, out: Tensor, a: Known, dim: int, **_: object) -> Tensor | None:
    n = a.value.shape[dim] if a.value.dim() else 1
    size = a.value.abs() if a.error is None else a.value.abs() + a.error
    made = size.cumsum(dim).mul_(arithmetic.sure.growth(n)).add_(n * arithmetic.eta)
    del out
    return made if a.error is None else made.add_(a.error.cumsum(dim))


@rule("amax", "amin", "max", "min")
def _extreme(
    _: Arithmetic,
    out: Tensor | Sequence[Tensor],
    a: Known,
    dim: Known | int | Sequence[int] | None = None,
    keepdim: bool = False,  # noqa: FBT001,FBT002  # aten's own
) -> object:
    if isinstance(dim, Known):
        raise UnknownError("of two tensors is `maximum` or `minimum`; write that")
    error = None if a.error is None else a.error.amax(_axes(a.value, dim), keepdim=keepdim)
    if isinstance(out, Tensor):
        return error
    return error, error  # that of the indices: whoever uses them is told


@rule("mm", "bmm", "matmul", "mv", "dot", sums=True)
def _product(arithmetic: Arithmetic, out: Tensor, a: Known, b: Known) -> Tensor:
    """Of matrices, over the last axis of a and the last but one of b."""
    (x, ea), (y, eb) = ((each.value, arithmetic.operand(each.value, each.error)) for each in (a, b))
    k = x.shape[-1]
    flat = None
    if _varies(arithmetic, k):
        columns = _flat(y, (max(y.dim() - 2, 0),))
        columns = columns if y.dim() > 1 else columns.squeeze(-1)
        rows = _flat(x, (x.dim() - 1,))
        flat = (rows if x.dim() > 1 else rows.squeeze(-1)) & columns
        flat = flat.squeeze(-1) if y.dim() == 1 and x.dim() > 1 else flat
    if flat is not None and not bool(flat.any()):
        flat = None
    size_a = x.abs() if ea is None else x.abs().add_(ea)
    size_b = y.abs() if eb is None else y.abs().add_(eb)
    size = None
    if ea is None and eb is None:
        size = a.once(("product", id(b)), lambda: size_a @ size_b)
    elif flat is not None or ea is None:
        size = size_a @ size_b
    if size is None:  # what is added up, and a's own error, in one product
        assert ea is not None
        made = torch.add(ea, size_a, alpha=arithmetic.growth(k)) @ size_b
    else:
        made = _grown(arithmetic, size, k, flat)
        if ea is not None:
            made += ea @ size_b
    if eb is not None:
        made += x.abs() @ eb
    made += 2 * k * arithmetic.eta
    del out
    if k and made.numel() and float(size_a.amax()) * k * float(size_b.amax()) >= LARGEST:
        made = _overflowed(made, size_a @ size_b if size is None else size)
    return made


@rule("addmm", "baddbmm", sums=True)
def _added_product(
    arithmetic: Arithmetic,
    out: Tensor,
    c: Known,
    a: Known,
    b: Known,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    whole = _product(arithmetic, out, a, b) * abs(alpha)
    of_c = c.value.abs() * abs(beta)
    roundings = (alpha not in {1, -1}) + 0
    if roundings:
        whole = arithmetic.rounded((a.value @ b.value).mul_(alpha), whole)
    if c.error is not None:
        whole = whole + c.error * abs(beta)
    if beta not in {0, 1, -1}:
        whole = whole + of_c * (2 * arithmetic.u)
    return arithmetic.rounded(out, whole)


@rule("all", "any")
def _whether(
    _: Arithmetic,
    out: Tensor,
    a: Known,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,  # noqa: FBT001,FBT002  # aten's own
) -> Tensor | None:
    del out
    if a.error is None:
        return None
    open_ = a.error if a.error.dtype == torch.bool else a.error > 0
    return open_.any(_axes(a.value, dim), keepdim=keepdim)
