"""What a reference's annotations say of an op: its arguments, its outputs, and their shapes.

    def rms_norm(x: Float[Tensor, "m n"], weight: Float[Tensor, "n"], eps: float = 1e-6)
        -> Float[Tensor, "m n"]:

`Float` is the case's dtype, of a weight the weights'; `Float32` is fp32 whatever the case. `Int` is
int64, `Int32` int32, `Bool` a mask. An output may be `Float8e4m3fn`: codes, by a cast that
saturates. An axis is the name of a size, so many times it (`2*n`), or a number. What has a default
and isn't a tensor is a number that the op fixes, and that kernels are passed.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import GenericAlias
from typing import Any, Literal

import torch
from torch import Tensor

from kernel_workbench.oracles.op import Case

Kind = Literal["activation", "weight"]
_FIXED = {
    ("float32",): torch.float32,
    ("float16",): torch.float16,
    ("bfloat16",): torch.bfloat16,
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
    constants: Mapping[str, int]

    def of(self, sizes: Mapping[str, int]) -> int:
        """How long it is. Raises NameError, and whatever else the expression does."""
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
        """Its shape, of a case with these sizes."""
        return tuple(length(each, sizes) for each in self.axes)

    def dtype(self, case: Case) -> torch.dtype:
        """Its dtype, in a case."""
        if isinstance(self.kind, torch.dtype):
            return self.kind
        return case.weight_dtype if self.kind == "weight" else case.dtype

    @property
    def is_real(self) -> bool:
        """Whether it holds floating-point numbers."""
        return not isinstance(self.kind, torch.dtype) or self.kind.is_floating_point

    @property
    def letters(self) -> str:
        """A letter for each axis."""
        return _LETTERS[len(_LETTERS) - len(self.axes) :]


def length(axis: Axis, sizes: Mapping[str, int]) -> int:
    """How long an axis is, of a case with these sizes."""
    if isinstance(axis, Extent):
        return axis.of(sizes)
    return sizes[axis] if isinstance(axis, str) else axis


Function = Callable[..., Tensor | tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments that are tensors, the numbers that are passed besides, and the outputs."""

    arrays: tuple[Array, ...]
    numbers: Mapping[str, float]
    outputs: tuple[Array, ...]

    @property
    def real(self) -> tuple[Array, ...]:
        """The arguments that hold floating-point numbers."""
        return tuple(each for each in self.arrays if each.is_real)

    @classmethod
    def of(
        cls, function: Function, outputs: tuple[str, ...], weights: tuple[str, ...]
    ) -> Signature:
        """What a function's annotations say.

        outputs: their names. weights: the arguments that have a dtype of their own. Raises OpError.
        """
        where = place_of(function)
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except Exception as error:
            raise OpError(f"{where}: its annotations can't be read ({error})") from error
        arrays: list[Array] = []
        numbers: dict[str, float] = {}
        for name, parameter in inspect.signature(function).parameters.items():
            if isinstance(parameter.default, bool | int | float):
                numbers[name] = parameter.default
            else:
                arrays.append(_array(where, name, hints.get(name), weights))
                if arrays[-1].kind == torch.float8_e4m3fn:
                    raise OpError(f"{where}: {name} is in fp8, which outputs alone can be")
        returned = hints.get("return")
        several = typing.get_args(returned) if isinstance(returned, GenericAlias) else (returned,)
        if len(outputs) != len(several):
            raise OpError(
                f"{where}: it returns {len(several)} tensors by its annotation, and outputs names "
                f"{len(outputs)}; name each"
            )
        made = tuple(_array(where, *each, ()) for each in zip(outputs, several, strict=True))
        return cls(tuple(arrays), numbers, made)


def place_of(function: Function) -> str:
    """`file:line` of where a function is written."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:  # written in C, or an object that is called
        return str(getattr(function, "__name__", type(function).__name__))
    return f"{code.co_filename}:{code.co_firstlineno}"


def _array(where: str, name: str, hint: Any, weights: tuple[str, ...]) -> Array:
    if types.NoneType in typing.get_args(hint):
        raise OpError(
            f"{where}: {name} may be None, and an op's arguments are always there; write one op "
            f"with {name}, and one without"
        )
    if isinstance(hint, GenericAlias):
        raise OpError(
            f"{where}: {name} is a {typing.get_origin(hint).__name__}; an op takes tensors, an "
            "argument for each, and numbers that have a default"
        )
    if hint is str:
        raise OpError(
            f"{where}: {name} is a string, which no kernel is passed; write an op for each of its "
            "values"
        )
    axes_said, dtypes = getattr(hint, "dim_str", None), getattr(hint, "dtypes", ())
    if axes_said is None or getattr(hint, "array_type", None) is not Tensor:
        raise OpError(
            f'{where}: {name} has no shape; annotate it with its sizes, as Float[Tensor, "m n"]'
        )
    axes: list[Axis] = []
    for each in axes_said.split():
        factor, star, size = each.rpartition("*")
        if star and factor.isdecimal() and size.isidentifier():
            axes.append(Extent(each, {}))
            continue
        if not (each.isidentifier() or each.isdecimal()):
            raise OpError(f"{where}: {name} has an axis {each!r}; write a size's name, or a number")
        axes.append(int(each) if each.isdecimal() else each)
    fixed = _FIXED.get(tuple(dtypes))
    if fixed is None and "int64" in dtypes:
        fixed = torch.int64
    if fixed is None and "float32" not in dtypes:
        known = "Float, Float32, Int, Int32 or Bool, of an output Float8e4m3fn"
        raise OpError(f"{where}: {name} is of a type that no case has; write {known}")
    return Array(name, tuple(axes), fixed or ("weight" if name in weights else "activation"))
