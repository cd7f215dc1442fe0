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
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from kernel_workbench.oracles.analysis.arithmetic import LARGEST, Arithmetic
from kernel_workbench.oracles.analysis.quantities import Combination, Quantity, number
from kernel_workbench.oracles.analysis.rules import (
    UnknownError,
    added,
    as_truth,
    monotone,
    product,
    rule,
    square_root,
)

_FIRST = 8  # numbers that are looked at first
EQUAL = 2.0**-18  # numbers nearer to each other than that, of the largest, are taken for equal


def axes_of(a: Tensor, dim: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the axes of an operation's `dim`; None or () means all axes.

    Example:
        >>> axes_of(torch.zeros(2, 3, 4), -1)
        (2,)
        >>> axes_of(torch.zeros(2, 3), None)
        (0, 1)
    """
    axes = (dim,) if isinstance(dim, int) else tuple(dim or ())
    if not a.dim():  # torch takes axis 0 or -1 of a number, which has none
        return ()
    return tuple(axis % a.dim() for axis in axes) or tuple(range(a.dim()))


def _flat(a: Quantity, axes: tuple[int, ...], total: Tensor | None = None) -> Tensor | None:
    """Return where all numbers of a sum are all but equal; None: nowhere. The axes stay, of size 1.

    total: the sum of magnitudes, where it is known.
    """
    n = math.prod(a.value.shape[axis] for axis in axes)

    def flat_places() -> Tensor | None:
        if total is not None:  # then the mean of magnitudes is near to each, and so to the first
            first, mean = a.value, total / n
            for axis in axes:
                first = first.narrow(axis, 0, min(_FIRST, first.shape[axis]))
            apart = (first.abs() - mean).abs() > 4 * EQUAL * mean
            if bool(apart.amax(axes).all()):
                return None
        high = a.value.amax(axes, keepdim=True)
        low = a.value.amin(axes, keepdim=True)
        flat = high - low <= EQUAL * torch.maximum(high, -low)
        return flat if bool(flat.any()) else None

    return a.once_of_value(("flat", axes), flat_places)


def is_flat(a: Quantity, axes: tuple[int, ...]) -> bool:
    """Ask if all numbers of some sum are all but equal."""
    return bool(a.value.numel()) and _flat(a, axes) is not None


def _grown(
    arithmetic: Arithmetic, n: int, size: Tensor, flat: Tensor | None, error: Tensor | None
) -> Tensor:
    """Return an error and G(n) (size + error); G(n) by the deterministic form where `flat`."""
    factor = arithmetic.growth(n)
    if flat is None:
        result = size * factor
        return result if error is None else result.add_(error, alpha=1 + factor)
    result = size if error is None else size + error
    result = result * torch.where(flat, arithmetic.sure.growth(n), factor)
    return result if error is None else result.add_(error)


def _varies(arithmetic: Arithmetic, n: int) -> bool:
    """Return True if it matters that addends vary: the probable form is the smaller one."""
    return arithmetic.growth(n) < arithmetic.sure.growth(n)


def _overflowed(error: Tensor, size: Tensor) -> Tensor:
    return error.masked_fill_(size >= LARGEST, torch.inf)


def sum_error(
    arithmetic: Arithmetic, a: Quantity, axes: tuple[int, ...], *, keep: bool
) -> Tensor | None:
    """Return the error of a sum over axes; None if exact. With `keep` axes stay, of size 1."""
    whole, a = not a.value.is_floating_point(), number(a)
    n = math.prod(a.value.shape[axis] for axis in axes)
    through = None
    if isinstance(a.lazy_error, Combination):
        through = a.lazy_error.sum(axes)
    elif a.error is not None:
        through = a.error.sum(axes, keepdim=True)
    if n < 2:  # there is nothing to add
        return through if keep or through is None else through.squeeze(axes)
    if whole and a.exact:
        return None
    size = a.total(axes)
    flat = _flat(a, axes, size) if _varies(arithmetic, n - 1) else None
    error = _grown(arithmetic, n - 1, size, flat, through)
    idle = size == 0 if through is None else (size == 0) & (through == 0)
    error.add_(n * arithmetic.eta).masked_fill_(idle, 0)  # of zeros that every kernel has
    if error.numel() and not float(error.amax()) < arithmetic.u * LARGEST:  # G(n - 1) is u or more
        _overflowed(error, size if through is None else size + through)
    return error if keep else error.squeeze(axes)


@rule("sum", sums=True)
def _sum(
    arithmetic: Arithmetic,
    out: Quantity,
    a: Quantity,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,  # noqa: FBT001,FBT002  # aten's own
    dtype: torch.dtype | None = None,
) -> Tensor | None:
    del out, dtype
    return sum_error(arithmetic, a, axes_of(a.value, dim), keep=keepdim)


@rule("mean", sums=True)
def _mean(
    arithmetic: Arithmetic,
    out: Quantity,
    a: Quantity,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,  # noqa: FBT001,FBT002  # aten's own
    dtype: torch.dtype | None = None,
) -> Tensor | None:
    del dtype
    axes = axes_of(a.value, dim)
    n = math.prod(a.value.shape[axis] for axis in axes)
    total = sum_error(arithmetic, a, axes, keep=keepdim)
    if total is None or n < 2:  # of one number there is nothing to divide
        return total
    zeros = total == 0  # a sum of zeros that every kernel has
    total /= n
    if n & (n - 1) == 0:
        return total
    return arithmetic.rounded(out, total, 2).tensor().masked_fill(zeros, 0.0)


def _with_error(a: Quantity, error: Combination) -> Quantity:
    """Return the number with an error, and what is known of its value alone."""
    return Quantity(a.value, error, of_value=a.of_value)


def _variance(
    arithmetic: Arithmetic, a: Quantity, axes: tuple[int, ...], correction: float, *, keep: bool
) -> tuple[Quantity, Tensor | None]:
    """mean((a - mean)^2), and the mean's error. A running mean is off by no more."""
    n = math.prod(a.value.shape[axis] for axis in axes)

    def shared() -> tuple[Quantity, Quantity, Quantity]:
        mean = Quantity(a.value.mean(axes, keepdim=True))
        apart = Quantity(a.value - mean.value)
        squares = Quantity(apart.value.square())
        squares.mark_nonnegative()
        return mean, apart, squares

    mean, apart, squares = a.once(("variance", axes), shared)
    e_mean = _mean(arithmetic, mean, a, axes, keepdim=True)
    apart = _with_error(apart, arithmetic.rounded(apart, added(a.error, e_mean)))
    squares = _with_error(squares, product(arithmetic, squares, apart, apart))
    total = sum_error(arithmetic, squares, axes, keep=keep)
    value = Quantity(squares.value.sum(axes, keepdim=keep) / (n - correction))
    assert total is not None
    error = arithmetic.rounded(value, total / (n - correction), 2)
    if not keep:
        e_mean = None if e_mean is None else e_mean.squeeze(axes)
    return replace(value, lazy_error=error), e_mean


@rule("var", "var_mean", sums=True)
def _var(
    arithmetic: Arithmetic,
    out: Quantity | Sequence[Quantity],
    a: Quantity,
    dim: int | Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> object:
    degrees = 1 if correction is None else correction
    variance, e_mean = _variance(arithmetic, a, axes_of(a.value, dim), degrees, keep=keepdim)
    return variance.error if isinstance(out, Quantity) else (variance.error, e_mean)


@rule("std", sums=True)
def _std(
    arithmetic: Arithmetic,
    out: Quantity,
    a: Quantity,
    dim: int | Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Combination:
    degrees = 1 if correction is None else correction
    variance, _ = _variance(arithmetic, a, axes_of(a.value, dim), degrees, keep=keepdim)
    return square_root(arithmetic, out, variance)


@rule("cumsum", sums=True)
def _cumsum(
    arithmetic: Arithmetic, out: Quantity, a: Quantity, dim: int, **_: object
) -> Tensor | None:
    if not a.value.dim():
        return a.error
    n = a.value.shape[dim]
    error = a.reach.cumsum(dim).mul_(arithmetic.sure.growth(n)).add_(n * arithmetic.eta)
    del out
    return error if a.error is None else error.add_(a.error.cumsum(dim))


def _extreme(
    function: Callable[..., Tensor],
    _: Arithmetic,
    out: Quantity | Sequence[Quantity],
    a: Quantity,
    dim: Quantity | int | Sequence[int] | None = None,
    keepdim: bool = False,  # noqa: FBT001,FBT002  # aten's own
) -> object:
    if isinstance(dim, Quantity):
        raise UnknownError("of two tensors is `maximum` or `minimum`; write that")
    axes = axes_of(a.value, dim)
    if a.value.is_floating_point():
        result = out if isinstance(out, Quantity) else out[0]
        error = monotone(result, lambda x: function(x, axes, keepdim=keepdim), a)
    else:
        error = None if a.error is None else a.error.amax(axes, keepdim=keepdim)
    if isinstance(out, Quantity):
        return error
    return error, None if error is None else _open_index(function, a, axes)


rule("amax", "max")(partial(_extreme, torch.amax))
rule("amin", "min")(partial(_extreme, torch.amin))


def _open_index(
    function: Callable[..., Tensor], a: Quantity, axes: tuple[int, ...]
) -> Tensor | None:
    """The error of an index of an extreme: whoever uses it is told where another may be it."""
    side = 1 if function is torch.amax else -1
    a = number(a)  # of truth values there are no differences
    value, error = side * a.value, a.error
    assert error is not None
    least = (value - error).amax(axes, keepdim=True)
    several = (value + error >= least).sum(axes) > 1
    return _unknown(several)


def _unknown(open_: Tensor) -> Tensor | None:
    """The error of indices, which have no distance: infinite where another one may be right."""
    if not bool(open_.any()):
        return None
    return torch.zeros_like(open_, dtype=torch.float64).masked_fill_(open_, torch.inf)


@rule("argmax", "argmin")
def _place_of_extreme(
    _: Arithmetic,
    out: Quantity,
    a: Quantity,
    dim: int | None = None,
    keepdim: bool = False,  # noqa: FBT001,FBT002  # aten's own
) -> Tensor | None:
    del dim, keepdim
    return None if a.error is None else _unknown(torch.ones_like(out.value, dtype=torch.bool))


@rule("mm", "bmm", "matmul", "mv", "dot", sums=True)
def _product(arithmetic: Arithmetic, out: Quantity, a: Quantity, b: Quantity) -> Tensor:
    """Return the error of a product of matrices, over a's last axis and b's last but one."""
    ea, eb = arithmetic.operand(a), arithmetic.operand(b)
    k = a.value.shape[-1]
    flat = flat_products(a, b) if _varies(arithmetic, k) else None
    size_a = a.size if ea is None else a.size + ea
    size_b = b.size if eb is None else b.size + eb
    size = None
    if ea is None and eb is None:
        size = a.once(("product", id(b)), lambda: size_a @ size_b)
    elif flat is not None or ea is None:
        size = size_a @ size_b
    factor = arithmetic.growth(k)
    if size is None:  # what is added up, and a's own error, in one product
        assert ea is not None
        result = torch.add(ea, size_a, alpha=factor) @ size_b
    else:
        result = size * (
            factor if flat is None else torch.where(flat, arithmetic.sure.growth(k), factor)
        )
        if ea is not None:
            result += ea @ size_b
    if eb is not None:
        result += a.size @ eb
    result += 2 * k * arithmetic.eta
    del out
    if k and result.numel() and float(size_a.amax()) * k * float(size_b.amax()) >= LARGEST:
        result = _overflowed(result, size_a @ size_b if size is None else size)
    return result


def flat_products(a: Quantity, b: Quantity) -> Tensor | None:
    """Where both a row and a column are of numbers that are all but equal; None: nowhere."""
    columns = _flat(b, (max(b.value.dim() - 2, 0),))
    rows = None if columns is None else _flat(a, (a.value.dim() - 1,))
    if rows is None or columns is None:
        return None
    if a.value.dim() == 1:
        rows = rows.squeeze(-1)
    if b.value.dim() == 1:
        columns = columns.squeeze(-1)
    flat = rows & columns
    flat = flat.squeeze(-1) if b.value.dim() == 1 and a.value.dim() > 1 else flat
    return flat if bool(flat.any()) else None


@rule("addmm", "baddbmm", sums=True)
def _added_product(
    arithmetic: Arithmetic,
    out: Quantity,
    c: Quantity,
    a: Quantity,
    b: Quantity,
    beta: float = 1,
    alpha: float = 1,
) -> Combination:
    growth = arithmetic.growth(a.value.shape[-1])
    # c may be added first, last or between, and each product meets one addition more.
    more = arithmetic.u / growth if growth and beta else 0.0
    whole = _product(arithmetic, out, a, b) * (abs(alpha) * (1 + more))
    if beta:  # else c isn't read
        whole = whole + c.size * (abs(beta) * growth)
    if alpha not in {1, -1}:
        scaled = Quantity((a.value @ b.value).mul_(alpha))
        whole = arithmetic.rounded(scaled, whole).tensor()
    if beta and c.error is not None:
        whole = whole + c.error * abs(beta)
    if beta not in {0, 1, -1}:
        whole = whole + c.size * (abs(beta) * 2 * arithmetic.u)
    return arithmetic.rounded(out, whole)


def _whether(decisive: bool) -> Callable[..., Tensor | None]:  # noqa: FBT001
    """Return the rule of `all`, which one exact False decides, or of `any`, which one True does."""

    def bound(
        _: Arithmetic,
        out: Quantity,
        a: Quantity,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,  # noqa: FBT001,FBT002  # aten's own
    ) -> Tensor | None:
        del out
        x = as_truth(a)
        if x.error is None:
            return None
        axes = axes_of(x.value, dim)
        decided = ((x.value == decisive) & ~x.error).any(axes, keepdim=keepdim)
        return x.error.any(axes, keepdim=keepdim) & ~decided

    return bound


rule("all")(_whether(False))  # noqa: FBT003
rule("any")(_whether(True))  # noqa: FBT003
