"""A kernel's arguments in the types, and with the values, that they have when compiled.

The stock interpreter knows no annotation but constexpr: `n: tl.int64` is 32 bits wide to it where
its value fits, so that an offset overflows that compiled doesn't. A float stays Python's own, which
gives way to any tensor's type, and 1 is a tensor. Compiled, on Triton 3.6 to 3.9 alike
(`create_function_from_signature`; tests/suites/interpreter/test_arguments.py holds it against
them):

an annotation that names a type    that type, 1 and floats too
otherwise, an integer              int32, int64 or uint64, the first that holds it
an integer that is 1               a constant, as if declared tl.constexpr, unless in
                                   do_not_specialize; in a tuple always
a bool                             int1
a float                            float32

A device function's annotations mean nothing: it has what the kernel passes. The launcher cuts an
integer to the bits of its annotated type, and a float to bfloat16 by truncation; what 64 bits don't
hold, and a negative number for an unsigned type, it refuses (3.6, through PyArg_ParseTuple, refuses
the former, and takes the latter).

A grid that is a function, and the hooks before a launch, see the arguments as they were passed.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.runtime import jit

_TYPES = {
    "u1": tl.int1,
    **{f"i{bits}": getattr(tl, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": getattr(tl, f"uint{bits}") for bits in (8, 16, 32, 64)},
    "fp16": tl.float16,
    "bf16": tl.bfloat16,
    "fp32": tl.float32,
    "fp64": tl.float64,
}
_CONSTANT = "constexpr"
_NUMBERS = (bool, int, float)

NEEDED = ("KernelParam", "mangle_type")
"""What of `triton.runtime.jit` says which type an argument has."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A number on its way into a kernel.

    kind   Triton's name of its type: "i64", "fp32", "constexpr"
    given  whether the caller passed it; a default otherwise
    """

    name: str
    value: Any
    kind: str
    given: bool = True


def mend(interpreter: Any) -> None:
    """Give arguments their compiled types in `triton.runtime.interpreter`, from here on."""
    function = interpreter.InterpretedFunction
    stock_run, stock_hook = function.run, function.add_pre_run_hook
    stock_convert, handle = interpreter._implicit_cvt, interpreter.TensorHandle
    known: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()

    def convert(argument: Any) -> Any:
        if isinstance(argument, Argument):
            if argument.kind not in _TYPES:
                return argument.value
            kind = _TYPES[argument.kind]
            return tl.tensor(handle(_data(argument), kind), kind)
        if isinstance(argument, _NUMBERS):  # within a descriptor
            return convert(Argument("of a descriptor", argument, jit.mangle_type(argument)))
        return stock_convert(argument)

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        parameters = known.get(self)
        if parameters is None:
            parameters = known[self] = _parameters(self)
        named = dict(zip(parameters, args, strict=False))
        typed = [_typed(parameters[name], value) for name, value in named.items()]
        passed = {**named, **{name: kwargs[name] for name in kwargs if name in parameters}}
        for name, parameter in parameters.items():
            if name in kwargs:
                kwargs[name] = _typed(parameter, kwargs[name])
            elif name not in named and parameter.has_default:
                passed[name] = parameter.default
                default = _typed(parameter, parameter.default, given=False)
                if isinstance(default, Argument):
                    kwargs[name] = default
        of_passed = (lambda _: grid(passed)) if callable(grid) else grid
        rest = args[len(typed) :]
        return stock_run(self, *typed, *rest, grid=of_passed, warmup=warmup, **kwargs)

    def add_pre_run_hook(self: Any, hook: Any) -> None:
        def as_passed(*args: Any, **kwargs: Any) -> None:
            given = {name: each for name, each in kwargs.items() if getattr(each, "given", True)}
            hook(*map(_plain, args), **{name: _plain(each) for name, each in given.items()})

        stock_hook(self, as_passed)

    interpreter._implicit_cvt = convert
    function.run, function.add_pre_run_hook = run, add_pre_run_hook


def _parameters(function: Any) -> dict[str, Any]:
    """Triton's own reading of each parameter of an interpreted function."""
    kept, found = function.kwargs.get("do_not_specialize") or (), {}
    for place, (name, each) in enumerate(inspect.signature(function.fn).parameters.items()):
        if each.kind is inspect.Parameter.VAR_POSITIONAL:
            break
        found[name] = jit.KernelParam(
            place,
            each,
            do_not_specialize=place in kept or name in kept,
            do_not_specialize_on_alignment=False,
        )
    return found


def _typed(parameter: Any, value: Any, *, given: bool = True) -> Any:
    """What is passed for a parameter, with its type where it is a number or holds some."""
    name = parameter.name
    if parameter.annotation == _CONSTANT:  # which the stock interpreter doesn't convert
        return value
    if isinstance(value, tuple):
        return _each(value, lambda element: _element(name, element))
    if not isinstance(value, _NUMBERS):
        return value
    if parameter.is_constexpr:
        return Argument(name, value, _CONSTANT, given)
    kind = parameter.annotation_type
    if kind not in _TYPES:
        kind = jit.mangle_type(value, specialize=not parameter.do_not_specialize)
    elif kind[0] in "iu":
        _refuse_what_no_launcher_takes(name, value, kind)
    return Argument(name, value, kind, given)


def _element(name: str, value: Any) -> Any:
    """An element of a tuple: of no annotation, and a constant where it is 1."""
    if isinstance(value, tuple):
        return _each(value, lambda element: _element(name, element))
    if not isinstance(value, _NUMBERS):
        return value
    return Argument(name, value, jit.mangle_type(value, specialize=True))


def _plain(argument: Any) -> Any:
    """An argument as the caller passed it."""
    if isinstance(argument, tuple):
        return _each(argument, _plain)
    return argument.value if isinstance(argument, Argument) else argument


def _each(elements: Any, function: Callable[[Any], Any]) -> Any:
    """A tuple of the same type, with names where it has some."""
    mapped = map(function, elements)
    return type(elements)(*mapped) if hasattr(elements, "_fields") else type(elements)(mapped)


def _refuse_what_no_launcher_takes(name: str, value: float, kind: str) -> None:
    """Raise where a launch would: by a float, a number of over 64 bits, or one below 0."""
    if isinstance(value, float):
        raise TypeError(f"argument {name} is {value} and annotated {_TYPES[kind]}; give an integer")
    low, high = (-(2**63), 2**63) if kind[0] == "i" else (0, 2**64)
    if not low <= value < high:
        raise OverflowError(f"argument {name} is {value}, which {_TYPES[kind]} doesn't hold")


def _data(argument: Argument) -> np.ndarray[Any, Any]:
    """An argument's value in its type, as a launcher hands it over."""
    kind, value = argument.kind, argument.value
    if kind == "bf16":
        bits = np.array([value], np.float32).view(np.uint32) >> np.uint32(16)
        return bits.astype(np.uint16).view(ml_dtypes.bfloat16)
    if kind[0] == "f":
        return np.array([value], np.dtype(f"f{int(kind[2:]) // 8}"))
    if kind == "u1":
        return np.array([bool(value & 1)])
    width = int(kind[1:])
    cut = np.array([value & (2**width - 1)], np.dtype(f"u{width // 8}"))
    return cut.view(np.dtype(f"{kind[0]}{width // 8}"))
