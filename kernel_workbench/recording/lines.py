"""The case that arguments of a recorded call are of, and the line of `--cases` that says it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.cases.names import joined, objection
from kernel_workbench.oracles.op import (
    CONTIGUOUS,
    ArgumentsError,
    Case,
    Geometry,
    Layout,
    Op,
    dtype_name,
)
from kernel_workbench.oracles.reference import ReferenceOp
from kernel_workbench.recording.views import NoOpError, View, rows

_MOST_JOINED = 3
_FAR = 2**29  # elements: a longer stride is what layouts called far have
_SECTOR = 16  # bytes: what a pointer or a row begins at multiples of, or doesn't


def case_of(view: View) -> tuple[Case, tuple[str, ...]]:
    """Return the case of a view, in the nearest layout of its op, and in what they differ.

    Raises:
        NoOpError: the op has no such case.
    """
    op = OPS[view.op]
    arguments, notes = _with_numbers(op, view.arguments)
    try:
        case = op.case_from(arguments)
    except ArgumentsError as error:
        arguments = {
            name: rows(value, value.shape[-1])
            if isinstance(value, Tensor) and value.ndim > 2
            else value
            for name, value in arguments.items()
        }
        try:
            case = op.case_from(arguments)
        except ArgumentsError:
            raise NoOpError(str(error)) from error
    case = replace(case, layout=CONTIGUOUS, options=case.options | view.options)
    wrong = objection(op, case)
    if wrong is not None:
        raise NoOpError(f"{op.name}: {wrong}")
    layout, differs = _nearest(op, case, arguments)
    return replace(case, layout=layout), (*view.notes, *notes, *differs)


def line_of(case: Case) -> dict[str, object]:
    """Return the case as a line of a file of `--cases` has it, without its weight."""
    allowed = OPS[case.op].allowed
    options = sorted(case.options - allowed.implied(dict(case.sizes)))
    line: dict[str, object] = {
        "op": case.op,
        "sizes": dict(case.sizes),
        "dtype": dtype_name(case.dtype),
    }
    if case.weight_dtype != case.dtype:
        line["weight_dtype"] = dtype_name(case.weight_dtype)
    if options:
        line["options"] = options
    if case.layout != CONTIGUOUS:
        line["layout"] = case.layout.name
    return line


def _with_numbers(op: Op, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments, each number as the nearest that a case can have, and notes of these."""
    if not isinstance(op, ReferenceOp):
        return dict(arguments), []
    defaults, own = op.reference.signature.numbers, op.reference.numbers
    result: dict[str, Any] = dict(arguments)
    notes = []
    for name, default in defaults.items():
        if name not in arguments:
            continue
        value, nearest = arguments[name], default
        if isinstance(value, int | float) and isinstance(default, int | float):
            numbers = (float(default), *own.get(name, ()))
            nearest = min(numbers, key=partial(_apart, float(value)))
        result[name] = nearest
        if nearest != value:
            was, now = (f"{x:g}" if isinstance(x, float) else str(x) for x in (value, nearest))
            notes.append(f"{name} = {was} is replayed as {now}")
    return result, notes


def _apart(one: float, other: float) -> float:
    if one == other:
        return -1.0
    if min(one, other) <= 0:
        return abs(one - other)
    return abs(math.log(one / other))


def _nearest(op: Op, case: Case, arguments: Mapping[str, Any]) -> tuple[Layout, list[str]]:
    """Return the op's layout that is nearest to where the arguments lie, and a note for a rest."""
    placed = {
        name: value
        for name, value in arguments.items()
        if isinstance(value, Tensor) and name in op.geometry(case)
    }
    far = any(max(tensor.stride(), default=0) >= _FAR for tensor in placed.values())
    layouts = [
        layout
        for layout in op.allowed.layouts.values()
        if layout.batches is None
        and layout.tensors
        and (far or all(strides.row_stride is None for _, strides in layout.tensors))
    ]

    def distance(layout: Layout) -> float:
        changed = replace(case, layout=layout)
        if objection(op, changed) is not None:
            return math.inf
        where = op.geometry(changed)
        return sum(_distance(tensor, where[name]) for name, tensor in placed.items())

    parts: list[Layout] = []
    chosen, least = CONTIGUOUS, distance(CONTIGUOUS)
    while least and len(parts) < _MOST_JOINED:
        tried = [(joined([*parts, layout]), layout) for layout in layouts if layout not in parts]
        near = [(distance(both), layout, both) for both, layout in tried if both is not None]
        if not near:
            break
        best, layout, both = min(near, key=lambda item: item[0])
        if best >= least:
            break
        chosen, least = both, best
        parts.append(layout)
    where = op.geometry(replace(case, layout=chosen))
    differs = [
        f"{name}: strides {list(tensor.stride())} are replayed as {list(where[name].strides)}"
        for name, tensor in placed.items()
        if _distance(tensor, where[name])
    ]
    return chosen, differs


def _distance(tensor: Tensor, where: Geometry) -> float:
    """Return how unlike two places of a tensor are; 0: no kernel can tell the two."""
    axes = [axis for axis, size in enumerate(tensor.shape) if size > 1]
    if not axes or not tensor.numel():
        return 0.0
    mine = [tensor.stride(axis) for axis in axes]
    theirs = [where.strides[axis] for axis in axes]
    size = tensor.element_size()
    start = (where.offset * size) % _SECTOR
    moved = 0.0 if tensor.storage_offset() * size % _SECTOR == start else 2.0
    if mine == theirs:
        return moved

    def order(strides: list[int]) -> list[int]:
        return sorted(range(len(strides)), key=lambda axis: -strides[axis])

    unlike = 1.0 + moved
    unlike += 16.0 * sum(
        (one == 0) != (other == 0) for one, other in zip(mine, theirs, strict=True)
    )
    unlike += 8.0 * (order(mine) != order(theirs))
    unlike += 4.0 * ((min(mine) == 1) != (min(theirs) == 1))
    aligned = [
        all(step * size % _SECTOR == 0 for step in steps if step > 1) for steps in (mine, theirs)
    ]
    unlike += 2.0 * (aligned[0] != aligned[1])
    unlike += sum(
        min(abs(math.log2(max(one, 1) / max(other, 1))), 8.0) / 8
        for one, other in zip(mine, theirs, strict=True)
    )
    return unlike


def on_meta(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, offset: int
) -> Tensor:
    """Return a tensor without values that lies as a recorded one did."""
    reached = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    elements = (reached if math.prod(shape) else 0) + offset
    base = torch.empty(elements, dtype=dtype, device="meta")
    return base.as_strided(shape, strides, offset)
