"""Atomic operations: checked as loads and stores are, and what puts programs in an order."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from kernel_workbench.suites.interpreter.strict.access import check_lanes, element_of, lanes_of
from kernel_workbench.suites.interpreter.strict.initialisation import Array
from kernel_workbench.suites.interpreter.strict.launch import ADDRESS, STATE, TAG, Launch
from kernel_workbench.suites.interpreter.strict.region import Order

# What each does to memory; the last three came with Triton 3.9.
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
        """What an atomic returned: it tells when it is looked at."""

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
        given = signature.bind(self, *args, **kwargs).arguments
        pointers = given["ptr"]
        every = np.ones(pointers.data.shape, bool)
        lanes = lanes_of(given["mask"], pointers) if "mask" in given else every
        does = "exchanges" if given.get("rmwOp") == exchange else did
        check_lanes(launch, pointers, lanes, element_of(pointers.get_element_ty(), np_dtype), does)
        # The interpreter makes some of plain loads and stores, which they are not.
        STATE.atomic = True
        try:
            out = stock(self, *args, **kwargs)
        finally:
            STATE.atomic = False
        if lanes.any():
            words = _words(launch, pointers.data[lanes])
            _put_in_order(launch.order, words, given, out, interpreter._ir, result)
        return out

    return checked


def _words(launch: Launch, addresses: Array) -> tuple[object, object]:
    """What an atomic is known by: its address where it is one, and the tensor that it lies in."""
    extent = launch.extents.get(int(addresses[0]) >> TAG)
    tensor = "tile", None if extent is None else extent.region.start
    return (tensor if addresses.size > 1 else int(addresses[0] & ADDRESS)), tensor


def _put_in_order(
    order: Order,
    words: tuple[object, object],
    given: Mapping[str, Any],
    out: Any,
    ir: Any,
    result: Any,
) -> None:
    """Release at once, and acquire when the result is looked at."""
    semantics, sem = ir.MEM_SEMANTIC, given["sem"]
    if given["scope"] == ir.MEM_SYNC_SCOPE.CTA:
        return
    if sem in {semantics.RELEASE, semantics.ACQUIRE_RELEASE}:
        order.release(words[0])
    if sem in {semantics.ACQUIRE, semantics.ACQUIRE_RELEASE} and out is not None:

        def look() -> None:
            for each in words:
                order.acquire(each)

        out.__class__ = result
        out.look = look
