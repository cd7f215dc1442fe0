"""An op's declaration by a reference's annotations: its arguments, its outputs, and their shapes.

    def rms_norm(x: Float[Tensor, "m n"], weight: Float[Tensor, "n"], eps: float = 1e-6)
        -> Float[Tensor, "m n"]:

`Float` is the case's dtype, of a weight the weights'; `Float32` is fp32 whatever the case. `Int` is
int64, `Int32` int32, `Int8` and `UInt8` bytes, `Bool` a mask. An output may be `Float8e4m3fn`:
codes, by a cast that saturates. An axis is the name of a size, an expression of sizes (`2*n`,
`b+1`), or a number. A parameter
with a default that isn't a tensor is a number that the op fixes, and that kernels are passed.
"""

from __future__ import annotations

import ast
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import GenericAlias
from typing import Any, Literal

import torch
from torch import Tensor

from kernel_workbench.oracles.op import Case

Kind = Literal["activation", "weight"]
Constant = bool | float | str | None  # what an op fixes, and kernels are passed
_LISTED = 3  # tensors of a list
_FIXED = {
    ("float32",): torch.float32,
    ("float16",): torch.float16,
    ("bfloat16",): torch.bfloat16,
    ("int8",): torch.int8,
    ("uint8",): torch.uint8,
    ("int16",): torch.int16,
    ("int32",): torch.int32,
    ("int64",): torch.int64,
    ("bool", "bool_"): torch.bool,
    ("float8_e4m3fn",): torch.float8_e4m3fn,
}
# One letter for each axis, the last one z: what layouts name axes by.
_LETTERS = "stuvwxyz"


class OpError(Exception):
    """A reference can't be an op; the message is one sentence for the user, with file and line."""


@dataclass(frozen=True, slots=True)
class Extent:
    """An axis as long as an expression of sizes says, as `h_kv * 4`; constants: names in it."""

    text: str
    constants: Mapping[str, int] = field(hash=False)

    def of(self, sizes: Mapping[str, int]) -> int:
        """Return the length. Raises NameError, and the errors of the expression."""
        names = {"__builtins__": {}, "min": min, "max": max, **self.constants, **sizes}
        return int(eval(self.text, names))  # noqa: S307  # beside code of the same file that runs


Axis = str | int | Extent


@dataclass(frozen=True, slots=True)
class Array:
    """A tensor that an op takes or returns.

    kind: which of a case's dtypes it has, or its own. fixed: it has values of its own, packed.
    """

    name: str
    axes: tuple[Axis, ...]
    kind: Kind | torch.dtype
    fixed: bool = False

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the array's shape in a case with these sizes."""
        return tuple(length(axis, sizes) for axis in self.axes)

    def dtype(self, case: Case) -> torch.dtype:
        """Return the array's dtype in a case."""
        if isinstance(self.kind, torch.dtype):
            return self.kind
        return case.weight_dtype if self.kind == "weight" else case.dtype

    @property
    def is_real(self) -> bool:
        """Return True if the array holds floating-point numbers."""
        return not isinstance(self.kind, torch.dtype) or self.kind.is_floating_point

    @property
    def is_code(self) -> bool:
        """Say if it holds whole numbers, truth values or codes, of which a right one is exact."""
        return isinstance(self.kind, torch.dtype) and (
            self.kind.itemsize == 1 or not self.kind.is_floating_point
        )

    @property
    def letters(self) -> str:
        """A letter for each axis."""
        return _LETTERS[len(_LETTERS) - len(self.axes) :]


def length(axis: Axis, sizes: Mapping[str, int]) -> int:
    """Return an axis's length in a case with these sizes."""
    if isinstance(axis, Extent):
        return axis.of(sizes)
    return sizes[axis] if isinstance(axis, str) else axis


def names_in(axis: Axis) -> set[str]:
    """The sizes that an axis follows from."""
    if isinstance(axis, Extent):
        return set(re.findall(r"[^\W\d]\w*", axis.text)) - axis.constants.keys()
    return {axis} if isinstance(axis, str) else set()


Function = Callable[..., Any]  # tensors, or None where it changes its arguments


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments that are tensors, the numbers that are passed besides, and the outputs.

    numbers: constants, strings and None too. lists: of an argument that is a list, its tensors.
    returned: the outputs that the function returns; it may make others of its arguments.
    """

    arrays: tuple[Array, ...]
    numbers: Mapping[str, Constant]
    outputs: tuple[Array, ...]
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    returned: tuple[str, ...] = ()

    @property
    def real(self) -> tuple[Array, ...]:
        """The arguments that hold floating-point numbers."""
        return tuple(array for array in self.arrays if array.is_real)

    @classmethod
    def of(
        cls,
        function: Function,
        outputs: tuple[str, ...],
        weights: tuple[str, ...],
        updates: tuple[str, ...] = (),
    ) -> Signature:
        """Return the signature that a function's annotations state.

        Args:
            function: the reference.
            outputs: names of its outputs, none where it returns nothing.
            weights: the arguments that have a dtype of their own.
            updates: the arguments that it changes, which are outputs, too.

        Raises:
            OpError: an annotation is missing, or can't be read.
        """
        where = place_of(function)
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except Exception as error:
            raise OpError(f"{where}: its annotations can't be read ({error})") from error
        arrays: list[Array] = []
        numbers: dict[str, Constant] = {}
        lists: dict[str, tuple[str, ...]] = {}
        for name, parameter in inspect.signature(function).parameters.items():
            hint = hints.get(name)
            if isinstance(parameter.default, bool | int | float | str):
                numbers[name] = parameter.default
            elif parameter.default is None and not _tensor_of(hint):
                numbers[name] = None
            elif typing.get_origin(hint) in {list, tuple}:
                several = _several(where, name, hint, weights)
                lists[name] = tuple(array.name for array in several)
                arrays += several
            else:
                arrays.append(_array(where, name, _tensor_of(hint) or hint, weights))
        output_arrays, returned = _outputs(where, hints.get("return"), outputs, updates, arrays)
        return cls(tuple(arrays), numbers, output_arrays, lists, returned)


def place_of(function: Function) -> str:
    """Return `file:line` of where a function is written."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:  # written in C, or an object that is called
        return str(getattr(function, "__name__", type(function).__name__))
    return f"{code.co_filename}:{code.co_firstlineno}"


def _outputs(
    where: str,
    returned: Any,
    outputs: tuple[str, ...],
    updates: tuple[str, ...],
    arrays: Sequence[Array],
) -> tuple[tuple[Array, ...], tuple[str, ...]]:
    """The outputs, those that the function updates among them, and names of what it returns."""
    several = typing.get_args(returned) if isinstance(returned, GenericAlias) else (returned,)
    if returned is types.NoneType and updates:
        several, outputs = (), ()
    if len(outputs) != len(several):
        raise OpError(
            f"{where}: it returns {len(several)} tensors by its annotation, and outputs names "
            f"{len(outputs)}; name each"
        )
    pairs = zip(outputs, several, strict=True)
    arrays_out = {name: _array(where, name, hint, ()) for name, hint in pairs}
    arguments = {array.name: array for array in arrays}
    for name in updates:
        if name not in arguments:
            raise OpError(
                f"{where}: updates names {name!r}, which is no tensor among its arguments; "
                f"there are {', '.join(arguments)}"
            )
        if name in arrays_out and arrays_out[name].axes != arguments[name].axes:
            raise OpError(
                f"{where}: the output {name} has other axes than the argument that it is; "
                "annotate both alike"
            )
        arrays_out[name] = arguments[name]
    return tuple(arrays_out.values()), outputs


def _tensor_of(hint: Any) -> Any:
    """The tensor that an argument is where it isn't None; None where it can't be None."""
    parts = typing.get_args(hint)
    if types.NoneType not in parts:
        return None
    tensors = [part for part in parts if part is not types.NoneType]
    return tensors[0] if len(tensors) == 1 and hasattr(tensors[0], "dim_str") else None


def _several(where: str, name: str, hint: Any, weights: tuple[str, ...]) -> list[Array]:
    """The tensors of a list, three where nothing says how many; of a tuple each."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is list or parts[-1:] == (Ellipsis,):
        parts = parts[:1] * _LISTED
    tensors = [_array(where, f"{name}_{place}", part, weights) for place, part in enumerate(parts)]
    if not tensors:
        raise OpError(
            f"{where}: {name} says nothing of what it holds; write list[Float[Tensor, ...]]"
        )
    return [replace(array, kind="weight") if name in weights else array for array in tensors]


def _is_arithmetic(text: str) -> bool:
    """Say whether it is an expression of names and whole numbers, and nothing else."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    allowed = ast.Expression | ast.BinOp | ast.Name | ast.Constant | ast.operator | ast.expr_context
    return all(
        isinstance(node, allowed) and isinstance(getattr(node, "value", 0), int)
        for node in ast.walk(tree)
    )


def _array(where: str, name: str, hint: Any, weights: tuple[str, ...]) -> Array:
    if hint is str:
        raise OpError(
            f'{where}: {name} is a string without a default; give it one, as {name}: str = "silu", '
            "which is the op's constant"
        )
    axes_said, dtypes = getattr(hint, "dim_str", None), getattr(hint, "dtypes", ())
    if axes_said is None or getattr(hint, "array_type", None) is not Tensor:
        raise OpError(
            f'{where}: {name} has no shape; annotate it with its sizes, as Float[Tensor, "m n"]'
        )
    axes: list[Axis] = []
    for axis in axes_said.split():
        if axis.isidentifier() or axis.isdecimal():
            axes.append(int(axis) if axis.isdecimal() else axis)
        elif _is_arithmetic(axis):
            axes.append(Extent(axis, {}))
        else:
            raise OpError(
                f"{where}: {name} has an axis {axis!r}; write a size's name, a number, or an "
                "expression of them without spaces, as 2*n"
            )
    fixed = _FIXED.get(tuple(dtypes))
    if fixed is None and "int64" in dtypes:
        fixed = torch.int64
    if fixed is None and "float32" not in dtypes:
        allowed = "Float, Float32, Int, Int32, Int8, UInt8, Bool or Float8e4m3fn"
        raise OpError(f"{where}: {name} is of a type that no case has; write {allowed}")
    return Array(name, tuple(axes), fixed or ("weight" if name in weights else "activation"))
