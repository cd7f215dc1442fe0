"""Changes of signs that leave the magnitudes of a reference's outputs, found by trying them.

A change is of some arguments, all of their elements or by a vector of signs along one size. It is
kept where each output of random values in float64 stays as it is, or changes signs likewise, bit
for bit: sums of the same magnitudes in the same order differ in no bit where it is a symmetry. That
is asked of several sets of sizes: where groups of channels hold one each, a group knows no sign.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations

import torch
from torch import Tensor

from kernel_workbench.oracles.op import Case, Flips
from kernel_workbench.oracles.reference.signature import Array, Signature
from kernel_workbench.oracles.signs import Signs

_DRAWS = 2
_ATTEMPTS = 64  # each leaves an output of one element as it is with a probability of a half


@dataclass(frozen=True, slots=True)
class Symmetry:
    """axis: the size along which signs differ; None: one sign. Which arguments, which outputs."""

    axis: str | None
    arguments: frozenset[str]
    outputs: frozenset[str]


def symmetries(
    run: Callable[[Mapping[str, Tensor]], tuple[Tensor, ...]],
    draw: Callable[[Mapping[str, int], int], dict[str, Tensor]],
    signature: Signature,
    sets: Sequence[Mapping[str, int]],
) -> tuple[Symmetry, ...]:
    """Return the symmetries of a reference, none of which follows from others.

    run: tensors in float64 -> outputs; draw: sizes and a seed -> all tensor arguments; sets: of
    sizes, in all of which a symmetry holds.
    """
    trials = []
    for sizes in sets:
        for seed in range(_DRAWS):
            tensors = draw(sizes, seed)
            trials.append((sizes, tensors, run(tensors)))

    def outputs_of(axis: str | None, subset: frozenset[str]) -> frozenset[str] | None:
        """The outputs that turn; None where it is no symmetry."""
        turned: frozenset[str] | None = None
        for sizes, tensors, before in trials:
            signs = Signs("symmetries", axis)(1 if axis is None else sizes[axis])
            changed = {
                array.name: _flipped(tensors[array.name], array, axis, signs)
                if array.name in subset
                else tensors[array.name]
                for array in signature.arrays
            }
            outputs = _changed(signature.outputs, before, run(changed), axis, signs)
            if outputs is None or (turned is not None and outputs != turned):
                return None
            turned = outputs
        return turned

    result: list[Symmetry] = []
    for axis, subset in _candidates(signature, sets[0]):
        if subset in _follows(symmetry.arguments for symmetry in result if symmetry.axis == axis):
            continue
        outputs = outputs_of(axis, subset)
        if outputs is not None:
            result.append(Symmetry(axis, subset, outputs))
    return tuple(result)


def _candidates(
    signature: Signature, sizes: Mapping[str, int]
) -> Iterator[tuple[str | None, frozenset[str]]]:
    """Yield axes and subsets of arguments, the smallest subsets first."""
    real = [array for array in signature.real if not array.fixed]
    for count in range(1, len(real) + 1):
        used = {axis_ for array in real for axis_ in array.axes if isinstance(axis_, str)}
        axes = [size for size in sizes if size in used]
        for axis in (None, *axes):
            having = [array.name for array in real if axis is None or array.axes.count(axis) == 1]
            for subset in combinations(having, count):
                yield axis, frozenset(subset)


def _follows(subsets: Iterator[frozenset[str]]) -> set[frozenset[str]]:
    """Return all products of several symmetries along one axis."""
    result: set[frozenset[str]] = set()
    for subset in subsets:
        result |= {subset, *(subset ^ other for other in result)}
    return result


def _factor(array: Array, axis: str | None, signs: Tensor) -> Tensor:
    """Return signs in a shape that broadcasts to the array."""
    return signs.view(
        [-1 if array_axis == axis else 1 for array_axis in array.axes] if axis else ()
    )


def _flipped(tensor: Tensor, array: Array, axis: str | None, signs: Tensor) -> Tensor:
    return torch.where(_factor(array, axis, signs), -tensor, tensor)


def _changed(
    arrays: tuple[Array, ...],
    before: tuple[Tensor, ...],
    after: tuple[Tensor, ...],
    axis: str | None,
    signs: Tensor,
) -> frozenset[str] | None:
    """The outputs that changed signs; None where one of them changed otherwise."""
    names = set()
    for array, one, other in zip(arrays, before, after, strict=True):
        if torch.equal(one, other):
            continue
        turns = array.is_real and (axis is None or array.axes.count(axis) == 1)
        if not turns or not torch.equal(_flipped(one, array, axis, signs), other):
            return None
        names.add(array.name)
    return frozenset(names)


def flips(symmetries_: tuple[Symmetry, ...], signature: Signature, case: Case, seed: int) -> Flips:
    """Return a case's signs, drawn from the seed: every output that can change signs does."""
    # An output may have the name of an argument, and other axes.
    arguments, outputs = (
        {array.name: array for array in arrays} for arrays in (signature.arrays, signature.outputs)
    )
    usable = [
        symmetry
        for symmetry in symmetries_
        if not any(
            _is_expanded(arguments[name], case, symmetry.axis) for name in symmetry.arguments
        )
    ]
    for attempt in range(_ATTEMPTS):
        draw = Signs("signs", seed, attempt)
        result = _drawn(usable, arguments, outputs, dict(case.sizes), draw)
        if all(map(_changes, result.of_outputs.values())):
            break
    return result


def _drawn(
    usable: list[Symmetry],
    arguments: Mapping[str, Array],
    outputs: Mapping[str, Array],
    sizes: Mapping[str, int],
    draw: Signs,
) -> Flips:
    of_inputs: dict[str, tuple[Tensor, ...]] = {}
    of_outputs: dict[str, tuple[Tensor, ...]] = {}
    for symmetry in usable:
        signs = draw.perhaps(1 if symmetry.axis is None else sizes[symmetry.axis])
        for changed, arrays, names in (
            (of_inputs, arguments, symmetry.arguments),
            (of_outputs, outputs, symmetry.outputs),
        ):
            for name in sorted(names):
                factor = _factor(arrays[name], symmetry.axis, signs)
                changed[name] = (*changed.get(name, ()), factor)
    return Flips(of_inputs, of_outputs)


def _changes(factors: tuple[Tensor, ...]) -> bool:
    """Return True if some sign changes, or there is no element."""
    total = reduce(torch.logical_xor, factors)
    return bool(total.any()) or not total.numel()


def _is_expanded(array: Array, case: Case, axis: str | None) -> bool:
    """Return True if the array is expanded along the axis, and so has one sign there."""
    if axis is None:
        return False
    return array.letters[array.axes.index(axis)] in case.layout.of(array.name).expanded
