r"""Ops of flashinfer's trace format: a definition is a reference with shapes, in a file of JSON.

    {"name": "rmsnorm_h64", "axes": {"m": {"type": "var"}, "h": {"type": "const", "value": 64}},
     "inputs": {"x": {"shape": ["m", "h"], "dtype": "bfloat16"}, ...}, "outputs": {...},
     "reference": "import torch\n\ndef run(x, weight): ..."}

Axes of type var are the op's sizes; those of type expr, and those that a constraint sets equal to
an expression, follow from others. Each tensor has the dtype that the definition says, whatever the
case. The reference runs in float64: a cast to float32 is none, and a cast to a half, or to the
dtype of an argument in one, is one that every kernel makes (`Precision`, oracles/analysis). Its
last cast is the output's own.

Workloads are JSON lines, each of which makes a case:

    {"definition": "rmsnorm_h64", "workload": {"axes": {"m": 7}, "inputs": {
        "x": {"type": "random"}, "eps": {"type": "scalar", "value": 1e-6}}}}
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cache, partial, update_wrapper
from itertools import combinations, islice
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from kernel_workbench.oracles.analysis import Precision
from kernel_workbench.oracles.cases.sizes import Sizes
from kernel_workbench.oracles.op import Case, Workloads
from kernel_workbench.oracles.reference import (
    Draw,
    Reference,
    ReferenceOp,
    op_of_reference,
    small_sizes,
)
from kernel_workbench.oracles.reference.cases import case_of, cases_of
from kernel_workbench.oracles.reference.counts import meta
from kernel_workbench.oracles.reference.signature import (
    Array,
    Axis,
    Constant,
    Extent,
    Function,
    Kind,
    OpError,
    Signature,
    length,
    names_in,
)
from kernel_workbench.oracles.reference.trials import (
    LENGTH,
    Whole,
    pointer_ends,
    shapes_of_outputs,
    sizes_apart,
    whole_numbers,
)

_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_CODES = {"float8_e4m3fn": torch.float8_e4m3fn}  # a tensor's own dtype beside the case's
_WEIGHTS = ("weight", "bias")  # about 1, and in a dtype of their own
_BYTES = {"int8": torch.int8, "uint8": torch.uint8}  # of inputs any byte is valid
_WHOLE = {"int32": torch.int32, "int64": torch.int64, "bool": torch.bool, **_BYTES}
_POINTERS = re.compile(r"\s*(\w+)\s*==\s*(\w+)\s*\[\s*-1\s*\](?:\.item\(\))?\s*")
_LENGTH = re.compile(r"\b(\w+)\.shape\[(-?\d+)\]")  # of an axis of a tensor
_MOST_BYTES = 2**24  # of a file
_LARGE = 2**22  # elements of inputs, from which on smaller constants are tried
_FEW = 2**20  # elements, of which a run costs nothing
_MOST_ELEMENTS = 2**27  # of inputs at smaller constants
_MOST_WAYS = 500  # of making constants smaller
_SMALLEST_CONSTANTS = (4, 8, 16)
_FEWEST_EXPERTS = 2  # that one constant is made alone where four are too many
_SEVERAL = {"several": (12, 3, 9, 5), "one": (1,), "many": (33, 66, 132)}


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")  # what others may ask for


_Kind = TypeVar("_Kind", bound=_Read)


class _Const(_Read):
    type: Literal["const"]
    value: int = Field(ge=1)


class _Var(_Read):
    type: Literal["var"]


class _Expression(_Read):
    type: Literal["expr"]
    expression: str


class _Tensor(_Read):
    shape: tuple[str | int, ...] | None
    dtype: str
    optional: bool = False


class _Definition(_Read):
    name: str = Field(pattern=r"^\w[\w.]*$")  # of ids, whose parts stand between dashes
    axes: dict[str, Annotated[_Const | _Var | _Expression, Field(discriminator="type")]]
    inputs: dict[str, _Tensor]
    outputs: dict[str, _Tensor]
    reference: str
    constraints: tuple[str, ...] | None = None


class _Random(_Read):
    type: Literal["random"]


class _Scalar(_Read):
    type: Literal["scalar"]
    value: bool | int | float


class _Safetensors(_Read):
    type: Literal["safetensors"]
    path: str
    tensor_key: str


class _Workload(_Read):
    axes: dict[str, int]
    inputs: dict[str, Annotated[_Random | _Scalar | _Safetensors, Field(discriminator="type")]]
    uuid: str = ""


class _WorkloadLine(_Read):
    definition: str
    workload: _Workload


def read_definition(path: Path, workloads: Sequence[Path] = ()) -> ReferenceOp:
    """Return the op of a definition, with a case of each line of these files that is of it.

    Scalars have the values that the lines say, else the reference's defaults, else NaN: whoever
    calls kernels asks `unsaid` first. Raises OpError, with the file and the field.
    """
    read = _parsed(_Definition, _text(path), str(path))
    lines = [line for file in workloads for line in _lines(file, read.name)]
    if workloads and not lines:
        raise OpError(f"{workloads[0]}: no line is a workload of {read.name}")
    definition = _Meaning.of(
        read, path, frozenset(name for line in lines for name in line.workload.inputs)
    )
    numbers = definition.numbers(lines)
    stored: dict[Draw, dict[str, _Stored]] = {}
    cases = tuple({case.id(): case for case in definition.cases(lines, stored)}.values())
    op = op_of_reference(replace(definition.reference(numbers), stored=stored))
    for (sizes, _), named in stored.items():
        _check_whole(op.reference, dict(sizes), named)
    listed = Workloads(anchors=cases, on_cpu=cases, profiled=cases[:1])
    return replace(
        op,
        cases=cache(partial(_cases, op, cases)),
        workloads=listed if cases else op.workloads,
    )


def unsaid(op: ReferenceOp) -> str | None:
    """The scalar that nothing gives a value; None where each has one."""
    numbers = op.reference.signature.numbers
    return next(
        (name for name, value in numbers.items() if isinstance(value, float) and math.isnan(value)),
        None,
    )


def _cases(op: ReferenceOp, workloads: tuple[Case, ...]) -> tuple[Case, ...]:
    workload_ids = {workload.id() for workload in workloads}
    generated = cases_of(op, op.reference.sizes)
    return (*workloads, *(case for case in generated if case.id() not in workload_ids))


@dataclass(frozen=True, slots=True)
class _Place:
    """A line of a file of workloads."""

    file: Path
    number: int
    workload: _Workload

    @property
    def where(self) -> str:
        """The file and the line, for messages."""
        return f"{self.file}, line {self.number}"


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor in a file of safetensors."""

    file: Path
    key: str

    def __call__(self) -> Tensor:
        """Read the values. Raises ImportError, and the errors of an unreadable file."""
        from safetensors import safe_open  # noqa: PLC0415  # who names no such file needs none

        with safe_open(self.file, framework="pt") as opened:
            values: Tensor = opened.get_tensor(self.key)
            return values


def _stored(line: _Place, stated: _Safetensors, array: Array, case: Case) -> _Stored:
    """Return where a tensor's values are: the path is from a folder above the workloads.

    Raises OpError where they can't be read, or aren't such a tensor.
    """
    where = f"{line.where}: inputs.{array.name}"
    paths = (parent / stated.path for parent in line.file.absolute().parents)
    result = _Stored(next(filter(Path.is_file, paths), Path(stated.path)), stated.tensor_key)
    try:
        values = result()
    except ImportError as error:
        raise OpError(f"{where}: {stated.path} is read by safetensors; install it") from error
    except Exception as error:  # its own error has no base but this
        raise OpError(
            f"{where}: {stated.path}: {stated.tensor_key} can't be read ({error})"
        ) from error
    actual, wanted = (
        (values.dtype, tuple(values.shape)),
        (
            array.dtype(case),
            array.shape(dict(case.sizes)),
        ),
    )
    if actual != wanted:
        raise OpError(
            f"{where}: {stated.path} holds {actual[0]} {actual[1]}, not {wanted[0]} {wanted[1]}"
        )
    return result


@dataclass(frozen=True, slots=True)
class _Meaning:
    """A definition whose fields are known to fit together.

    sizes      those that cases are free to choose
    dtypes     the activations' and the weights'
    problem    (sizes) -> the constraint that they break
    least      the smallest of a size by constraints on it alone, where it isn't 1
    pointers   the axis at whose end an argument's numbers end
    smaller    the definition at smaller constants, where its own make inputs large
    """

    path: Path
    read: _Definition
    run: Function
    signature: Signature
    sizes: Mapping[str, Sizes]
    dtypes: tuple[torch.dtype, torch.dtype]
    problem: Callable[[Mapping[str, int]], str | None]
    least: Mapping[str, int]
    pointers: Mapping[str, Axis]
    smaller: _Meaning | None = None

    @classmethod
    def of(cls, read: _Definition, path: Path, named_inputs: frozenset[str]) -> _Meaning:
        """Read a definition; raise OpError for the first field that can't be read.

        named_inputs: the inputs that workloads name; optional ones among them are used.
        """
        run, inputs = _run(read, path, named_inputs)
        without_asserts, _ = _run(read, path, named_inputs, optimize=1)
        read = read.model_copy(update={"inputs": inputs})
        axes = {axis for output in read.outputs.values() for axis in output.shape or ()}
        undeclared = {axis for axis in axes if isinstance(axis, str)} - read.axes.keys()
        if undeclared:
            tried = cls._with_run(_with_constants(read, dict.fromkeys(undeclared, 1)), path, run)
            read = _with_constants(read, tried.lengths_of_outputs(undeclared))
        result = cls._with_run(read, path, run)
        smaller = result.at_smaller_constants(without_asserts)
        result = replace(result, smaller=smaller)
        tried = smaller or result
        ends = pointer_ends(tried.tried(), tried.least, str(path), result.axis_of_smaller)
        result = replace(result, pointers={**result.pointers, **ends})
        if smaller is not None:
            own = pointer_ends(tried.tried(), tried.least, str(path), lambda axis: axis)
            result = replace(result, smaller=replace(smaller, pointers={**smaller.pointers, **own}))
        return result

    @classmethod
    def _with_run(cls, read: _Definition, path: Path, run: Function) -> _Meaning:
        axes, broken, least = _axes(read, path)
        real = {name: tensor for name, tensor in read.inputs.items() if tensor.shape is not None}
        for name, tensor in (*real.items(), *read.outputs.items()):
            _check(f"{path}: {name}", name, tensor, read)
        all_dtypes = _DTYPES | _WHOLE | _CODES
        dtypes = {
            name: _DTYPES[tensor.dtype] for name, tensor in real.items() if tensor.dtype in _DTYPES
        }
        if not (dtypes or any(tensor.dtype in _CODES for tensor in real.values())):
            raise OpError(
                f"{path}: inputs: none is a tensor of real numbers; an op has one at least"
            )
        activation = next(iter(dtypes.values()), torch.float32)
        weights = [dtype for name, dtype in dtypes.items() if name in _WEIGHTS]
        pair = activation, (*weights, activation)[0]

        def array(name: str, tensor: _Tensor) -> Array:
            kind: Kind | torch.dtype = all_dtypes[tensor.dtype]
            if name in read.inputs and name in _WEIGHTS and kind == pair[1]:
                kind = "weight"
            elif kind == pair[0]:
                kind = "activation"
            shape = tensor.shape or ()
            return Array(
                name, tuple(axes[axis] if isinstance(axis, str) else axis for axis in shape), kind
            )

        arrays = tuple(array(*item) for item in real.items())
        return cls(
            path=path,
            read=read,
            run=run,
            signature=Signature(
                arrays,
                _defaults(read, run),
                tuple(array(*item) for item in read.outputs.items()),
            ),
            sizes=_sizes([name for name in axes if axes[name] == name], least),
            dtypes=pair,
            problem=broken,
            least=least,
            pointers=_stated_pointers(read, path, axes, arrays),
        )

    def tried(self) -> Reference:
        """Return the reference with a number for each scalar that nothing gives a value."""
        numbers = {
            name: (1 if self.read.inputs[name].dtype in _WHOLE else 0.5)
            if isinstance(value, float) and math.isnan(value)
            else value
            for name, value in self.signature.numbers.items()
        }
        return replace(self._reference(numbers), labels=dict)

    def lengths_of_outputs(self, names: AbstractSet[str]) -> dict[str, int]:
        """Return how long the reference makes axes that only outputs have. Raises OpError."""
        lengths: dict[str, int] = {}
        for shapes in shapes_of_outputs(self.tried(), self.least, str(self.path)):
            for (output, tensor), shape in zip(self.read.outputs.items(), shapes, strict=False):
                for axis, extent in zip(tensor.shape or (), shape, strict=False):
                    if isinstance(axis, str) and axis in names:
                        first = lengths.setdefault(axis, extent)
                        if first != extent:
                            raise OpError(
                                f"{self.path}: {output}.shape: {axis} is no axis, and the "
                                f"reference makes it {first} and {extent} long; add it to axes"
                            )
        for output, tensor in self.read.outputs.items():
            for axis in tensor.shape or ():
                if axis in names - lengths.keys():
                    raise OpError(f"{self.path}: {output}.shape: {axis} is no axis; add it to axes")
        return lengths

    def at_smaller_constants(self, run: Function) -> _Meaning | None:
        """Return the definition with small constants in the place of large ones, if it has such.

        It is the first of all ways on which the reference returns outputs of their shapes.
        run: the reference without its assertions.
        """
        sizes = small_sizes(self.tried())
        if self.elements(sizes) < _LARGE:
            return None
        used = {axis for input_ in self.read.inputs.values() for axis in input_.shape or ()}
        constants = {
            name: axis.value
            for name, axis in self.read.axes.items()
            if isinstance(axis, _Const) and axis.value > _SMALLEST_CONSTANTS[-1] and name in used
        }
        all_constants = {axis.value for axis in self.read.axes.values() if isinstance(axis, _Const)}
        ways = [
            (self.elements(sizes, constants | {name: _FEWEST_EXPERTS}), {name: _FEWEST_EXPERTS})
            for name in constants
            if self.elements(sizes, constants | {name: _SMALLEST_CONSTANTS[0]}) >= _MOST_ELEMENTS
        ]
        for first in _SMALLEST_CONSTANTS:
            powers = (first << place for place in range(len(constants) + len(all_constants)))
            values = [power for power in powers if power not in all_constants]
            ranks = dict(zip(sorted(set(constants.values())), values, strict=False))
            for count in range(1, len(constants) + 1):
                for names in combinations(constants, count):
                    same = values[0] if count == 1 else None
                    way = {name: same or ranks[constants[name]] for name in names}
                    axes = constants | way
                    ways.append((self.elements(sizes, axes), way))

        def order(item: tuple[int, Mapping[str, int]]) -> tuple[bool, bool, int]:
            """Put ways that cost nothing first, then those of one constant, as of experts."""
            elements, way = item
            return elements > _FEW, elements > _FEW and len(way) > 1, elements

        possible = (way for elements, way in sorted(ways, key=order) if elements < _MOST_ELEMENTS)
        for way in islice(possible, _MOST_WAYS):
            try:
                smaller = _Meaning._with_run(_with_constants(self.read, way), self.path, run)
                reference = smaller.tried()
                if smaller.broken(sizes) is not None or not _may_have(reference, sizes):
                    continue
                shapes = list(shapes_of_outputs(reference, smaller.least, str(self.path)))
            except OpError:
                continue
            wanted = [
                [output.shape(sizes_) for output in reference.signature.outputs]
                for sizes_ in sizes_apart(reference, smaller.least, str(self.path))
            ]
            if shapes == wanted:
                return smaller
        return None

    def elements(self, sizes: Mapping[str, int], constants: Mapping[str, int] = {}) -> int:
        """Return how many elements inputs have; constants: of axes by their names."""
        total = 0
        for array, input_ in zip(
            self.signature.arrays,
            (tensor for tensor in self.read.inputs.values() if tensor.shape is not None),
            strict=True,
        ):
            lengths = zip(array.shape(sizes), input_.shape or (), strict=True)
            total += math.prod(constants.get(str(axis), extent) for extent, axis in lengths)
        return total

    def axis_of_smaller(self, axis: Axis) -> Axis:
        """Return the axis that has this one's place in the definition at smaller constants."""
        if self.smaller is None:
            return axis
        pairs = zip(self.smaller.signature.arrays, self.signature.arrays, strict=True)
        for smaller, own in pairs:
            if axis in smaller.axes:
                return own.axes[smaller.axes.index(axis)]
        return axis

    def numbers(self, lines: Sequence[_Place]) -> dict[str, float]:
        """Return the scalars' values. Raises OpError where two lines differ."""
        result = {
            name: value
            for name, value in self.signature.numbers.items()
            if isinstance(value, int | float)
        }
        sources: dict[str, str] = {}
        for line in lines:
            for name, value in tuple(result.items()):
                stated = line.workload.inputs.get(name)
                if not isinstance(stated, _Scalar):
                    continue
                earlier = result.get(name, value)
                if name in sources and stated.value != earlier:
                    raise OpError(
                        f"{line.where}: inputs.{name}: {stated.value}, and {earlier} in "
                        f"{sources[name]}; an op has one value of it, so put them into files that "
                        "runs of their own name"
                    )
                result[name], sources[name] = stated.value, line.where
        return result

    def reference(self, numbers: Mapping[str, Constant]) -> Reference:
        """Return the reference of an op with these values of its scalars."""
        tried = self.smaller or self

        @cache
        def whole() -> Whole:
            return whole_numbers(tried.tried(), tried.least, str(self.path), self.axis_of_smaller)

        smaller = None if self.smaller is None else self.smaller.reference(numbers)
        return replace(
            self._reference(numbers),
            labels=lambda: whole().labels,
            lengths=lambda: whole().lengths,
            smaller=smaller,
        )

    def _reference(self, numbers: Mapping[str, Constant]) -> Reference:
        whole = {array.name for array in self.signature.arrays if not array.is_real}
        return Reference(
            name=self.read.name,
            written=self.run,
            function=_function(self.run, self.read),
            signature=replace(self.signature, numbers=numbers),
            sizes=self.sizes,
            without=frozenset({"inf"}),  # of exp(x - max x), say, it is nothing that was meant
            dtypes=(self.dtypes,),
            problem=self.broken,
            pointers=self.pointers,
            uneven=frozenset(filter(LENGTH.search, whole)),
        )

    def broken(self, sizes: Mapping[str, int]) -> str | None:
        """Return the constraint that sizes break: one pointer alone is the end of nothing."""
        for array in self.signature.arrays:
            axis = self.pointers.get(array.name)
            if axis is not None and length(axis, sizes) and length(array.axes[0], sizes) < 2:
                return f"{axis} must be 0 where {array.name} has one element"
        return self.problem(sizes)

    def cases(
        self, lines: Sequence[_Place], stored: dict[Draw, dict[str, _Stored]]
    ) -> Iterator[Case]:
        """Yield a case of each line; the tensors that it names go into `stored`. Raises OpError."""
        for line in lines:
            self._check(line)
            axes = line.workload.axes
            sizes = {name: axes[name] for name in self.sizes}
            wrong = self.broken({**sizes, **axes})
            if wrong is not None:
                raise OpError(f"{line.where}: axes: {wrong}")
            case = case_of(self.read.name, sizes, self.dtypes, "ci")
            named = {
                array.name: _stored(line, stated, array, case)
                for array in self.signature.arrays
                if isinstance(stated := line.workload.inputs[array.name], _Safetensors)
            }
            while stored.setdefault((case.sizes, case.seed), named) != named:
                case = replace(case, seed=case.seed + 1)  # other values, of these sizes
            yield replace(case, why=f"workload {line.workload.uuid or line.where}")

    def _check(self, line: _Place) -> None:
        for name in self.sizes:
            if line.workload.axes.get(name, 0) < 1:
                raise OpError(f"{line.where}: axes.{name}: it needs a number of 1 or more")
        for name, tensor in self.read.inputs.items():
            stated = line.workload.inputs.get(name)
            if stated is None or (tensor.shape is None) != isinstance(stated, _Scalar):
                kind = "scalar, with its value" if tensor.shape is None else "random or safetensors"
                raise OpError(f"{line.where}: inputs.{name}: its type must be {kind}")
            is_whole = isinstance(stated, _Scalar) and not isinstance(stated.value, float)
            if isinstance(stated, _Scalar) and tensor.dtype in _WHOLE and not is_whole:
                raise OpError(
                    f"{line.where}: inputs.{name}: {stated.value} is no {tensor.dtype}; write a "
                    "whole number"
                )


def _check_whole(
    reference: Reference, sizes: Mapping[str, int], named: Mapping[str, _Stored]
) -> None:
    """Raise OpError where whole numbers in a file aren't valid: traces have such. -1 pads."""
    for array in reference.signature.arrays:
        if array.name not in named or array.is_real or array.kind in {torch.bool, *_BYTES.values()}:
            continue
        stored = named[array.name]
        values, where = stored().long().flatten(), f"{stored.file}: {stored.key}"
        if array.name in reference.pointers:
            end = length(reference.pointers[array.name], sizes)
            ends = int(values[0]), int(values[-1])
            if ends != (0, end) or bool((values.diff() < 0).any()):
                raise OpError(f"{where} must rise from 0 to {end}, and doesn't")
        elif array.name in reference.lengths():
            most = length(reference.lengths()[array.name].most, sizes)
            parts = reference.lengths()[array.name].parts
            if parts is not None:
                most *= length(reference.pointers[parts], sizes)
            if bool(((values < 0) | (values > most)).any()):
                raise OpError(f"{where} must be from 0 to {most}, and isn't")
        else:
            end = length(reference.labels()[array.name], sizes)
            wrong = values[(values < -1) | (values >= end)]
            if len(wrong):
                raise OpError(
                    f"{where}: {len(wrong):,} of {len(values):,} aren't from 0 to {end - 1}, as "
                    f"{wrong[0]}"
                )


def _may_have(reference: Reference, sizes: Mapping[str, int]) -> bool:
    """Say whether shapes may be those of a reference, as far as it runs on tensors without values.

    A constant that the reference writes as a number fails soon, and large tensors cost nothing.
    """
    arrays = reference.signature.arrays
    empty = {array.name: meta(array.shape(sizes), array.kind) for array in arrays}
    try:
        reference.function(**empty, **reference.signature.numbers)
    except Exception as error:  # noqa: BLE001  # whatever a reference raises
        return "meta" in str(error).lower()  # it goes by values, which these tensors lack
    return True


def _with_constants(read: _Definition, values: Mapping[str, int]) -> _Definition:
    """Return a definition with other constants, or further ones."""
    constants = {name: _Const(type="const", value=value) for name, value in values.items()}
    return read.model_copy(update={"axes": {**read.axes, **constants}})


def _stated_pointers(
    read: _Definition, path: Path, axes: Mapping[str, Axis], arrays: Sequence[Array]
) -> dict[str, Axis]:
    """Return the axis at which an argument ends by a constraint, as `n == p[-1]`."""
    vectors = {array.name for array in arrays if len(array.axes) == 1}
    result = {}
    for match in filter(None, map(_POINTERS.fullmatch, read.constraints or ())):
        axis, name = match.groups()
        if axis not in axes or name not in vectors:
            prefix = f"{path}: constraints: {match[0]!r}"
            raise OpError(f"{prefix}: {axis} must be an axis, and {name} an input of one axis")
        result[name] = axes[axis]
    return result


def _axes(
    read: _Definition, path: Path
) -> tuple[dict[str, Axis], Callable[[Mapping[str, int]], str | None], dict[str, int]]:
    """Return each axis, a function that names the constraint that sizes break, and least sizes."""
    constants = {
        name: axis_.value for name, axis_ in read.axes.items() if isinstance(axis_, _Const)
    }
    axes: dict[str, Axis] = {**{name: name for name in read.axes}, **constants}
    constraints = []
    followed = {
        name: axis_.expression
        for name, axis_ in read.axes.items()
        if isinstance(axis_, _Expression)
    }
    tensors = {name: tensor.shape for name, tensor in (read.inputs | read.outputs).items()}

    def axis(match: re.Match[str]) -> str:
        """Return the name of a tensor's axis; the text as it is where there is none."""
        shape, place = tensors.get(match[1]) or (), int(match[2])
        return str(shape[place]) if -len(shape) <= place < len(shape) else match[0]

    for written in read.constraints or ():
        where, text = f"{path}: constraints: {written!r}", _LENGTH.sub(axis, written)
        if _POINTERS.fullmatch(text):
            continue
        names = _names(text, where)
        if unknown := sorted(names - read.axes.keys()):
            raise OpError(f"{where}: {unknown[0]} is no axis; only axes can be spoken of")
        constants |= _fulfilling(text, names - constants.keys(), constants, read)
        constraints.append(Extent(text, constants))
        left, equals, right = text.partition("==")
        name = left.strip()
        if equals and axes.get(name) == name and name not in _names(right, where) | followed.keys():
            followed[name] = right.strip()
    axes |= constants
    for name, text in followed.items():
        where = f"{path}: axes.{name}: {text!r}"
        for other in sorted(_names(text, where)):
            if other not in read.axes or other in followed:
                raise OpError(f"{where}: {other} is no axis of type var or const")
        axes[name] = Extent(text, constants)

    def broken(sizes: Mapping[str, int]) -> str | None:
        lengths = {
            name: axis_.of(sizes) for name, axis_ in axes.items() if isinstance(axis_, Extent)
        }
        for name, extent in lengths.items():
            if sizes.get(name, extent) != extent or extent < 1:
                return f"{name} must be {followed[name]}, which is {extent}"
        for constraint in constraints:
            if not constraint.of({**lengths, **sizes}):
                return f"{constraint.text} must hold"
        return None

    return axes, broken, _least(axes, constraints)


def _least(axes: Mapping[str, Axis], constraints: Sequence[Extent]) -> dict[str, int]:
    """Return the smallest length of axes that a constraint asks for more than 1 of, alone."""
    result = {}
    for name in (name for name, axis in axes.items() if axis == name):
        alone = [constraint for constraint in constraints if names_in(constraint) == {name}]
        largest = max((of for item in alone for of in item.constants.values()), default=1)
        lengths = range(1, 2 * largest + 2)
        fitting = (n for n in lengths if all(item.of({name: n}) for item in alone))
        if (first := next(fitting, 1)) > 1:
            result[name] = first
    return result


def _fulfilling(
    text: str, free: set[str], constants: Mapping[str, int], read: _Definition
) -> dict[str, int]:
    """Return the length of an axis that no input has, where constants leave one length for it."""
    in_inputs = {axis for input_ in read.inputs.values() for axis in input_.shape or ()}
    name, *further = [*free, ""]
    if further != [""] or name in in_inputs or not isinstance(read.axes[name], _Var):
        return {}
    lengths = range(1, max(constants.values(), default=0) + 1)
    fitting = [extent for extent in lengths if Extent(text, constants).of({name: extent})]
    return {name: fitting[0]} if len(fitting) == 1 else {}


def _names(text: str, where: str) -> set[str]:
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise OpError(f"{where}: no expression of Python's; write one of axes") from error
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - {"min", "max"}


def _sizes(names: Sequence[str], least: Mapping[str, int]) -> dict[str, Sizes]:
    """Return the sizes tried for the free axes: together they make no tensor huge.

    least: the smallest of a size, where it isn't 1; all others are as much larger.
    """

    def level(size: int) -> str:
        return "one" if size == 1 else "several" if size < 30 else "many"

    def sizes(more: int) -> Sizes:
        def raised(values: Sequence[int]) -> tuple[int, ...]:
            return tuple(value + more for value in values)

        levels = {name: raised(values) for name, values in _SEVERAL.items()}
        tried = raised(timed) if more < max(timed, default=0) else timed
        return Sizes("extent", levels, lambda size: level(size - more), raised(large), tried)

    alone = len(names) == 1
    large = (17, 1, 133, 1151) if alone else (17, 3, 48, 33)
    timed = (4096, 16384, 2048, 128) if alone else ()
    return {name: sizes(least.get(name, 1) - 1) for name in names}


def _check(where: str, name: str, tensor: _Tensor, read: _Definition) -> None:
    """Raise OpError where a tensor isn't one that a case can have."""
    if not name.isidentifier():
        raise OpError(f"{where}: no name of an argument; write letters, digits and underscores")
    if tensor.shape is None:
        raise OpError(f"{where}.shape: an output is a tensor; write its axes")
    for axis in tensor.shape:
        if isinstance(axis, int) and axis < 1:
            raise OpError(f"{where}.shape: {axis} is no length; write an axis, or 1 or more")
        if isinstance(axis, str) and axis not in read.axes and name in read.inputs:
            raise OpError(f"{where}.shape: {axis} is no axis; add it to axes")
    dtypes = [*_DTYPES, *_CODES, *_WHOLE]
    if tensor.dtype not in dtypes:
        raise OpError(f"{where}.dtype: {tensor.dtype} isn't read; there are {', '.join(dtypes)}")


def _run(
    read: _Definition, path: Path, named_inputs: frozenset[str], optimize: int = 0
) -> tuple[Function, dict[str, _Tensor]]:
    """Return the reference's function, the last one if none is called run, and its inputs.

    Whole numbers that the reference doesn't take are none of them: no result says which of their
    values are valid. An optional input that it has a default for is none of them either, unless
    that is a number or the input is given. Where a parameter has another name, its place says which
    input it is. optimize: as in `compile`; 1 leaves out assertions.
    """
    file = f"{path}: reference"  # what sentences name, with a line
    names = {"torch": torch, "math": math, "F": torch.nn.functional}  # others' files take for given
    space: dict[str, Any] = {"__name__": read.name, **names}
    try:
        code = compile(read.reference, file, "exec", optimize=optimize)
        exec(code, space)  # noqa: S102  # a user's, as in --ops
    except Exception as error:
        message = " ".join(str(error).split())
        raise OpError(f"{file}: it can't be run: {type(error).__name__}: {message}") from error
    defined = (function for function in space.values() if inspect.isfunction(function))
    own = [
        function for function in defined if inspect.unwrap(function).__code__.co_filename == file
    ]
    run: Function | None = space.get("run") or next(reversed(own), None)
    if not callable(run):
        raise OpError(f"{file}: it has no function run; write `def run({', '.join(read.inputs)})`")
    parameters = inspect.signature(run).parameters

    def is_passed(name: str) -> bool:
        default = parameters[name].default if name in parameters else None
        needed = isinstance(default, int | float) or default is inspect.Parameter.empty
        return needed or name in named_inputs or not read.inputs[name].optional

    inputs = {name: tensor for name, tensor in read.inputs.items() if is_passed(name)}
    if len(parameters) < len(inputs) and parameters.keys() <= inputs.keys():
        inputs = {
            name: tensor
            for name, tensor in inputs.items()
            if name in parameters or tensor.dtype not in _WHOLE
        }
    called = {
        name: other
        for name, other in zip(read.inputs, parameters, strict=False)
        if name in inputs.keys() - parameters.keys() and other not in inputs
    }
    passed = {called.get(name, name) for name in inputs}
    needed = {
        name
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind != inspect.Parameter.VAR_KEYWORD
    }
    if not needed <= passed <= parameters.keys():
        raise OpError(
            f"{file}: run takes {', '.join(parameters) or 'nothing'}, and inputs are "
            f"{', '.join(inputs)}; give them the same names"
        )
    return (_renamed(run, called) if called else run), inputs


def _renamed(run: Function, called: Mapping[str, str]) -> Function:
    """Return the function with its parameters called by the names of inputs."""

    def function(**arguments: Any) -> Any:
        return run(**{called.get(name, name): value for name, value in arguments.items()})

    return update_wrapper(function, run)


def _defaults(read: _Definition, run: Function) -> dict[str, float]:
    """Return the scalars, with the values that the reference has for them, else NaN."""
    parameters = inspect.signature(run).parameters
    scalars = [name for name, tensor in read.inputs.items() if tensor.shape is None]
    defaults = {name: parameters[name].default if name in parameters else None for name in scalars}
    return {
        name: value if isinstance(value, int | float) else math.nan
        for name, value in defaults.items()
    }


def _function(run: Function, read: _Definition) -> Function:
    """Return the reference as an op has it: in its arguments' precision, returning a tuple."""
    file, all_dtypes = inspect.unwrap(run).__code__.co_filename, _DTYPES | _CODES
    dtypes = {
        name: all_dtypes[tensor.dtype]
        for name, tensor in read.inputs.items()
        if tensor.shape is not None and tensor.dtype in all_dtypes
    }

    def function(**arguments: Any) -> tuple[Tensor, ...]:
        declared = {id(arguments[name]): dtype for name, dtype in dtypes.items()}
        with Precision(arguments[next(iter(dtypes))].dtype, file, declared):
            result: Any = run(**arguments)
        if isinstance(result, dict):
            result = tuple(result.get(name) for name in read.outputs)
        returned = result if isinstance(result, tuple | list) else (result,)
        if not all(isinstance(output, Tensor) for output in returned):
            raise TypeError("it returns something else than the tensors of outputs")
        return tuple(returned)

    result = update_wrapper(function, run)
    result.__dict__["goes_by_values"] = True  # a reference of others isn't to be written anew
    return result


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise OpError(f"{path}: larger than {_MOST_BYTES >> 20} MiB, so none of these files")
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        message = getattr(error, "strerror", None) or error
        raise OpError(f"{path}: it can't be read ({message})") from error


def _parsed(kind: type[_Kind], text: str, where: str) -> _Kind:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first, *further = error.errors(include_url=False, include_context=False)
        field = ".".join(map(str, first["loc"]))
        message = str(first["msg"])
        more = f" (and {len(further):,} more mistakes)" if further else ""
        message = f"{field}: {message}" if field else message
        raise OpError(f"{where}: {message}{more}") from error


def _lines(file: Path, name: str) -> Iterator[_Place]:
    """The workloads of a file that are of the definition, or of none that they name."""
    for number, line in enumerate(_text(file).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        try:
            bare = "workload" not in json.loads(line)
        except (ValueError, TypeError) as error:
            raise OpError(f"{where}: not JSON ({error}); write one workload a line") from error
        if bare:
            yield _Place(file, number, _parsed(_Workload, line, where))
        elif (read := _parsed(_WorkloadLine, line, where)).definition == name:
            yield _Place(file, number, read.workload)
