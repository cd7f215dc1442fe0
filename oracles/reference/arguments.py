"""The case of arguments that a user's own test made, by a reference's annotations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from kernel_workbench.oracles.cases.arguments import (
    check_dtype,
    check_names,
    check_shape,
    dtype_of,
    tensor_of,
)
from kernel_workbench.oracles.cases.factors import number_word
from kernel_workbench.oracles.op import CONTIGUOUS, ArgumentsError, Case, Inputs
from kernel_workbench.oracles.reference.signature import Array, Extent, Signature, names_in


def case_from(
    op: str,
    signature: Signature,
    names: Iterable[str],
    numbers: Mapping[str, Iterable[float]],
    arguments: Inputs,
) -> Case:
    """Return the case that has the arguments' sizes, dtypes and numbers.

    Args:
        op: the name of the op.
        signature: what the reference's annotations say.
        names: of the op's sizes, in the order of a case's id.
        numbers: the values for which a case has an option, by the number's name.
        arguments: of a kernel, by name; numbers with a default may be left out.

    Raises:
        ArgumentsError: an argument is missing, unknown, or doesn't fit the others.
    """
    arrays = signature.arrays
    check_names(op, arguments, (*(array.name for array in arrays), *signature.numbers))
    tensors = {
        array.name: tensor_of(op, arguments, array.name, len(array.axes)) for array in arrays
    }
    sizes = _sizes(op, names, arrays, tensors)
    for array in arrays:
        check_shape(op, array.name, tensors[array.name], array.shape(sizes))
    dtype = _dtype(op, arrays, tensors, "activation") or torch.float32
    case = Case(
        op=op,
        sizes=tuple(sizes.items()),
        dtype=dtype,
        weight_dtype=_dtype(op, arrays, tensors, "weight") or dtype,
        layout=CONTIGUOUS,
        options=frozenset(
            number_word(name, value)
            for name, values in numbers.items()
            for value in values
            if arguments.get(name) == value
        ),
    )
    for array in arrays:
        if array.is_real or array.kind == torch.bool:
            check_dtype(op, array.name, tensors[array.name], array.dtype(case))
    return case


def _sizes(
    op: str, names: Iterable[str], arrays: tuple[Array, ...], tensors: dict[str, Tensor]
) -> dict[str, int]:
    """Return each size, from the first axis that is named by it, or by a multiple of it."""
    sizes: dict[str, int] = {}
    for array in arrays:
        for axis, length in zip(array.axes, tensors[array.name].shape, strict=True):
            if isinstance(axis, str):
                sizes.setdefault(axis, length)
    multiples = [
        (array.name, length, *axis.text.rpartition("*"))
        for array in arrays
        for axis, length in zip(array.axes, tensors[array.name].shape, strict=True)
        if isinstance(axis, Extent)
    ]
    for argument, length, factor, _, size in multiples:
        if not factor.isdecimal() or not size.isidentifier() or size in sizes:
            continue
        if length % int(factor):
            raise ArgumentsError(
                f"{op}: {argument} has {length} along {factor}*{size}; give a multiple of {factor}"
            )
        sizes[size] = length // int(factor)
    for array in arrays:
        for axis, length in zip(array.axes, tensors[array.name].shape, strict=True):
            if isinstance(axis, Extent):
                sizes |= _solved(axis, length, sizes)
    unknown = {name for array in arrays for axis in array.axes for name in names_in(axis)}
    unknown -= sizes.keys()
    if unknown:
        raise ArgumentsError(
            f"{op}: no argument's shape says the size {min(unknown)}; judge the kernel by "
            "kernel_workbench.accuracy, whose cases have sizes"
        )
    return {name: sizes[name] for name in names if name in sizes}


def _solved(axis: Extent, length: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the one unknown size of an axis like `b + 1`; empty where it doesn't follow."""
    unknown = names_in(axis) - sizes.keys()
    if len(unknown) != 1:
        return {}
    (size,) = unknown
    at_zero = axis.of({**sizes, size: 0})
    step = axis.of({**sizes, size: 1}) - at_zero
    if not step or (length - at_zero) % step:
        return {}
    value = (length - at_zero) // step
    is_it = value >= 0 and axis.of({**sizes, size: value}) == length
    return {size: value} if is_it else {}


def _dtype(
    op: str, arrays: tuple[Array, ...], tensors: dict[str, Tensor], kind: str
) -> torch.dtype | None:
    """Return the dtype that the arrays of a kind have together; None where there are none."""
    names = [array.name for array in arrays if array.kind == kind]
    for name in names:
        dtype_of(op, name, tensors[name])
        if tensors[name].dtype != tensors[names[0]].dtype:
            check_dtype(op, name, tensors[name], tensors[names[0]].dtype)
    return tensors[names[0]].dtype if names else None
