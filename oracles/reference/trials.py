"""Whole numbers that a definition's reference is defined on, found by trying it.

Places of an axis: the first number that the reference fails on is the axis's length.

Pointers, by their names: parts lie from one to the next, and rise to the end of an axis. A part
that begins at the end holds nothing, as one that begins behind it does; the result of both is the
same, and isn't that of a part before the end.

Lengths: from 1 to an axis's length, or to a part's between pointers, times a page's size. One less
than the largest changes the result; one more fails, or changes nothing since it isn't read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice, permutations

import torch
from torch import Tensor

from kernel_workbench.oracles.analysis import truth
from kernel_workbench.oracles.op import Inputs, required
from kernel_workbench.oracles.reference import Lengths, Reference
from kernel_workbench.oracles.reference.cases import case_of
from kernel_workbench.oracles.reference.signature import Array, Axis, Extent, OpError, length

POINTER = re.compile(r"indptr|cu_seq")  # in the name of an argument that holds pointers
LENGTH = re.compile(r"len")  # likewise, of lengths: other numbers are tried while these are 1
_ANY = {torch.bool, torch.int8, torch.uint8}  # any value of these is valid
_MOST_TRIED = 100_000  # sets of sizes
_MOST_DRAWN = 2**16  # elements of a tensor of random numbers, where only shapes are asked for
_FEWEST = 2  # that a size is tried at, and pointers are

Outcome = tuple[Tensor, ...] | None  # None: the reference fails


@dataclass(frozen=True, slots=True)
class Whole:
    """Numbers that arguments of whole numbers may hold."""

    labels: Mapping[str, Axis]
    lengths: Mapping[str, Lengths]


@dataclass(frozen=True, slots=True)
class _Trial:
    """Arguments of sizes that differ, on which a reference is tried."""

    reference: Reference
    sizes: Mapping[str, int]
    inputs: Inputs

    def run(self, **whole: Tensor) -> Outcome:
        """Return the outputs with these whole numbers, a number for NaN; None where it fails."""
        try:
            return tuple(
                output.double().nan_to_num(nan=7.0)
                for output in truth(self.reference.function, {**self.inputs, **whole})
            )
        except Exception:  # noqa: BLE001  # whatever a reference raises
            return None

    def filled(self, array: Array, value: int) -> Tensor:
        """Return the argument, with one number in all of its places."""
        return torch.full_like(required(self.inputs, array.name), value)


def _same(one: Outcome, *others: Outcome) -> bool:
    """Say whether outcomes are equal; those that fail are."""
    if one is None:
        return all(other is None for other in others)
    return all(
        other is not None and all(map(torch.equal, one, other))  # of other shapes they aren't
        for other in others
    )


def unknown(reference: Reference) -> list[Array]:
    """Return the arguments of whole numbers, some of which may be valid and others not."""
    return [
        array
        for array in reference.signature.arrays
        if not (array.is_real or array.kind in _ANY or array.name in reference.pointers)
    ]


def shapes_of_outputs(
    reference: Reference, least: Mapping[str, int], path: str
) -> Iterator[list[tuple[int, ...]]]:
    """Yield the shapes of the outputs on one or two sets of sizes. Raises OpError."""
    arrays = unknown(reference)
    for trial in _trials(reference, least, path, at_most=_MOST_DRAWN):
        with reference.stated("to find its outputs' shapes"):
            outputs = truth(reference.function, _with(trial, {}, arrays).inputs)
            yield [tuple(output.shape) for output in outputs]


def pointer_ends(
    reference: Reference, least: Mapping[str, int], path: str, real: Callable[[Axis], Axis]
) -> dict[str, Axis]:
    """Return the axis at whose end the pointers of an argument end. Raises OpError.

    least: the smallest of a size, where it isn't 1. real: of an axis of the reference, which may be
    a definition's at smaller constants, the definition's own.
    """
    arrays = unknown(reference)
    pointers = [array for array in arrays if POINTER.search(array.name) and len(array.axes) == 1]
    if not pointers:
        return {}
    further = [array for array in arrays if array not in pointers]
    result = {}
    trials = [
        _with(trial, {array.name: _last_part(trial, array, 0) for array in pointers}, further)
        for trial in _trials(reference, least, path)
    ]
    for array in pointers:
        fitting = [_at_end(trial, array) for trial in trials]
        axes = [axis for axis in fitting[0] if all(axis in other for other in fitting)]
        if not axes:
            raise _refusal(path, array)
        result[array.name] = real(axes[0])
    return result


def _last_part(trial: _Trial, array: Array, begin: int) -> Tensor:
    """Return pointers of which the last part has one place."""
    result = trial.filled(array, 0)
    result[-2:-1], result[-1:] = begin, begin + 1
    return result


def _with(trial: _Trial, pointers: Mapping[str, Tensor], others: Sequence[Array]) -> _Trial:
    """Return a trial with pointers, lengths of 1, and places 0 and 1 in turn."""
    places = {}
    for array in others:
        whole = trial.filled(array, 1)
        if not LENGTH.search(array.name):
            whole = (torch.arange(whole.numel()) % 2).view(whole.shape).to(whole.dtype)
        places[array.name] = whole
    return replace(trial, inputs={**trial.inputs, **pointers, **places})


def _at_end(trial: _Trial, array: Array) -> list[Axis]:
    """Return the axes at whose end a part is first as empty as one behind it."""
    axes = [axis for axis in _axes(trial.reference) if axis not in array.axes]
    lengths = [length(axis, trial.sizes) for axis in axes]
    before = [
        trial.run(**{array.name: _last_part(trial, array, begin)})
        for begin in range(max(lengths, default=0) + 3)
    ]
    ends = (at for at, one in enumerate(before[:-2]) if _same(one, *before[at + 1 : at + 3]))
    end = next(ends, None)
    return [axis for axis, extent in zip(axes, lengths, strict=True) if extent == end]


def whole_numbers(
    reference: Reference, least: Mapping[str, int], path: str, real: Callable[[Axis], Axis]
) -> Whole:
    """Return what arguments of whole numbers may hold, besides pointers. Raises OpError.

    Args:
        reference: it has its pointers, and no labels.
        least: the smallest of a size, where it isn't 1.
        path: of the definition, for messages.
        real: as in `pointer_ends`.

    """
    arrays = unknown(reference)
    if not arrays:
        return Whole({}, {})
    labels: dict[str, Axis] = {}
    lengths: dict[str, Lengths] = {}
    trials = _trials(reference, least, path)
    tried = [
        replace(
            trial,
            inputs={
                **trial.inputs,
                **{
                    array.name: trial.filled(array, int(bool(LENGTH.search(array.name))))
                    for array in arrays
                },
            },
        )
        for trial in trials
    ]
    for array in sorted(arrays, key=lambda array: array.name not in reference.uneven):
        in_turn = [_with(trial, {}, arrays) for trial in trials]
        fitting = _lengths(in_turn, array, real) if array.name in reference.uneven else None
        end = None if fitting else _first_failing(tried, array)
        if end is None and fitting is None:
            fitting = _lengths(in_turn, array, real)
        if end is not None:
            labels[array.name] = end
        elif fitting is not None:
            lengths[array.name] = fitting
        else:
            raise _refusal(path, array)
    return Whole({name: real(axis) for name, axis in labels.items()}, lengths)


def _first_failing(trials: Sequence[_Trial], array: Array) -> Axis | None:
    """Return the axis whose length is the first number that the reference fails on, if any."""
    trial, *further = trials
    named = _joined(trial.reference) + _axes(trial.reference)
    lengths = {length(axis, trial.sizes): axis for axis in named}

    def runs(trial: _Trial, value: int) -> bool:
        return trial.run(**{array.name: trial.filled(array, value)}) is not None

    def ends(trial: _Trial, end: int) -> bool:
        return not runs(trial, end) and runs(trial, end - 1)

    end = next((extent for extent in sorted(lengths) if not runs(trial, extent)), None)
    if not end or not runs(trial, end - 1):
        return None
    axis = lengths[end]
    return axis if all(ends(other, length(axis, other.sizes)) for other in further) else None


def _lengths(
    trials: Sequence[_Trial], array: Array, real: Callable[[Axis], Axis]
) -> Lengths | None:
    """Return the largest number of each element, by all trials; None where none fits."""
    reference = trials[0].reference
    axes = _axes(reference)
    pairs = [(one, other) for one, other in combinations(axes, 2) if 1 not in (one, other)]
    between = [
        other.name
        for other in reference.signature.arrays
        if array.name in reference.uneven
        and other.name in reference.pointers
        and all(len(required(t.inputs, other.name)) == _places(t, array) + 1 for t in trials)
    ]
    candidates = [
        *((Lengths(axis, None), (axis,)) for axis in axes),
        *((Lengths(_product(*pair), None), pair) for pair in pairs),
        *((Lengths(axis, name), (axis,)) for name in between for axis in (1, *axes)),
    ]
    for candidate, of in candidates:
        if len(array.axes) == 1 and all(_ends_at(trial, array, candidate) for trial in trials):
            own = tuple(map(real, of))
            return replace(candidate, most=_product(*own) if len(own) > 1 else own[0])
    return None


def _places(trial: _Trial, array: Array) -> int:
    return required(trial.inputs, array.name).numel()


def _ends_at(trial: _Trial, array: Array, lengths: Lengths) -> bool:
    """Say whether one less than the largest numbers changes the result, and one more doesn't."""
    largest = trial.filled(array, length(lengths.most, trial.sizes))
    if lengths.parts is not None:
        largest = largest * required(trial.inputs, lengths.parts).diff().to(largest.dtype)
    at_end, above = (trial.run(**{array.name: largest + more}) for more in (0, 1))
    if at_end is None or not (above is None or _same(at_end, above)):
        return False
    return not _same(at_end, trial.run(**{array.name: (largest - 1).clamp(min=0)}))


def _axes(reference: Reference) -> list[Axis]:
    """Return the axes of arguments: of one length a size is meant, not what follows from it."""
    every = [axis for array in reference.signature.arrays for axis in array.axes]
    unique: list[Axis] = []
    for axis in sorted(every, key=lambda axis: isinstance(axis, str)):
        if axis not in unique:
            unique.append(axis)
    return unique


def _joined(reference: Reference) -> list[Axis]:
    """Return pages and their size multiplied: a reference may make one axis of both."""
    pairs = (array.axes[:2] for array in reference.signature.real if len(array.axes) > 2)
    return [
        _product(one, other)
        for one, other in pairs
        if not isinstance(one, Extent) and not isinstance(other, Extent) and 1 not in (one, other)
    ]


def _product(one: Axis, other: Axis) -> Extent:
    texts = (f"({axis.text})" if isinstance(axis, Extent) else str(axis) for axis in (one, other))
    constants = [axis.constants for axis in (one, other) if isinstance(axis, Extent)]
    return Extent(" * ".join(texts), {name: of[name] for of in constants for name in of})


def _trials(
    reference: Reference, least: Mapping[str, int], path: str, at_most: float = math.inf
) -> list[_Trial]:
    """Return arguments of one or two sets of sizes that differ, valid where they are known.

    at_most: elements of a tensor, above which all are one number, which takes no memory.
    """
    names = [array.name for array in unknown(reference)]
    zeros = dict.fromkeys(names, 1)
    drawn_reference = replace(reference, labels=lambda: zeros, lengths=dict)
    result = []
    for sizes in sizes_apart(reference, least, path):
        case = case_of(reference.name, sizes, reference.dtypes[0], "ci")
        large = {
            array.name: torch.tensor(0.5, dtype=torch.float64).expand(array.shape(sizes))
            for array in reference.signature.real
            if math.prod(array.shape(sizes)) > at_most
        }
        drawn = [array for array in reference.signature.arrays if array.name not in large]
        signature = replace(reference.signature, arrays=tuple(drawn))
        inputs = replace(drawn_reference, signature=signature).inputs(case, torch.device("cpu"))
        inputs = {**inputs, **large}
        wide = {
            name: value.double()
            if isinstance(value, Tensor) and value.is_floating_point()
            else value
            for name, value in inputs.items()
        }
        for name, axis in reference.pointers.items():
            ends, end = required(wide, name), length(axis, sizes)
            wide[name] = (torch.arange(len(ends)) * end // max(len(ends) - 1, 1)).to(ends.dtype)
        result.append(_Trial(reference, sizes, wide))
    return result


def sizes_apart(
    reference: Reference, least: Mapping[str, int], path: str
) -> Iterator[dict[str, int]]:
    """Yield one or two sets of sizes that tell every axis from every other. Raises OpError."""
    every = _axes(reference)
    joined = [axis for axis in _joined(reference) if isinstance(axis, Extent)]
    apart = [size for size in range(_FEWEST, 24) if size not in every]
    names = list(reference.sizes)

    def tells(sizes: Mapping[str, int]) -> bool:
        free = [sizes[name] for name in names]
        if len(set(free)) < len(free) or reference.problem(sizes) is not None:
            return False
        lengths = {length(axis, sizes) for axis in every}
        return lengths.isdisjoint(extent.of(sizes) for extent in joined)

    def first(values: Sequence[int]) -> dict[str, int] | None:
        drawn = (
            {name: size + least.get(name, 1) - 1 for name, size in zip(names, chosen, strict=True)}
            for chosen in permutations(values, len(names))
        )
        return next(filter(tells, islice(drawn, _MOST_TRIED)), None)

    one = first(apart)
    if one is None:
        raise OpError(f"{path}: constraints: no sizes from 2 to 23 that differ fulfil them")
    yield one
    other = first([size for size in apart if size not in one.values()])
    if names and other not in (None, one):
        assert other is not None
        yield other


def _refusal(path: str, array: Array) -> OpError:
    return OpError(
        f"{path}: {array.name}.dtype: {str(array.kind).removeprefix('torch.')}, and nothing says "
        "which values of it are valid: the first that the reference fails on is no axis's length, "
        "and no longest part that it reads ends with an axis; write an op of your own "
        "(docs/how-to/own-op.md)"
    )
