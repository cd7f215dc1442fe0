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
from dataclasses import dataclass, replace
from functools import cache, partial, update_wrapper
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from kernel_workbench.oracles.analysis import Precision, truth
from kernel_workbench.oracles.cases.sizes import Sizes
from kernel_workbench.oracles.op import Case, Workloads, required
from kernel_workbench.oracles.reference import Draw, Reference, ReferenceOp, op_of_reference
from kernel_workbench.oracles.reference.cases import case_of, cases_of
from kernel_workbench.oracles.reference.signature import (
    Array,
    Axis,
    Extent,
    Function,
    Kind,
    OpError,
    Signature,
    length,
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
    shape: tuple[str, ...] | None
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

    axes       what each is
    sizes      those that cases are free to choose
    dtypes     the activations' and the weights'
    problem    (sizes) -> the constraint that they break
    """

    path: Path
    read: _Definition
    run: Function
    signature: Signature
    axes: Mapping[str, Axis]
    sizes: Mapping[str, Sizes]
    dtypes: tuple[torch.dtype, torch.dtype]
    problem: Callable[[Mapping[str, int]], str | None]

    @classmethod
    def of(cls, read: _Definition, path: Path, named_inputs: frozenset[str]) -> _Meaning:
        """Read a definition; raise OpError for the first field that can't be read.

        named_inputs: the inputs that workloads name; optional ones among them are used.
        """
        run, inputs = _run(read, path, named_inputs)
        read = read.model_copy(update={"inputs": inputs})
        axes, broken = _axes(read, path)
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
            return Array(name, tuple(axes[axis] for axis in tensor.shape or ()), kind)

        return cls(
            path=path,
            read=read,
            run=run,
            signature=Signature(
                tuple(array(*item) for item in real.items()),
                _defaults(read, run),
                tuple(array(*item) for item in read.outputs.items()),
            ),
            axes=axes,
            sizes=_sizes([name for name in axes if axes[name] == name]),
            dtypes=pair,
            problem=broken,
        )

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

    def reference(self, numbers: Mapping[str, float]) -> Reference:
        """Return the reference of an op with these values of its scalars."""
        result = Reference(
            name=self.read.name,
            written=self.run,
            function=_function(self.run, self.read),
            signature=replace(self.signature, numbers=numbers),
            sizes=self.sizes,
            without=frozenset({"inf"}),  # of exp(x - max x), say, it is nothing that was meant
            dtypes=(self.dtypes,),
            problem=self._broken,
            pointers=self._pointers(),
        )
        return replace(result, labels=cache(partial(_labels, result, self.path)))

    def _broken(self, sizes: Mapping[str, int]) -> str | None:
        """Return the constraint that sizes break: one pointer alone is the end of nothing."""
        pointers = self._pointers()
        for array in self.signature.arrays:
            axis = pointers.get(array.name)
            if axis is not None and length(axis, sizes) and length(array.axes[0], sizes) < 2:
                return f"{axis} must be 0 where {array.name} has one element"
        return self.problem(sizes)

    def _pointers(self) -> dict[str, Axis]:
        """Return the axis at which an argument ends by a constraint, as `n == p[-1]`."""
        vectors = {array.name for array in self.signature.arrays if len(array.axes) == 1}
        result = {}
        for match in filter(None, map(_POINTERS.fullmatch, self.read.constraints or ())):
            axis, name = match.groups()
            if axis not in self.axes or name not in vectors:
                prefix = f"{self.path}: constraints: {match[0]!r}"
                raise OpError(f"{prefix}: {axis} must be an axis, and {name} an input of one axis")
            result[name] = self.axes[axis]
        return result

    def cases(
        self, lines: Sequence[_Place], stored: dict[Draw, dict[str, _Stored]]
    ) -> Iterator[Case]:
        """Yield a case of each line; the tensors that it names go into `stored`. Raises OpError."""
        for line in lines:
            self._check(line)
            axes = line.workload.axes
            sizes = {name: axes[name] for name in self.sizes}
            wrong = self._broken({**sizes, **axes})
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
        else:
            end = length(reference.labels()[array.name], sizes)
            wrong = values[(values < -1) | (values >= end)]
            if len(wrong):
                raise OpError(
                    f"{where}: {len(wrong):,} of {len(values):,} aren't from 0 to {end - 1}, as "
                    f"{wrong[0]}"
                )


def _axes(
    read: _Definition, path: Path
) -> tuple[dict[str, Axis], Callable[[Mapping[str, int]], str | None]]:
    """Return each axis, and a function that names the constraint that sizes break."""
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
        return shape[place] if -len(shape) <= place < len(shape) else match[0]

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

    return axes, broken


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


def _sizes(names: Sequence[str]) -> dict[str, Sizes]:
    """Return the sizes tried for the free axes: together they make no tensor huge."""

    def level(size: int) -> str:
        return "one" if size == 1 else "several" if size < 30 else "many"

    alone = len(names) == 1
    large = (17, 1, 133, 1151) if alone else (17, 3, 48, 33)
    timed = (4096, 16384, 2048, 128) if alone else ()
    return {name: Sizes("extent", _SEVERAL, level, large, timed) for name in names}


def _check(where: str, name: str, tensor: _Tensor, read: _Definition) -> None:
    """Raise OpError where a tensor isn't one that a case can have."""
    if not name.isidentifier():
        raise OpError(f"{where}: no name of an argument; write letters, digits and underscores")
    if tensor.shape is None:
        raise OpError(f"{where}.shape: an output is a tensor; write its axes")
    for axis in tensor.shape:
        if axis not in read.axes:
            raise OpError(f"{where}.shape: {axis} is no axis; add it to axes")
    dtypes = [*_DTYPES, *_CODES, *_WHOLE]
    if tensor.dtype not in dtypes:
        raise OpError(f"{where}.dtype: {tensor.dtype} isn't read; there are {', '.join(dtypes)}")


def _labels(reference: Reference, path: Path) -> dict[str, Axis]:
    """Return the axis whose places an argument holds: the first place past it fails.

    Each is tried alone, on sizes that differ, the others being 0. Raises OpError.
    """
    arrays = [array for array in reference.signature.arrays if not array.is_real]
    any_value = {torch.bool, *_BYTES.values()}
    unknown = [
        array
        for array in arrays
        if array.kind not in any_value and array.name not in reference.pointers
    ]
    if not unknown:
        return {}
    every = [axis for array in reference.signature.arrays for axis in array.axes]
    apart = [size for size in range(2, 24) if size not in every]
    pairs = (array.axes[:2] for array in reference.signature.real if len(array.axes) > 2)
    joined = [  # pages and their size, of which a reference may make one axis
        Extent(f"{one} * {other}", {})
        for one, other in pairs
        if not isinstance(one, Extent) and not isinstance(other, Extent) and 1 not in (one, other)
    ]
    names = list(reference.sizes)
    drawn = (
        dict(zip(names, permutation, strict=True))
        for permutation in permutations(apart, len(names))
    )

    def tells(sizes: Mapping[str, int]) -> bool:
        lengths = {length(axis, sizes) for axis in every}
        return reference.problem(sizes) is None and lengths.isdisjoint(
            extent.of(sizes) for extent in joined
        )

    sizes = next(filter(tells, drawn), None)
    if sizes is None:
        raise OpError(f"{path}: constraints: no sizes from 2 to 23 that differ fulfil them")
    case = case_of(reference.name, sizes, reference.dtypes[0], "ci")
    zeros = dict.fromkeys((array.name for array in unknown), 1)
    inputs = replace(reference, labels=lambda: zeros).inputs(case, torch.device("cpu"))
    inputs = {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }

    def runs(name: str, value: int) -> bool:
        try:
            truth(
                reference.function, {**inputs, name: torch.full_like(required(inputs, name), value)}
            )
        except Exception:  # noqa: BLE001  # whatever a reference raises
            return False
        return True

    result = {}
    for array in unknown:
        # Of axes of one length a size is meant, not what follows from it.
        named = [*joined, *sorted(every, key=lambda axis: isinstance(axis, str))]
        lengths = {length(axis, sizes): axis for axis in named}
        ends = (n for n in sorted(lengths) if not runs(array.name, n))
        end = next(ends, 0)
        if not end or not runs(array.name, end - 1):
            raise OpError(
                f"{path}: {array.name}.dtype: {str(array.kind).removeprefix('torch.')}, and "
                "nothing says which values of it are valid: the first that the reference fails on "
                "is no axis's length; write an op of your own (docs/how-to/own-op.md)"
            )
        result[array.name] = lengths[end]
    return result


def _run(
    read: _Definition, path: Path, named_inputs: frozenset[str]
) -> tuple[Function, dict[str, _Tensor]]:
    """Return the reference's function, the last one if none is called run, and its inputs.

    An optional input that it has a default for is none of them, unless that is a number or the
    input is given. Where a parameter has another name, its place says which input it is.
    """
    file = f"{path}: reference"  # what sentences name, with a line
    names = {"torch": torch, "math": math, "F": torch.nn.functional}  # others' files take for given
    space: dict[str, Any] = {"__name__": read.name, **names}
    try:
        exec(compile(read.reference, file, "exec"), space)  # noqa: S102  # a user's, as in --ops
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

    return update_wrapper(function, run)


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
