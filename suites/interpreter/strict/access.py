"""Check each lane of the interpreter's loads, stores and atomics.

If all active lanes lie in the one argument that their pointers came from, numpy reads and writes
the elements, in a tenth of the time of the interpreter's own copying. All other accesses take the
slow way: check tag by tag, find the owners of untagged pointers, and call the stock function.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import triton.language as tl

from kernel_workbench.suites.interpreter.operations import GIVEN
from kernel_workbench.suites.interpreter.strict import masked_lanes, overflow
from kernel_workbench.suites.interpreter.strict.initialisation import Array
from kernel_workbench.suites.interpreter.strict.launch import (
    STATE,
    TAG,
    Launch,
    Tagged,
    conflict,
    line,
    name_of,
    outside,
    who,
)


@dataclass(frozen=True, slots=True)
class ElementType:
    """A pointer's element type; a masked lane without `other` gets the bits `undefined`."""

    type: Any
    itemsize: int
    shift: int
    kind: Any
    bits: Any
    undefined: Any


@cache
def element_of(scalar: Any, np_dtype: Any) -> ElementType:
    """Return the description of a Triton type; `np_dtype` maps Triton's types to numpy's."""
    kind = np.dtype(np_dtype(scalar))
    bits = np.dtype(f"u{kind.itemsize}")
    ones = (1 << 8 * kind.itemsize) - 1  # NaN in every floating-point type
    undefined = {"i": (ones >> 1) + 1, "b": 1}.get(kind.kind, ones)
    shift = kind.itemsize.bit_length() - 1
    return ElementType(scalar, kind.itemsize, shift, kind, bits, bits.type(undefined))


def find(
    launch: Launch, pointers: Any, lanes: Array | None, element: ElementType
) -> tuple[Tagged, Array] | None:
    """Return the one argument that all lanes lie in, and the lanes' elements; else None."""
    data = pointers.data
    itemsize = element.itemsize
    if not data.ndim or not data.size or overflow.marked(pointers):
        return None
    if launch.recast and (data & np.uint64(itemsize - 1)).any():
        return None
    low, high = int(data.min()), int(data.max())
    extent = launch.extents.get(low >> TAG)
    if extent is None or not extent.start <= low or high + itemsize > extent.end:
        if lanes is None:
            return None
        on = data[lanes]
        if not on.size:
            return None
        low, high = int(on.min()), int(on.max())
        extent = launch.extents.get(low >> TAG)
        if extent is None or not extent.start <= low or high + itemsize > extent.end:
            return None
        data = np.where(lanes, data, np.uint64(low))
    return extent, (data.view(np.int64) - extent.base) >> element.shift


def check_lanes(launch: Launch, pointers: Any, lanes: Array, kind: ElementType, did: str) -> None:
    """Check an access with lanes anywhere; `did` is its verb in a message, for example "reads"."""
    overflow.check(pointers, lanes, did)
    data, itemsize = pointers.data, kind.itemsize
    addresses = data[lanes]
    if not addresses.size:
        return
    if (addresses & np.uint64(itemsize - 1)).any():
        STATE.refuse(
            f"{who(launch)} {did} {itemsize} bytes of {name_of(launch, int(addresses[0]))} at an "
            f"address that isn't a multiple of {itemsize}, at {line()}"
        )
    tags = addresses >> np.uint64(TAG)
    for tag in np.unique(tags).tolist():
        part = addresses[tags == tag]
        if tag in launch.extents:
            _check_within(launch, launch.extents[tag], part, itemsize, did)
        else:
            _check_untagged(launch, part, itemsize, did)


def _check_untagged(launch: Launch, addresses: Array, itemsize: int, did: str) -> None:
    """Check pointers made from integers: they may point into any argument or other memory."""
    for extent in launch.extents.values():
        tag = extent.tag << TAG
        first, last = extent.start - tag, extent.end - tag - itemsize
        mine = (addresses >= np.uint64(first)) & (addresses.view(np.int64) <= last)
        if mine.any():
            _check_within(launch, extent, addresses[mine] + np.uint64(tag), itemsize, did)
            addresses = addresses[~mine]
    for start, end in STATE.memory:
        mine = (addresses >= np.uint64(start)) & (addresses.view(np.int64) <= end - itemsize)
        addresses = addresses[~mine]
    if addresses.size:
        low, high = int(addresses.min()), int(addresses.max())
        STATE.refuse(outside(launch, low, high + itemsize, None, did))


def _check_within(
    launch: Launch, extent: Tagged, addresses: Array, itemsize: int, did: str
) -> None:
    low, high = int(addresses.min()), int(addresses.max()) + itemsize
    if low < extent.start or high > extent.end:
        STATE.refuse(outside(launch, low, high, extent, did))
    _inspect(launch, extent, (addresses.view(np.int64) - extent.base) // itemsize, itemsize, did)


def _inspect(
    launch: Launch,
    extent: Tagged,
    at: Array,
    itemsize: int,
    did: str,
    bits: Array | None = None,
) -> None:
    """Check elements within the argument for gaps, unwritten memory and other programs' accesses.

    `bits` are a store's values, as unsigned integers of their size, or None if unknown. A single
    word that is exchanged or updated may be a lock or a counter, and never conflicts.
    """
    region, order = extent.region, launch.order
    if extent.runs:
        _check_runs(launch, extent, at, itemsize, did)
    if did in {"reads", "updates"} and not extent.settled:
        _check_written(launch, extent, at, itemsize, did)
    if did in {"writes", "exchanges"} and region.fresh is not None:
        region.fresh.wrote(at, itemsize)
    if did == "reads" or (did == "updates" and at.size > 1):
        elements = region.elements(at, itemsize)
        meeting = region.read(elements, order)
        if meeting is not None:
            STATE.refuse(conflict(launch, extent, did, *meeting, "writes"))
        region.note_read(elements, None, order)
    elif did == "writes":
        elements = region.elements(at, itemsize)

        def same() -> Array:
            return np.repeat(extent.memory(itemsize)[at] == bits, elements.size // at.size)

        same_values = None if bits is None else same
        met = region.write(elements, order, same_values, may_be_same=STATE.same_stores)
        if met is not None:
            STATE.refuse(conflict(launch, extent, did, *met))


def _check_runs(launch: Launch, extent: Tagged, at: Array, itemsize: int, did: str) -> None:
    offset = at * itemsize - (extent.start - extent.base)
    for distance, length in extent.runs:
        offset = offset - offset // distance * distance
        over = offset > length - itemsize
        if over.any():
            past = -(-(int(offset[over].max()) + itemsize - length) // extent.itemsize)
            STATE.refuse(
                f"{who(launch)} {did} up to {past:,} elements past the end of a run of "
                f"{length // extent.itemsize:,} of {launch.name(extent)}, whose strides are "
                f"{extent.tensor.stride()}, at {line()}"
            )


def _check_written(launch: Launch, extent: Tagged, at: Array, itemsize: int, did: str) -> None:
    fresh = extent.region.fresh
    assert fresh is not None
    start = extent.tag << TAG
    if fresh.settles(extent.start - start, extent.end - start):
        extent.settled = True
        return
    missing = fresh.unwritten(at, itemsize)
    if missing is not None:
        # The storage, the argument and the access may have elements of different sizes.
        elements = np.unique((missing - (extent.start - extent.base)) // extent.itemsize)
        more = f" and {elements.size - 1:,} more" if elements.size > 1 else ""
        where = f"element {elements[0]:,}{more} of {launch.name(extent)}'s memory"
        STATE.refuse(f"{who(launch)} {did} {where}, which nothing has written, at {line()}")


def install(interpreter: Any) -> None:
    """Check every load and store of `triton.runtime.interpreter` from here on."""
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    np_dtype = interpreter._get_np_dtype

    def load(stock: Any) -> Any:
        def checked(
            self: Any, pointers: Any, mask: Any, other: Any, *rest: Any, **more: Any
        ) -> Any:
            launch, lanes = STATE.launch, lanes_of(mask, pointers)
            if launch is None:
                return stock(self, pointers, mask, other, *rest, **more)
            element = element_of(pointers.get_element_ty(), np_dtype)
            every = bool(lanes.all())
            if other is None and not every:
                has_other = GIVEN and GIVEN[-1]  # Triton's own code treats a scalar 0 as no `other`
                address = int(pointers.data.flat[0])
                if has_other or masked_lanes.note(line(), lambda: name_of(launch, address)):
                    other = handle(np.zeros(lanes.shape, element.kind), element.type)
            inside = find(launch, pointers, None if every else lanes, element)
            if inside is None:
                if not STATE.atomic:
                    check_lanes(launch, pointers, lanes, element, "reads")
                loaded = stock(self, pointers, handle(lanes, tl.int1), other, *rest, **more)
                read = _as_promised(launch, pointers, lanes)
                if read is not lanes or (other is None and not every):
                    bits = loaded.data.view(element.bits)
                    on = read if other is None else read | ~lanes
                    loaded.data = np.where(on, bits, element.undefined).view(element.kind)
                return loaded
            extent, at = inside
            if not STATE.atomic:
                _note_load(launch, extent, at, None if every else lanes, element.itemsize)
            bits = extent.memory(element.itemsize)[at]
            if not every:
                instead = element.undefined if other is None else other.data.view(element.bits)
                bits = np.where(lanes, bits, instead)
            return handle(bits.view(element.kind), element.type)

        return checked

    def store(stock: Any) -> Any:
        def checked(
            self: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **more: Any
        ) -> Any:
            launch, lanes = STATE.launch, lanes_of(mask, pointers)
            if launch is None:
                return stock(self, pointers, value, mask, *rest, **more)
            element = element_of(pointers.get_element_ty(), np_dtype)
            every = bool(lanes.all())
            inside = find(launch, pointers, None if every else lanes, element)
            if inside is None or value.data.dtype.itemsize != element.itemsize:
                if not STATE.atomic:
                    check_lanes(launch, pointers, lanes, element, "writes")
                return stock(self, pointers, value, handle(lanes, tl.int1), *rest, **more)
            extent, at = inside
            bits = np.broadcast_to(value.data.view(element.bits), at.shape)
            on, bits = (at.reshape(-1), bits.reshape(-1)) if every else (at[lanes], bits[lanes])
            if on.size:
                if not STATE.atomic:
                    _inspect(launch, extent, on, element.itemsize, "writes", bits)
                extent.memory(element.itemsize)[on] = bits
            return None

        return checked

    replace(builder, "create_masked_load", ("ptrs", "mask", "other"), load)
    replace(builder, "create_masked_store", ("ptrs", "value", "mask"), store)


def _as_promised(launch: Launch, pointers: Any, lanes: Array) -> Array:
    """Return a load's lanes, without lanes whose offset breaks a promise."""
    wrong = overflow.unpromised(pointers, lanes)
    if wrong is None or STATE.atomic:
        return lanes
    address = int(pointers.data[wrong[0]][0])
    why = f"{masked_lanes.PROMISED} {wrong[1]} isn't true"
    if masked_lanes.note(line(), lambda: name_of(launch, address), why):
        return lanes
    return lanes & ~wrong[0]


def _note_load(
    launch: Launch, extent: Tagged, at: Array, lanes: Array | None, itemsize: int
) -> None:
    """Check a load within its argument; most loads only have to be noted."""
    region = extent.region
    plain = extent.settled and region.writers is None and not extent.runs
    if plain and region.itemsize == itemsize:
        region.note_read(at, lanes, launch.order)
        return
    on = at.reshape(-1) if lanes is None else at[lanes]
    if on.size:
        _inspect(launch, extent, on, itemsize, "reads")


def lanes_of(mask: Any, pointers: Any) -> Array:
    """Return a mask as bools of the pointers' shape; a descriptor's mask is an array already."""
    lanes = mask if isinstance(mask, np.ndarray) else mask.data
    if lanes.dtype != np.bool_:  # numpy would take integers as places
        lanes = lanes != 0
    shape = pointers.data.shape
    return lanes if lanes.shape == shape else np.broadcast_to(lanes, shape)


def replace(owner: Any, name: str, leading: tuple[str, ...], make: Any) -> None:
    """Replace the function `name` if it exists and its first arguments are `leading`."""
    stock = getattr(owner, name, None)
    if stock is None:
        return
    parameters = tuple(inspect.signature(stock).parameters)
    if parameters[1 : 1 + len(leading)] == leading:
        setattr(owner, name, make(stock))
