"""The strict interpreter: behaviour that a GPU leaves undefined is an error, with its line.

After `install`, every launch of a Triton kernel in the interpreter is checked for

- `own tensor`: a lane that reads or writes outside of the tensor that its pointer was derived from
  (launch.py): another argument's memory, a gap between rows, or a single element past the end; and
  an access that isn't aligned to its own size;
- `integer overflow`: an access by an offset that didn't fit its 32 bits (overflow.py);
- `unwritten memory`: a load of memory that no store has written (initialisation.py);
- `two writers`, `reader and writer`: two programs that access an element without an order between
  them, one by a store (region.py); the message says if both store the same value, which a kernel
  may declare;
- `masked lanes`: a masked lane of a load without `other` is undefined, so it gets NaN, or an
  integer that is no valid index, instead of the stock zero; the load is noted (masked_lanes.py);
- `promises`: a false tl.multiple_of, tl.max_contiguous or tl.max_constancy (promises.py).

The checks don't find a race within a program, since the interpreter has no threads; a plain load of
a word that other programs update atomically; or two lanes of one store with one address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import triton.language as tl
from torch import Tensor

from kernel_workbench.suites.interpreter.arguments import Argument
from kernel_workbench.suites.interpreter.strict import (
    access,
    atomics,
    initialisation,
    launch,
    overflow,
    probes,
    promises,
)
from kernel_workbench.suites.interpreter.strict.launch import STATE, IllegalAccessError

__all__ = ["CHECKS", "IllegalAccessError", "install", "watched"]

CHECKS = (
    "own tensor",
    "integer overflow",
    "unwritten memory",
    "two writers",
    "reader and writer",
    "masked lanes",
    "promises",
)


@contextmanager
def watched(
    inputs: Iterable[object] = (), *, same_stores: bool = False
) -> Iterator[Callable[[], str | None]]:
    """Check launches in the block if the interpreter is strict; yield a function of the violation.

    Pointers that are read from memory may point into the tensors of `inputs`. With `same_stores`,
    several programs may store the same value to one element.
    """
    STATE.violation, STATE.same_stores = None, same_stores
    STATE.memory = tuple(_bytes(value) for value in inputs if isinstance(value, Tensor))
    initialisation.watch(on=STATE.missing is not None)
    try:
        yield lambda: STATE.violation
    finally:
        STATE.launches.clear()
        STATE.launch, STATE.memory = None, ()
        initialisation.watch(on=False)


def _bytes(tensor: Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def install() -> tuple[str, ...]:
    """Make the interpreter strict, on top of `repairs.install`.

    Returns the members of CHECKS that aren't in force on this version of Triton. If a sound kernel
    fails, these are all CHECKS, and the interpreter stays unchanged.
    """
    from triton.runtime import interpreter  # noqa: PLC0415  (read only where it is in use)

    if STATE.missing is not None:
        return STATE.missing
    patched = (
        interpreter,
        interpreter.InterpreterBuilder,
        interpreter.GridExecutor,
        interpreter.TensorHandle,
    )
    before = [(owner, dict(vars(owner))) for owner in patched]
    if _installed(interpreter):
        STATE.missing = probes.not_in_force()
    else:
        STATE.missing = CHECKS
        for owner, attributes in before:
            for name, value in attributes.items():
                if vars(owner)[name] is not value:
                    setattr(owner, name, value)
    return STATE.missing


def _installed(interpreter: Any) -> bool:
    """Make the interpreter strict; return True if that worked and a sound kernel passes."""
    try:
        _install_launches(interpreter)
        access.install(interpreter)
        atomics.install(interpreter)
        overflow.install(interpreter)
        promises.install(interpreter)
    except AttributeError:  # this version of Triton calls other functions
        return False
    return not probes.sound_kernel_fails()


def _install_launches(interpreter: Any) -> None:
    """Track launches, programs, and the arguments that pointers come from."""
    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    call, convert = executor.__call__, interpreter._implicit_cvt
    set_program, to_integer, bitcast = (
        builder.set_grid_idx,
        builder.create_ptr_to_int,
        builder.create_bitcast,
    )

    def launched(self: Any, *args: Any, **kwargs: Any) -> Any:
        named = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        launch.begin(self.fn.__name__, named)
        try:
            return call(self, *args, **kwargs)
        finally:
            overflow.forget()
            launch.end()

    def tagged(argument: Any) -> Any:
        converted = convert(argument)
        if STATE.launch is not None and hasattr(argument, "data_ptr"):
            handle = converted.handle
            handle.data = handle.data + np.uint64(STATE.launch.argument(argument))
        elif isinstance(argument, Argument) and isinstance(converted, tl.tensor):
            overflow.passed(argument, converted.handle)
        return converted

    def started(self: Any, x: int, y: int, z: int) -> None:
        set_program(self, x, y, z)
        if STATE.launch is not None:
            STATE.launch.place = x, y, z
            STATE.launch.order.begin((x, y, z))
            overflow.begin()

    def pointer_to_integer(self: Any, pointer: Any, target: Any) -> Any:
        address = interpreter.TensorHandle(pointer.data & launch.ADDRESS, pointer.dtype)
        return to_integer(self, address, target)

    def recast(self: Any, source: Any, target: Any) -> Any:
        if isinstance(source.dtype.scalar, tl.pointer_type) and STATE.launch is not None:
            STATE.launch.recast = True
        return bitcast(self, source, target)

    executor.__call__ = launched
    interpreter._implicit_cvt = tagged
    interpreter._interpreter = _Memory(interpreter._interpreter)
    builder.set_grid_idx = started
    builder.create_ptr_to_int = pointer_to_integer
    builder.create_bitcast = recast


class _Memory:
    """Triton's loads and stores, with the tags of pointers removed."""

    def __init__(self, stock: Any) -> None:
        self._stock = stock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stock, name)

    def load(self, pointers: Any, *rest: Any) -> Any:
        return self._stock.load(pointers & launch.ADDRESS, *rest)

    def store(self, pointers: Any, *rest: Any) -> Any:
        return self._stock.store(pointers & launch.ADDRESS, *rest)

    def atomic_rmw(self, operation: Any, pointers: Any, *rest: Any) -> Any:
        return self._stock.atomic_rmw(operation, pointers & launch.ADDRESS, *rest)

    def atomic_cas(self, pointers: Any, *rest: Any) -> Any:
        return self._stock.atomic_cas(pointers & launch.ADDRESS, *rest)
