"""Whole numbers that index: what they leave unread, and whether the order of two equal ones counts.

Both are found by trying the reference, where nobody said it. Where rows are written by index
the last one would win, and each kernel may have another last one: such indices must be distinct.
A slot that no index names may hold anything: the truth stays as it is with NaN there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernel_workbench.oracles import analysis
from kernel_workbench.oracles.cases.distributions import deciding_columns
from kernel_workbench.oracles.op import Inputs, required
from kernel_workbench.oracles.reference.signature import Array, Axis, length

if TYPE_CHECKING:
    from kernel_workbench.oracles.reference import Reference

UNREAD = "nan_unread"  # the distribution with NaN in each slot that no index names
_TOLERANCE = 1e-9  # of the largest number: sums in another order, and nothing else
_FEW = 2  # numbers that are drawn from, so that some come twice


def gathered(arrays: tuple[Array, ...], axes: frozenset[Axis]) -> tuple[Array, ...]:
    """Return the arrays whose slots along one of the axes an index may name."""
    return tuple(
        array
        for array in arrays
        if array.is_real and any(axis in axes for axis in array.axes[: max(1, len(array.axes) - 1)])
    )


def poison_unread(reference: Reference, inputs: Inputs, drawn: dict[str, Tensor]) -> None:
    """Put NaN into the slots of `drawn` that the outputs don't depend on; inputs: all arguments."""
    axes = frozenset(reference.labels().values())
    wide = {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }
    for array in gathered(reference.signature.arrays, axes):
        try:
            changed = _with_nan(reference, array, axes, wide)
        except Exception:  # noqa: BLE001  # whatever a user's function raises on NaN, or autograd
            changed = None
        if changed is not None:
            wide[array.name] = changed
            drawn[array.name][changed.isnan()] = torch.nan


def _with_nan(
    reference: Reference, array: Array, axes: frozenset[Axis], wide: Inputs
) -> Tensor | None:
    """Return the argument with NaN in its unread slots; None where the truth would change."""
    before = analysis.truth(reference.function, wide)
    with torch.enable_grad():
        leaf = required(wide, array.name).detach().clone().requires_grad_()
        returned = reference.function(**{**wide, array.name: leaf})
        several = returned if isinstance(returned, tuple) else (returned,)
        # An irrational weight for each element: no two of them cancel.
        total = torch.stack(
            [(output * (1 + torch.rand_like(output))).sum() for output in several]
        ).sum()
        (gradient,) = torch.autograd.grad(total, leaf)
    changed = leaf.detach().clone()
    for place, axis in enumerate(array.axes):
        if axis in axes:
            rest = [other for other in range(changed.ndim) if other != place]
            unread = (gradient == 0).movedim(place, 0).flatten(1).all(1) if rest else gradient == 0
            changed.index_fill_(place, unread.nonzero().flatten(), torch.nan)
    after = analysis.truth(reference.function, {**wide, array.name: changed})
    same = (
        torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
        for one, other in zip(before, after, strict=True)
    )
    return changed if all(same) and not any(output.isnan().any() for output in after) else None


_asking: set[Reference] = set()  # whose inputs are drawn to find out


def overwriting(reference: Reference) -> frozenset[str]:
    """Return the indices of which two equal ones would overwrite one another's row."""
    if reference in _asking:
        return frozenset()
    _asking.add(reference)
    try:
        return _overwriting(reference)
    finally:
        _asking.remove(reference)


@cache
def _overwriting(reference: Reference) -> frozenset[str]:
    arrays = [array for array in reference.signature.arrays if not array.is_real]
    settled = reference.distinct.keys() | reference.pointers.keys() | reference.rising
    open_ = [array for array in arrays if array.kind != torch.bool and array.name not in settled]
    if not open_:
        return frozenset()
    labels = reference.labels()
    places = [
        array for array in open_ if array.name in labels
    ]  # other numbers, as bytes, place nothing
    return frozenset(
        place.name for place in places if _overwrites(reference, place, labels[place.name])
    )


def _overwrites(reference: Reference, array: Array, named: Axis) -> bool:
    """Say whether the order of rows counts where indices are equal, and not where none are."""
    axis = next(iter(array.axes), None)
    if not isinstance(axis, str) or len(array.axes) != 1 or axis == named:
        return False
    sizes = reference.sizes_with_room(axis, named)
    if sizes is None:
        return False
    count, most = sizes[axis], length(named, sizes)
    alike, apart = torch.arange(count) % min(_FEW, most), torch.randperm(most)[:count]
    try:
        return not _keeps(reference, array, axis, sizes, alike) and _keeps(
            reference, array, axis, sizes, apart
        )
    except Exception:  # noqa: BLE001  # whatever a user's function raises
        return False


def _keeps(
    reference: Reference, array: Array, axis: str, sizes: Mapping[str, int], whole: Tensor
) -> bool:
    """Say whether outputs only follow the rows where these are turned round."""
    inputs = reference.plain_inputs(sizes)
    inputs[array.name] = whole.to(required(inputs, array.name).dtype)
    turned: Inputs = {
        array_.name: _turned(array_, axis, required(inputs, array_.name))
        for array_ in reference.signature.arrays
    }
    before = analysis.truth(reference.function, inputs)
    after = analysis.truth(reference.function, {**inputs, **turned})
    return all(
        torch.allclose(_turned(array_, axis, one), other, rtol=_TOLERANCE, atol=_TOLERANCE)
        for array_, one, other in zip(reference.signature.outputs, before, after, strict=True)
    )


def _turned(array: Array, axis: str, tensor: Tensor) -> Tensor:
    places = [place for place, array_axis in enumerate(array.axes) if array_axis == axis]
    return tensor.flip(places) if places else tensor


def set_mask(mask: Tensor, turn: int, *, may_be_empty: bool, may_be_full: bool) -> None:
    """Make a mask's rows decide: one number is true, the last quarter, none, or all, in turn.

    Where a row may not be empty, or full, one number of it differs.
    """
    if not mask.ndim or not mask.numel():
        return
    rows = mask.view(-1, mask.shape[-1])
    place = torch.arange(len(rows), device=mask.device).unsqueeze(1)
    column = torch.arange(mask.shape[-1], device=mask.device)
    deciding = torch.tensor(deciding_columns(len(column), turn), device=mask.device)
    one, kind = column == deciding[place % len(deciding)], (place + turn) % 4
    late = rows & (column >= 3 * len(column) // 4)
    kept = torch.where(kind == 1, late | one, one)
    if may_be_empty:
        kept &= kind != 2
    rows[:] = torch.where(kind == 3, torch.ones_like(one) if may_be_full else ~one, kept)
