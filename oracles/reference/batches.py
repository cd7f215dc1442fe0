"""The axis of a reference's rows, found by trying it, and what becomes of rows beside others.

The rows' axis is the first one of the first output, where it is the first of every argument and
output that has it, and where a part of the rows has the outputs that it has beside the rest:

    f(x[rows]) = f(x)[rows],    f(x, x) = f(x), f(x)

in float64, but for the order of its sums. Rows in reverse order are such rows too. Each equation is
tried on two sets of sizes of which no two are equal, if there are such: where two sizes are equal,
one may pass for the other.

A kernel is batch-invariant if a part of the rows, the rows in reverse order, and the rows beside
copies of themselves have the same bits. There are as many copies as make more rows than a kernel's
usual limit of "few".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import islice, product
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernel_workbench.oracles.op import CONTIGUOUS, Case, Inputs, Relation, Relations, required
from kernel_workbench.oracles.reference.signature import Axis, Extent
from kernel_workbench.oracles.relations import Tensors, copied, is_sampled

if TYPE_CHECKING:
    from kernel_workbench.oracles.reference import Reference

_FEWEST = 3  # rows, so that a part of them is neither all nor one
_FEW_LEVELS = 5  # of each size, the smallest
_SETS = 2
_TOLERANCE = 1e-9  # of the largest output: sums in another order, and nothing else
_SINGLE_ROWS = 32  # at most, that are called alone
_MORE_ROWS = {"ci": 256, "full": 4096}  # beyond which there is a row, beside copies
_MOST_ELEMENTS = {"ci": 2**20, "full": 2**26}  # of all arguments, copies among them

Rows = Callable[[Tensor], Tensor]


@cache
def rows_axis(reference: Reference) -> str | None:
    """The size whose axis is the rows'; None where there is none, or where no case could tell."""
    signature = reference.signature
    axis = next(iter(signature.outputs[0].axes), None)
    named = (*reference.labels().values(), *reference.pointers.values())
    if not isinstance(axis, str) or any(_mentions(labelled, axis) for labelled in named):
        return None
    for array in (*signature.arrays, *signature.outputs):
        if any(_mentions(later, axis) for later in array.axes[1:]):
            return None
        if array.axes and array.axes[0] != axis and _mentions(array.axes[0], axis):
            return None
    if not any(array.axes[:1] == (axis,) for array in signature.arrays):
        return None
    drawn = list(islice(_sizes(reference, axis), _SETS))
    if not drawn or not all(_keeps_rows(reference, axis, sizes) for sizes in drawn):
        return None
    return axis


def _mentions(axis: Axis, size: str) -> bool:
    text = axis.text if isinstance(axis, Extent) else str(axis)
    return size in re.findall(r"\w+", text)


def _sizes(reference: Reference, axis: str) -> Iterator[dict[str, int]]:
    """Sets of small sizes: those without a coincidence first, each size another in each."""
    levels = {name: list(size.several) for name, size in reference.sizes.items()}
    levels[axis] = [value for value in levels[axis] if value >= _FEWEST]
    few = [values[:_FEW_LEVELS] for values in levels.values()]
    drawn = [dict(zip(levels, values, strict=True)) for values in product(*few)]
    valid = [sizes for sizes in drawn if reference.problem(sizes) is None]
    valid.sort(key=lambda sizes: (len(sizes) - len(set(sizes.values())), sum(sizes.values())))
    if valid:
        first = valid[0]
        varying = [name for name, values in levels.items() if len(values) > 1]
        apart = (sizes for sizes in valid[1:] if all(sizes[n] != first[n] for n in varying))
        yield first
        yield from apart


def _keeps_rows(reference: Reference, axis: str, sizes: Mapping[str, int]) -> bool:
    """Say whether parts of the rows, reversed rows and doubled rows have the whole's outputs."""
    wide = reference.plain_inputs(sizes)
    try:
        whole = _outputs(reference, wide)
        parts = [partial(_slice_of_rows, rows=rows) for _, rows in _parts(sizes[axis])]
        tries: list[Rows] = [*parts, _reversed_rows, partial(_copied_rows, times=2)]
        for rows in tries:
            part = _outputs(reference, _with_rows(reference, axis, wide, rows))
            for array in reference.signature.outputs:
                if array.axes[:1] == (axis,) and not _equal(
                    part[array.name], rows(whole[array.name])
                ):
                    return False
    except Exception:  # noqa: BLE001  (whatever a user's function raises, for fewer rows)
        return False
    return True


def _outputs(reference: Reference, inputs: Inputs) -> dict[str, Tensor]:
    returned = reference.function(**inputs)
    several = returned if isinstance(returned, tuple) else (returned,)
    pairs = zip(reference.signature.outputs, several, strict=True)
    return {array.name: value.double() for array, value in pairs}


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    most = _TOLERANCE * float(other.abs().nan_to_num(0).max()) if other.numel() else 0.0
    return torch.allclose(one, other, rtol=_TOLERANCE, atol=most, equal_nan=True)


def _parts(count: int) -> Iterator[tuple[str, slice]]:
    """Parts of the rows: single ones, spread over all, and those between first and last.

    Many single ones: of a norm whose sum has another order, five rows in six keep their bits.
    """
    if count > 1:
        for place in range(min(count, _SINGLE_ROWS)):
            row = count - 1 - place * count // min(count, _SINGLE_ROWS)
            yield f"row {row} alone", slice(row, row + 1)
    if count >= _FEWEST:
        yield "the rows between first and last alone", slice(1, count - 1)


def _slice_of_rows(tensor: Tensor, rows: slice) -> Tensor:
    return tensor[rows]


def _reversed_rows(tensor: Tensor) -> Tensor:
    # By indices: PyTorch can't flip a vector of fp8 numbers on a CPU.
    return tensor[torch.arange(len(tensor) - 1, -1, -1, device=tensor.device)]


def _copied_rows(tensor: Tensor, times: int) -> Tensor:
    return torch.cat([tensor] * times)


def _with_rows(reference: Reference, axis: str, inputs: Inputs, rows: Rows) -> Inputs:
    changed = {
        array.name: rows(required(inputs, array.name))
        for array in reference.signature.arrays
        if array.axes[:1] == (axis,)
    }
    return {**inputs, **changed}


def relations(reference: Reference, case: Case) -> Relations:
    """Return the relations of a batch-invariant kernel: parts, reversed and more rows keep bits."""
    axis = rows_axis(reference)
    is_left_out = case.tier == "full" and not is_sampled(case, one_in=4)
    if axis is None or case.layout != CONTIGUOUS or is_left_out or not case.size(axis):
        return ()
    return tuple(_relations(reference, axis, case))


def _relations(reference: Reference, axis: str, case: Case) -> Iterator[Relation]:
    count = case.size(axis)
    for name, part in _parts(count):
        rows: Rows = partial(_slice_of_rows, rows=part)
        yield _relation(reference, axis, case, name, rows, part.stop - part.start)
    if count > 1:
        name = "the rows in reverse order"
        yield _relation(reference, axis, case, name, _reversed_rows, count)
    sizes = dict(case.sizes)
    arrays = (*reference.signature.arrays, *reference.signature.outputs)
    elements = sum(math.prod(array.shape(sizes)) for array in arrays)
    wanted = _MORE_ROWS[case.tier] // count + 1
    times = min(wanted, _MOST_ELEMENTS[case.tier] // max(1, elements))
    if times > 1:
        name = "the rows beside copies of themselves"
        rows = partial(_copied_rows, times=times)
        yield _relation(reference, axis, case, name, rows, times * count)


def _relation(
    reference: Reference, axis: str, case: Case, name: str, rows: Rows, count: int
) -> Relation:
    sizes = tuple((key, count if key == axis else size) for key, size in case.sizes)
    outputs = reference.signature.outputs
    having = {array.name for array in outputs if array.axes[:1] == (axis,)}

    def change(inputs: Inputs) -> Inputs:
        return copied(inputs, _with_rows(reference, axis, inputs, rows))

    def carry(outputs: Tensors) -> dict[str, Tensor]:
        return {key: rows(value) for key, value in outputs.items() if key in having}

    return Relation(
        name, replace(case, sizes=sizes), change, carry, exact=True, of="batch-invariant"
    )
