"""Relations of layer norm's gradients for inputs that are changed in a known way.

    rows, columns in another order     outputs in that order; dweight and dbias don't mind the rows'
    x + c and mean + c                 x^ and with it all gradients stay
    2^n dy (dresidual, and what is accumulated into)     2^n of every gradient, bit for bit
    2^n weight                         2^n dx, bit for bit, dweight and dbias stay
        both in fp16 within the bounds alone, of a kernel that casts on its way
    sum_j dx_ij                        -r c2 sum_j x^_ij: 0 but for the rounding of mean
    sum_j dx_ij x^_ij                  r (sum g x^ - c1 sum x^ - c2 sum x^^2): 0 but for eps

"coarse" x are multiples of 1/8, and n is a power of two, so that mean and mean + c are exact. The
casts of dx err to either side, so that its sums show what all elements of a row share, as an error
of c1 or c2: of no truth but the row's own sums.

A kernel is batch-invariant if a part of the rows gets the same bits of dx alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from kernel_workbench.oracles.cases.distributions import COARSE, generator
from kernel_workbench.oracles.layer_norm.reference import normalise
from kernel_workbench.oracles.op import (
    CONTIGUOUS,
    Balance,
    Case,
    Inputs,
    Relation,
    Relations,
    optional,
    required,
)
from kernel_workbench.oracles.relations import FACTOR, Tensors, copied, is_sampled, scaled

_ROWS = ("dy", "x", "mean", "rstd", "dresidual", "dx")  # the first axis is the rows'
_COLUMNS = ("dy", "x", "dresidual", "dx", "weight", "dweight", "dbias")  # the last is the columns'
_SHIFT = 5.125


def relations(case: Case) -> Relations:
    """The relations that a case is good for: those of coarse values; of others invariance alone."""
    if case.layout != CONTIGUOUS or not case.size("m"):
        return ()
    if case.distribution == COARSE:
        return tuple(_all(case))
    small = case.size("m") * case.size("n") <= 2**24
    return tuple(_alone(case)) if small and is_sampled(case, one_in=8) else ()


def _all(case: Case) -> Iterator[Relation | Balance]:
    options, m = case.options, case.size("m")
    draw = generator(torch.device("cpu"), "orders", case.id())
    if m > 1:
        yield _reordering("rows in another order", case, _ROWS, torch.randperm(m, generator=draw))
    columns = torch.randperm(case.size("n"), generator=draw)
    yield _reordering("columns in another order", case, _COLUMNS, columns)
    if "rms_norm" not in options:
        shift = partial(_changed, change=lambda tensor: tensor + _SHIFT, names=("x", "mean"))
        yield Relation("x + c leaves all gradients", case, shift, dict)
    is_fp16 = torch.float16 in (case.dtype, case.weight_dtype)
    gradients = {"dy", "dresidual", "dweight", "dbias"}
    yield scaled(f"{FACTOR:.0f} dy scales every gradient", case, gradients, underflows=is_fp16)
    if not options & {"no_weight", "zero_centred", "residual"}:
        name = f"{FACTOR:.0f} weight scales dx alone"
        yield scaled(name, case, {"weight"}, {"dx"}, underflows=is_fp16)
    if not options & {"residual", "rms_norm"}:
        yield Balance("the sum of dx along a row is known", "dx", None, partial(_sums, case))
        total = partial(_sums, case, weighted=True)
        name = "the sum of dx x^ along a row is known"
        yield Balance(name, "dx", lambda inputs: _wide_rows(case, inputs)[1], total)
    yield from _alone(case)


def _changed(
    inputs: Inputs, *, change: Callable[[Tensor], Tensor], names: tuple[str, ...]
) -> Inputs:
    tensors = ((name, optional(inputs, name)) for name in names)
    return copied(inputs, {name: change(tensor) for name, tensor in tensors if tensor is not None})


def _reordering(name: str, case: Case, names: tuple[str, ...], order: Tensor) -> Relation:
    axis = 0 if names is _ROWS else -1

    def arranged(tensor: Tensor) -> Tensor:
        return tensor.index_select(axis, order.to(tensor.device))

    def carry(outputs: Tensors) -> dict[str, Tensor]:
        return {
            key: arranged(tensor) if key in names else tensor for key, tensor in outputs.items()
        }

    return Relation(name, case, partial(_changed, change=arranged, names=names), carry)


def _wide_rows(case: Case, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Return g and x^ [m, n], and rstd [m, 1], in float64."""
    n = case.size("n")
    dy, x = (required(inputs, name).reshape(-1, n).double() for name in ("dy", "x"))
    rstd, mean = required(inputs, "rstd").reshape(-1, 1).double(), optional(inputs, "mean")
    mean = None if mean is None else mean.reshape(-1, 1).double()
    weight = optional(inputs, "weight")
    if weight is not None:
        dy = dy * (weight.double() + ("zero_centred" in case.options))
    return dy, normalise(x, mean, rstd), rstd


def _sums(case: Case, inputs: Inputs, *, weighted: bool = False) -> Tensor:
    """Return what dx, or dx x^, adds up to in each row, [m] in float64, of the row's sums alone."""
    g, x_hat, rstd = _wide_rows(case, inputs)
    weights = x_hat if weighted else torch.ones_like(x_hat)
    of_g, of_x_hat = (g * weights).sum(1), (x_hat * weights).sum(1)
    c1, c2 = g.mean(1), (g * x_hat).mean(1)
    return rstd.squeeze(1) * (of_g - c1 * weights.sum(1) - c2 * of_x_hat)


def _alone(case: Case) -> Iterator[Relation]:
    """A part of the rows on its own, in other places of a tile and beside others."""
    m = case.size("m")
    if m > 2:
        yield _rows_alone(case, "the rows between first and last alone", slice(1, m - 1))
    if m > 1:
        yield _rows_alone(case, "a row alone", slice(m - 1, m))


def _rows_alone(case: Case, name: str, rows: slice) -> Relation:
    part = replace(case, sizes=(("m", rows.stop - rows.start), ("n", case.size("n"))))

    def carry(outputs: Tensors) -> dict[str, Tensor]:
        return {name: tensor[rows] for name, tensor in outputs.items() if name == "dx"}

    change = partial(_changed, change=lambda tensor: tensor[rows], names=_ROWS)
    return Relation(name, part, change, carry, exact=True, of="batch-invariant")
