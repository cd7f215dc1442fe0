"""Check atomic operations as loads and stores, and derive the order of programs from them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from kernel_workbench.suites.interpreter.strict.access import check_lanes, element_of, lanes_of
from kernel_workbench.suites.interpreter.strict.initialisation import Array
from kernel_workbench.suites.interpreter.strict.launch import ADDRESS, STATE, TAG, Launch
from kernel_workbench.suites.interpreter.strict.region import ProgramOrder

# The verb of each operation in messages; the last three operations came with Triton 3.9.
_OPERATIONS = {
    "create_atomic_rmw": "updates",
    "create_atomic_cas": "updates",
    "create_atomic_load": "updates",
    "create_atomic_poll": "updates",
    "create_atomic_store": "exchanges",
}


def install(interpreter: Any) -> None:
    """Check every atomic operation of `triton.runtime.interpreter` from here on."""
    builder, result = interpreter.InterpreterBuilder, _result_type(interpreter.TensorHandle)
    for name, did in _OPERATIONS.items():
        stock = getattr(builder, name, None)
        if stock is not None and {"ptr", "sem", "scope"} <= set(
            inspect.signature(stock).parameters
        ):
            setattr(builder, name, _checked(stock, did, interpreter, result))


def _result_type(handle: Any) -> Any:
    class Result(handle):  # type: ignore[misc]
        """An atomic's result, which calls `look` when its data are first read."""

        @property
        def data(self) -> Any:
            look = self.__dict__.pop("look", None)
            if look is not None:
                look()
            return self.__dict__["data"]

        @data.setter
        def data(self, value: Any) -> None:
            self.__dict__["data"] = value

    return Result


def _checked(stock: Any, did: str, interpreter: Any, result: Any) -> Any:
    signature, np_dtype = inspect.signature(stock), interpreter._get_np_dtype
    exchange = interpreter._ir.ATOMIC_OP.XCHG

    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        launch = STATE.launch
        if launch is None:
            return stock(self, *args, **kwargs)
        arguments = signature.bind(self, *args, **kwargs).arguments
        pointers = arguments["ptr"]
        every = np.ones(pointers.data.shape, bool)
        lanes = lanes_of(arguments["mask"], pointers) if "mask" in arguments else every
        does = "exchanges" if arguments.get("rmwOp") == exchange else did
        check_lanes(launch, pointers, lanes, element_of(pointers.get_element_ty(), np_dtype), does)
        # The interpreter composes some atomics of loads and stores, which must not be checked.
        STATE.atomic = True
        try:
            out = stock(self, *args, **kwargs)
        finally:
            STATE.atomic = False
        if lanes.any():
            words = _words(launch, pointers.data[lanes])
            _put_in_order(launch.order, words, arguments, out, interpreter._ir, result)
        return out

    return checked


def _words(launch: Launch, addresses: Array) -> tuple[object, object]:
    """Return the keys of an atomic: its address if it is one word, and its tensor."""
    extent = launch.extents.get(int(addresses[0]) >> TAG)
    tensor = "tile", None if extent is None else extent.region.start
    return (tensor if addresses.size > 1 else int(addresses[0] & ADDRESS)), tensor


def _put_in_order(
    order: ProgramOrder,
    words: tuple[object, object],
    arguments: Mapping[str, Any],
    out: Any,
    ir: Any,
    result: Any,
) -> None:
    """Release at once, and acquire when the result is first read."""
    semantics, sem = ir.MEM_SEMANTIC, arguments["sem"]
    if arguments["scope"] == ir.MEM_SYNC_SCOPE.CTA:
        return
    if sem in {semantics.RELEASE, semantics.ACQUIRE_RELEASE}:
        order.release(words[0])
    if sem in {semantics.ACQUIRE, semantics.ACQUIRE_RELEASE} and out is not None:

        def look() -> None:
            for word in words:
                order.acquire(word)

        out.__class__ = result
        out.look = look
