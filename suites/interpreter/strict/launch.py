"""A launch under the strict interpreter: its tensor arguments, and the argument of each pointer.

Each tensor argument gets a number, its tag, which its pointer carries in the 16 bits that addresses
leave free: tag * 2^48 + address. Arithmetic on the pointer keeps the tag, so that the tag of an
access names the tensor in which the access must lie. The tag is removed before memory is accessed,
and when a pointer becomes an integer. A pointer made from an integer has tag 0: it may point into
any argument, and into any memory that `watched` got.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton

from kernel_workbench import suites
from kernel_workbench.suites.interpreter.strict.initialisation import Array, fresh_at
from kernel_workbench.suites.interpreter.strict.region import FIRST, SAME, ProgramOrder, Region

TAG = 48  # the bits of an address; Linux uses no higher ones, on x86-64 and on arm64
ADDRESS = np.uint64(2**TAG - 1)
_MOST_TAGS = 2**15  # so that a tagged address is positive as a signed integer too

Runs = tuple[tuple[int, int], ...]
_GAPLESS: Runs = ()

_OWN = str(Path(suites.__file__).parent)
_TRITON = str(Path(triton.__file__).parent)


class IllegalAccessError(RuntimeError):
    """A kernel did something that a GPU leaves undefined; the message says what and where."""


@dataclass(slots=True)
class Tagged:
    """One tensor argument with its tag. Addresses are tagged, lengths are bytes.

    runs     (distance between two runs, length of a run), outermost first, if elements have gaps;
             empty if they have none, or if runs overlap
    settled  True if an access in this launch has shown that all of it is written
    """

    tensor: Any
    tag: int
    start: int
    end: int
    itemsize: int
    runs: Runs
    region: Region
    settled: bool
    _memory: dict[int, Array] = field(default_factory=dict)

    @property
    def base(self) -> int:
        """The tagged address of the region's first byte; elements are counted from there."""
        return (self.tag << TAG) + self.region.start

    def memory(self, itemsize: int) -> Array:
        """Return all of the region as unsigned integers of `itemsize` bytes."""
        array = self._memory.get(itemsize)
        if array is None:
            interface = {
                "data": (self.region.start, False),
                "shape": (self.region.nbytes // itemsize,),
                "typestr": np.dtype(f"u{itemsize}").str,
                "version": 3,
            }
            array = np.asarray(SimpleNamespace(__array_interface__=interface))
            self._memory[itemsize] = array
        return array


@dataclass(slots=True)
class Launch:
    """The launch in progress.

    recast  True if a pointer was cast to elements of another type
    cut     True if an integer argument doesn't fit its annotated type
    """

    kernel: str
    named: dict[str, Any]
    extents: dict[int, Tagged] = field(default_factory=dict)
    regions: dict[int, Region] = field(default_factory=dict)
    order: ProgramOrder = field(default_factory=ProgramOrder)
    place: tuple[int, int, int] = (0, 0, 0)
    recast: bool = False
    cut: bool = False

    def argument(self, tensor: Any) -> int:
        """Add a tensor argument; return the tag for its pointer, shifted, or 0 for no tag."""
        base = getattr(tensor, "base", tensor)  # a TensorWrapper has its tensor there
        if not hasattr(base, "untyped_storage"):
            return 0
        storage, start = base.untyped_storage(), base.data_ptr()
        tag, itemsize = len(self.extents) + 1, base.element_size()
        if start >> TAG or tag >= _MOST_TAGS:
            return 0
        reached, runs = base.numel(), _GAPLESS
        if reached and not base.is_contiguous():
            shape, strides = tuple(base.shape), base.stride()
            reached = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
            runs = _GAPLESS if base.numel() == reached else _runs(shape, strides, itemsize)
        address = storage.data_ptr()
        region = self.regions.get(address)
        if region is None:
            region = Region(address, storage.nbytes(), fresh_at(address), itemsize)
            self.regions[address] = region
        region.itemsize = min(region.itemsize, itemsize)
        self.extents[tag] = Tagged(
            tensor=base,
            tag=tag,
            start=(tag << TAG) + start,
            end=(tag << TAG) + start + reached * itemsize,
            itemsize=itemsize,
            runs=runs,
            region=region,
            settled=region.fresh is None or region.fresh.whole,
        )
        return tag << TAG

    def name(self, extent: Tagged) -> str:
        """Return the argument's name; arguments that are one tensor get different names."""
        named = [name for name, tensor in _tensors(self.named) if _same(tensor, extent.tensor)]
        before = [one for one in self.extents.values() if one.tag < extent.tag]
        place = sum(_same(one.tensor, extent.tensor) for one in before)
        return named[min(place, len(named) - 1)] if named else "a tensor"

    def owner(self, address: int, itemsize: int) -> Tagged | None:
        """Return the first argument that contains all bytes of an untagged access, or None."""
        for extent in self.extents.values():
            tag = extent.tag << TAG
            if extent.start - tag <= address and address + itemsize <= extent.end - tag:
                return extent
        return None


@dataclass(slots=True)
class State:
    """The state of the strict interpreter; a candidate's except clause doesn't clear a violation.

    atomic       True within an atomic access, which is checked already
    missing      the checks that aren't in force; None before the interpreter is made strict
    same_stores  True if programs may store the same value to one element
    memory       (first byte, end) of further memory for pointers made from integers
    """

    launches: list[Launch] = field(default_factory=list)
    launch: Launch | None = None
    violation: str | None = None
    atomic: bool = False
    missing: tuple[str, ...] | None = None
    memory: tuple[tuple[int, int], ...] = ()
    same_stores: bool = False

    def refuse(self, text: str) -> None:
        """Raise IllegalAccessError, and keep the first message for the caller of the kernel."""
        if self.violation is None:
            self.violation = text
        raise IllegalAccessError(text)


STATE = State()


def begin(kernel: str, named: dict[str, Any]) -> None:
    """Start a launch of `kernel` with these arguments."""
    STATE.launch = Launch(kernel, named)
    STATE.launches.append(STATE.launch)


def end() -> None:
    """End the launch in progress."""
    if STATE.launches:
        STATE.launches.pop()
    STATE.launch = STATE.launches[-1] if STATE.launches else None


def line() -> str:
    """Return the innermost line of the stack that is neither Triton's nor the workbench's."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        probe = file.endswith("probes.py")
        if not file.startswith(_TRITON) and (probe or not file.startswith(_OWN)):
            return f"line {frame.f_lineno} of {file}"
        frame = frame.f_back  # type: ignore[assignment]
    return "an unknown line"


def _tensors(named: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each tensor among the arguments with its name, also from tuples and descriptors."""
    for name, value in named.items():
        if isinstance(value, tuple):
            yield from _tensors({f"{name}[{index}]": part for index, part in enumerate(value)})
            continue
        base = getattr(value, "base", value)
        if hasattr(base, "untyped_storage"):
            yield name, base


def _same(one: Any, other: Any) -> bool:
    """Return True if both are one tensor, or Triton's aliases of one tensor."""
    if one is other:
        return True
    places = [(x.data_ptr(), x.dtype, x.shape, x.stride()) for x in (one, other)]
    return bool(places[0] == places[1])


def _runs(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> Runs:
    """Return the nested runs of a tensor with gaps; see Tagged."""
    axes = sorted(
        ((step, n) for n, step in zip(shape, strides, strict=True) if n > 1 and step > 0),
        reverse=True,
    )
    length, runs = 1, []  # length of the runs so far, in elements
    for step, n in reversed(axes):
        if step < length:
            return ()
        if step > length:
            runs.append((step * itemsize, length * itemsize))
        length += (n - 1) * step
    return tuple(reversed(runs))


def who(launch: Launch) -> str:
    """Return the running program and its kernel, for example "program (0, 0, 0) of copy"."""
    return f"program {launch.place} of {launch.kernel}"


def name_of(launch: Launch, address: int) -> str:
    """Return the name of the argument that a tagged address came from."""
    extent = launch.extents.get(address >> TAG)
    return "memory by a pointer made from an integer" if extent is None else launch.name(extent)


def outside(launch: Launch, low: int, high: int, extent: Tagged | None, did: str) -> str:
    """Return the message for an access to tagged bytes `low` to `high` outside of `extent`."""
    begin = f"{who(launch)} {did}"
    if extent is None:
        near = _nearest(launch, low, high)
        return f"{begin} memory that belongs to no argument{near}, at {line()}"
    size, tag = extent.itemsize, extent.tag << TAG
    if high > extent.end and low >= extent.start:
        by, side = -(-(high - extent.end) // size), "past the end"
        touched = high - size
    elif high <= extent.end:
        by, side = -(-(extent.start - low) // size), "before the start"
        touched = low
    else:
        by, side = -(-max(extent.start - low, high - extent.end) // size), "on both sides"
        touched = low
    other = launch.owner(touched - tag, size)
    inside = "" if other is None or other is extent else f", within {launch.name(other)}"
    return f"{begin} up to {by:,} elements {side} of {launch.name(extent)}{inside}, at {line()}"


def conflict(
    launch: Launch, extent: Tagged, did: str, element: int, segment: int, other_did: str
) -> str:
    """Return the message for two programs that access an element without an order."""
    offset = element * extent.region.itemsize - (extent.start - extent.base)
    where = f"element {offset // extent.itemsize:,} of {launch.name(extent)}'s memory"
    other, several = launch.order.place(segment), segment < FIRST
    if other_did in {"writes", SAME}:
        does = other_did
    else:
        does = "read or add to" if several else "reads or adds to"
    declare = "; a kernel that means to declares same_stores=True" if other_did == SAME else ""
    return (
        f"{who(launch)} {did} {where}, which {other} {does} in the same launch, with no order "
        f"between them, at {line()}{declare}"
    )


def _nearest(launch: Launch, low: int, high: int) -> str:
    """Return an access's distance from an argument, for example ", 3 elements past the nearest"."""
    best: tuple[int, str, Tagged] | None = None
    for extent in launch.extents.values():
        start, end = extent.start - (extent.tag << TAG), extent.end - (extent.tag << TAG)
        gap, side = (start - low, "before") if low < start else (high - end, "past")
        if best is None or gap < best[0]:
            best = gap, side, extent
    if best is None:
        return ""
    gap, side, extent = best
    return f", {-(-gap // extent.itemsize):,} elements {side} the nearest, {launch.name(extent)}"
