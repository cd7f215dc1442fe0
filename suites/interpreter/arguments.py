"""Give a kernel's arguments the types and values that they have in a compiled kernel.

The stock interpreter ignores every annotation but constexpr: `n: tl.int64` is 32 bits wide if its
value fits, so that an offset overflows which doesn't overflow in a compiled kernel. A float stays
Python's own and takes any tensor's type, and 1 is a tensor. A compiled kernel on Triton 3.6 to 3.9
has these types (`create_function_from_signature`; tests/suites/interpreter/test_arguments.py
compares them):

an annotation that names a type    that type, 1 and floats too
otherwise, an integer              int32, int64 or uint64, the first that holds it
an integer that is 1               a constant, as if declared tl.constexpr, unless in
                                   do_not_specialize; in a tuple always
a bool                             int1
a float                            float32

A device function's annotations mean nothing: it gets the kernel's values. The launcher cuts an
integer to the bits of its annotated type, and truncates a float to bfloat16. It refuses a number of
over 64 bits, and a negative number for an unsigned type (3.6, through PyArg_ParseTuple, accepts the
latter).

A grid function and the hooks before a launch get the arguments as the caller passed them.
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
"""The names in `triton.runtime.jit` that decide an argument's type."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A number that is passed to a kernel.

    kind       Triton's name of its type, for example "i64", "fp32" or "constexpr"
    is_passed  True if the caller passed the number; False for a default
    """

    name: str
    value: Any
    kind: str
    is_passed: bool = True


def mend(interpreter: Any) -> None:
    """Give arguments their compiled types in `triton.runtime.interpreter`, from here on."""
    function = interpreter.InterpretedFunction
    stock_run, stock_hook = function.run, function.add_pre_run_hook
    stock_convert, handle = interpreter._implicit_cvt, interpreter.TensorHandle
    parameters_of: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()

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
        parameters = parameters_of.get(self)
        if parameters is None:
            parameters = parameters_of[self] = _parameters(self)
        named = dict(zip(parameters, args, strict=False))
        typed = [_typed(parameters[name], value) for name, value in named.items()]
        passed = {**named, **{name: kwargs[name] for name in kwargs if name in parameters}}
        for name, parameter in parameters.items():
            if name in kwargs:
                kwargs[name] = _typed(parameter, kwargs[name])
            elif name not in named and parameter.has_default:
                passed[name] = parameter.default
                default = _typed(parameter, parameter.default, is_passed=False)
                if isinstance(default, Argument):
                    kwargs[name] = default
        of_passed = (lambda _: grid(passed)) if callable(grid) else grid
        rest = args[len(typed) :]
        return stock_run(self, *typed, *rest, grid=of_passed, warmup=warmup, **kwargs)

    def add_pre_run_hook(self: Any, hook: Any) -> None:
        def as_passed(*args: Any, **kwargs: Any) -> None:
            passed = {name: x for name, x in kwargs.items() if getattr(x, "is_passed", True)}
            hook(*map(_plain, args), **{name: _plain(value) for name, value in passed.items()})

        stock_hook(self, as_passed)

    interpreter._implicit_cvt = convert
    function.run, function.add_pre_run_hook = run, add_pre_run_hook


def _parameters(function: Any) -> dict[str, Any]:
    """Return Triton's own description of each parameter of an interpreted function."""
    kept, parameters = function.kwargs.get("do_not_specialize") or (), {}
    for place, (name, parameter) in enumerate(inspect.signature(function.fn).parameters.items()):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            break
        parameters[name] = jit.KernelParam(
            place,
            parameter,
            do_not_specialize=place in kept or name in kept,
            do_not_specialize_on_alignment=False,
        )
    return parameters


def _typed(parameter: Any, value: Any, *, is_passed: bool = True) -> Any:
    """Return a parameter's value, with a type if it is a number or a tuple with numbers."""
    name = parameter.name
    if parameter.annotation == _CONSTANT:  # the stock interpreter doesn't convert constants
        return value
    if isinstance(value, tuple):
        return _mapped(value, lambda element: _element(name, element))
    if not isinstance(value, _NUMBERS):
        return value
    if parameter.is_constexpr:
        return Argument(name, value, _CONSTANT, is_passed)
    kind = parameter.annotation_type
    if kind not in _TYPES:
        kind = jit.mangle_type(value, specialize=not parameter.do_not_specialize)
    elif kind[0] in "iu":
        _refuse_for_launcher(name, value, kind)
    return Argument(name, value, kind, is_passed)


def _element(name: str, value: Any) -> Any:
    """Return a tuple's element with its type: it has no annotation, and 1 is a constant."""
    if isinstance(value, tuple):
        return _mapped(value, lambda element: _element(name, element))
    if not isinstance(value, _NUMBERS):
        return value
    return Argument(name, value, jit.mangle_type(value, specialize=True))


def _plain(argument: Any) -> Any:
    """Return an argument as the caller passed it."""
    if isinstance(argument, tuple):
        return _mapped(argument, _plain)
    return argument.value if isinstance(argument, Argument) else argument


def _mapped(elements: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to a tuple's elements; a named tuple keeps its type."""
    mapped = map(function, elements)
    return type(elements)(*mapped) if hasattr(elements, "_fields") else type(elements)(mapped)


def _refuse_for_launcher(name: str, value: float, kind: str) -> None:
    """Raise as a launch does: for a float, a number of over 64 bits, or one below 0."""
    if isinstance(value, float):
        raise TypeError(f"argument {name} is {value} and annotated {_TYPES[kind]}; give an integer")
    low, high = (-(2**63), 2**63) if kind[0] == "i" else (0, 2**64)
    if not low <= value < high:
        raise OverflowError(f"argument {name} is {value}, which {_TYPES[kind]} doesn't hold")


def _data(argument: Argument) -> np.ndarray[Any, Any]:
    """Return an argument's value in its type, as a launcher passes it."""
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
