"""The strict interpreter: what a GPU leaves undefined is an illegal access, said where it is.

Under `install` every launch of a Triton kernel in the interpreter is watched. Found are

- `own tensor`: a lane that reads or writes outside of the tensor that its pointer was derived from
  (launch.py), be it another argument's memory, a gap between its own rows, or a single element
  past its end; and an access that isn't aligned to its own size;
- `integer overflow`: one through an offset that didn't fit its 32 bits (overflow.py);
- `unwritten memory`: a load of what nothing has written (initialisation.py);
- `two writers`, `reader and writer`: programs that meet at an element with no order between them,
  one of them storing (region.py); of two that store the same value it says so, and a
  kernel may declare that it means to;
- `masked lanes`: one without `other` is undefined, so it gets NaN, or an integer that no index is,
  in place of the stock interpreter's zero; the load is noted (masked_lanes.py);
- `promises`: tl.multiple_of, tl.max_contiguous or tl.max_constancy of what isn't so (promises.py).

What isn't seen: a race within a program, whose threads the interpreter doesn't have; a plain load
of a word that others update atomically; two lanes of one store with one address.
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
    """Check launches inside, where the strict interpreter is on; yields the first violation.

    inputs: the tensors among them are memory that a pointer read from memory may point into.
    same_stores: programs may store the same value to one element.
    """
    STATE.violation, STATE.same_stores = None, same_stores
    STATE.memory = tuple(_bytes(each) for each in inputs if isinstance(each, Tensor))
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
    """Make the interpreter strict, on top of `interpreter.install`.

    Returns those of CHECKS that aren't in force on this version of Triton. Where a kernel without
    a fault doesn't come through, that is all of them, and the interpreter is as it was.
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
    before = [(each, dict(vars(each))) for each in patched]
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
    """Whether the interpreter could be made strict, and computes as before where nothing is."""
    try:
        _install_launches(interpreter)
        access.install(interpreter)
        atomics.install(interpreter)
        overflow.install(interpreter)
        promises.install(interpreter)
    except AttributeError:  # a version that calls something else than those we know
        return False
    return not probes.sound_kernel_fails()


def _install_launches(interpreter: Any) -> None:
    """Tell launches, programs and what pointers come from."""
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
    """Triton's loads and stores, with the tags of pointers taken off."""

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
