"""Mend operations that the stock interpreter computes unlike a GPU, and refuse missing ones.

Comparisons return int1; the stock handle has the type of the operands, so that a scalar comparison
spread over a block becomes integers, and a mask of integers picks lanes by their number. The
maximum and minimum of a number and NaN is the number (`propagate_nan` NONE, the default; for clamp
too). tl.fma rounds once: narrow types are computed in float64 and then rounded.

tl.sum adds in an order that depends on the shape alone; numpy's order also depends on the memory
layout of the block, which depends on the masks of its operands.

A scalar load's `other` of 0 counts as absent in Triton's own code, which tests if it is true.

The elementary functions of libdevice are computed in float64, and rounded: a GPU's are within a few
units in the last place. An operation that the interpreter can't run (the rest of libdevice, inline
assembly) is refused in one sentence that says what to do instead.
"""

from __future__ import annotations

import importlib
import sys
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import triton
import triton.language as tl

from kernel_workbench.suites.interpreter import gluon


class NotInterpretedError(AttributeError, NotImplementedError):
    """A kernel uses an operation that Triton's interpreter can't run."""


INSTEAD = "say Domain(interpretable=False) and run it on a GPU"
GIVEN: list[bool] = []
"""True if the load in progress has an `other`."""

_EXTRA = "triton.language.extra."
_LIBRARIES = ("libdevice", "cuda.libdevice", "hip.libdevice")
# Functions of one number; a GPU has none of these names for a half or an integer either.
_ELEMENTARY = {
    name: getattr(np, name)
    for name in ("exp", "exp2", "expm1", "log", "log1p", "log2", "sqrt", "tanh", "sin", "cos")
} | {"rsqrt": lambda x: 1 / np.sqrt(x)}
_ELEMENTWISE = {
    "create_extern_elementwise": "a function of an external library",
    "create_inline_asm": "inline assembly",
}


def mend(interpreter: Any) -> None:
    """Mend `triton.runtime.interpreter`, for every kernel launched from here on."""
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    for name in dir(builder):
        if name.startswith(("create_icmp", "create_fcmp")):
            setattr(builder, name, _comparison(getattr(builder, name), handle))
    builder.create_maxnumf = _binary(np.fmax, handle)
    builder.create_minnumf = _binary(np.fmin, handle)
    builder.create_clampf = _clamp(builder.create_clampf, interpreter._ir.PROPAGATE_NAN.NONE)
    builder.create_fma = _fused(builder.create_fma, handle)
    _mend_sum(interpreter)
    type(interpreter.interpreter_semantic).dot_scaled = _refusing("tl.dot_scaled")
    _refuse_missing(builder)


def _mend_sum(interpreter: Any) -> None:
    stock = interpreter.ReduceOps.sum

    def total(self: Any, block: Any) -> Any:
        block.handle.data = np.ascontiguousarray(block.handle.data)
        return stock(self, block)

    interpreter.ReduceOps.sum = total


def _comparison(stock: Any, handle: Any) -> Any:
    def compare(self: Any, lhs: Any, rhs: Any) -> Any:
        return handle(stock(self, lhs, rhs).data, tl.int1)

    return compare


def _binary(operation: Any, handle: Any) -> Any:
    def compute(_: Any, lhs: Any, rhs: Any) -> Any:
        return handle(operation(lhs.data, rhs.data), lhs.dtype.scalar)

    return compute


def _clamp(stock: Any, none: Any) -> Any:
    def clamp(self: Any, x: Any, low: Any, high: Any, propagate_nan: Any) -> Any:
        if propagate_nan != none:
            return stock(self, x, low, high, propagate_nan)
        return self.create_minnumf(self.create_maxnumf(x, low), high)

    return clamp


def _fused(stock: Any, handle: Any) -> Any:
    def fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        kind = z.data.dtype
        if kind.itemsize > 4 or not z.dtype.scalar.is_floating():
            return stock(self, x, y, z)
        wide = x.data.astype(np.float64) * y.data.astype(np.float64) + z.data.astype(np.float64)
        return handle(wide.astype(kind), z.dtype.scalar)

    return fma


def _refuse_missing(builder: Any) -> None:
    for name, what in _ELEMENTWISE.items():
        setattr(builder, name, _refusing(what))
    builder.__getattr__ = _without
    gluon.mend()
    for library in _LIBRARIES:
        importlib.import_module(f"{_EXTRA}{library}")
    # Triton creates each package among them twice; a user's import may find either.
    packages = [package for package in vars(tl.extra).values() if isinstance(package, ModuleType)]
    modules = [module for name, module in sys.modules.items() if name.startswith(_EXTRA)]
    for module in (*modules, *packages):
        _mend_functions(module, module.__name__.rpartition(".")[2])


def _mend_functions(module: ModuleType, of: str) -> None:
    """Compute or refuse the functions of a module of triton.language.extra."""
    for name, function in list(vars(module).items()):
        # The functions in extra.libdevice that choose between GPUs by name are plain stubs.
        stub = of == "libdevice" and isinstance(function, FunctionType)
        if tl.core.is_builtin(function) or (stub and not name.startswith("_")):
            refusing = _refusing(f"{of}.{name}")
            is_elementary = of == "libdevice" and name in _ELEMENTARY
            setattr(module, name, _elementary(name, refusing) if is_elementary else refusing)


def _elementary(name: str, refusing: Any) -> Any:
    def compute(x: Any, **_: Any) -> Any:
        if not (isinstance(x, tl.tensor) and x.dtype in {tl.float32, tl.float64}):
            return refusing()
        values = _ELEMENTARY[name](x.handle.data.astype(np.float64)).astype(x.handle.data.dtype)
        return tl.tensor(type(x.handle)(values, x.dtype), x.type)

    return compute


def _refusing(what: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotInterpretedError(_sentence(what))

    return refuse


def _without(_: Any, name: str) -> Any:
    """Refuse an operation that a builder lacks; other missing attributes raise AttributeError."""
    if not name.startswith("create_"):
        raise AttributeError(name)
    raise NotInterpretedError(_sentence(f"the operation {name.removeprefix('create_')}"))


def _sentence(what: str) -> str:
    return (
        f"Triton {triton.__version__}'s interpreter can't run {what}; use functions of "
        f"triton.language (tl.exp, tl.sigmoid, tl.math.erf), or {INSTEAD}"
    )
