"""A launch under the strict interpreter: its tensor arguments, and which one a pointer came from.

Each tensor argument gets a number, which its pointer carries in the 16 bits that addresses leave
free: tag * 2^48 + address. Arithmetic on the pointer keeps it, whatever shape or path it takes, so
at an access the tag says which tensor it has to lie in. It is taken off where memory is touched,
and where a pointer becomes an integer. A pointer made from an integer has tag 0: it may point into
any argument, and into any memory that the watch knows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import triton

from kernel_workbench import suites
from kernel_workbench.suites.interpreter.strict.initialisation import Array, fresh_at
from kernel_workbench.suites.interpreter.strict.region import FIRST, SAME, Order, Region

TAG = 48  # the bits of an address; Linux gives programs none above, on x86-64 and on arm64
ADDRESS = np.uint64(2**TAG - 1)
_MOST_TAGS = 2**15  # so that a tagged address is positive as a signed integer too

Runs = tuple[tuple[int, int], ...]
_GAPLESS: Runs = ()

_OWN = str(Path(suites.__file__).parent)
_TRITON = str(Path(triton.__file__).parent)


class IllegalAccessError(RuntimeError):
    """A kernel did what a GPU leaves undefined; the message says what and where."""


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Memory by its address, as numpy asks for it."""

    __array_interface__: dict[str, object]


@dataclass(slots=True)
class Extent:
    """One tensor argument. Addresses are tagged, lengths are bytes.

    runs    where its elements leave gaps, outermost first: (distance between two runs, length of
            one); none where they don't, or where runs overlap and no gap can be told
    settled nothing of it is unwritten, as seen in this launch
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
        """The tagged address of its region's first byte, from which its elements are counted."""
        return (self.tag << TAG) + self.region.start

    def memory(self, itemsize: int) -> Array:
        """All of the region, as unsigned integers of so many bytes."""
        found = self._memory.get(itemsize)
        if found is None:
            interface = {
                "data": (self.region.start, False),
                "shape": (self.region.nbytes // itemsize,),
                "typestr": np.dtype(f"u{itemsize}").str,
                "version": 3,
            }
            found = self._memory[itemsize] = np.asarray(_Bytes(interface))
        return found


@dataclass(slots=True)
class Launch:
    """The launch in progress.

    recast  a pointer was made one to elements of another size
    cut     an argument is an integer that its annotated type doesn't hold
    """

    kernel: str
    named: dict[str, Any]
    extents: dict[int, Extent] = field(default_factory=dict)
    regions: dict[int, Region] = field(default_factory=dict)
    order: Order = field(default_factory=Order)
    place: tuple[int, int, int] = (0, 0, 0)
    recast: bool = False
    cut: bool = False

    def argument(self, tensor: Any) -> int:
        """The tag for the pointer of one more argument, in its place; 0 where there is none."""
        base = getattr(tensor, "base", tensor)  # of a TensorWrapper
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
        self.extents[tag] = Extent(
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

    def name(self, extent: Extent) -> str:
        """The argument's name; of one tensor under several the first that no other extent has."""
        named = [name for name, each in _tensors(self.named) if _same(each, extent.tensor)]
        before = [each for each in self.extents.values() if each.tag < extent.tag]
        place = sum(_same(each.tensor, extent.tensor) for each in before)
        return named[min(place, len(named) - 1)] if named else "a tensor"

    def owner(self, address: int, itemsize: int) -> Extent | None:
        """The first argument that holds an untagged address whole."""
        for each in self.extents.values():
            tag = each.tag << TAG
            if each.start - tag <= address and address + itemsize <= each.end - tag:
                return each
        return None


@dataclass(slots=True)
class State:
    """What the patched interpreter consults; violations outlive an except clause of a candidate.

    atomic: within an atomic access, which is checked already
    missing: the checks that aren't in force; None before the interpreter was made strict
    same_stores: programs may store the same value to one element
    memory: (first byte, end) of what a pointer made from an integer may point into besides
    """

    launches: list[Launch] = field(default_factory=list)
    launch: Launch | None = None
    violation: str | None = None
    atomic: bool = False
    missing: tuple[str, ...] | None = None
    memory: tuple[tuple[int, int], ...] = ()
    same_stores: bool = False

    def refuse(self, text: str) -> None:
        """Raise, and keep the first such sentence for whoever asks after the call."""
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
    """The innermost line of the stack that is neither Triton's nor the workbench's."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        probe = file.endswith("probes.py")
        if not file.startswith(_TRITON) and (probe or not file.startswith(_OWN)):
            return f"line {frame.f_lineno} of {file}"
        frame = frame.f_back  # type: ignore[assignment]
    return "an unknown line"


def _tensors(named: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each tensor among the arguments, in tuples and descriptors too, by its name."""
    for name, value in named.items():
        if isinstance(value, tuple):
            yield from _tensors({f"{name}[{index}]": each for index, each in enumerate(value)})
            continue
        base = getattr(value, "base", value)
        if hasattr(base, "untyped_storage"):
            yield name, base


def _same(one: Any, other: Any) -> bool:
    """Whether they are one tensor, or copies of it as Triton makes them for the interpreter."""
    if one is other:
        return True
    places = [(each.data_ptr(), each.dtype, each.shape, each.stride()) for each in (one, other)]
    return bool(places[0] == places[1])


def _runs(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> Runs:
    """The nested runs of a tensor with gaps; see Extent."""
    axes = sorted(
        ((step, n) for n, step in zip(shape, strides, strict=True) if n > 1 and step > 0),
        reverse=True,
    )
    length, found = 1, []  # of what is within, in elements
    for step, n in reversed(axes):
        if step < length:
            return ()
        if step > length:
            found.append((step * itemsize, length * itemsize))
        length += (n - 1) * step
    return tuple(reversed(found))


def who(launch: Launch) -> str:
    """The program in turn and its kernel, as a sentence begins."""
    return f"program {launch.place} of {launch.kernel}"


def name_of(launch: Launch, address: int) -> str:
    """The argument that a tagged address came from."""
    extent = launch.extents.get(address >> TAG)
    return "memory by a pointer made from an integer" if extent is None else launch.name(extent)


def outside(launch: Launch, low: int, high: int, extent: Extent | None, did: str) -> str:
    """An access from byte `low` to byte `high`, tagged as its argument is; None: by no argument."""
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
    launch: Launch, extent: Extent, did: str, element: int, segment: int, other_did: str
) -> str:
    """Two programs meet at an element of a region's logs, in no order."""
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
    """By how much an untagged access misses the argument that is nearest to it."""
    best: tuple[int, str, Extent] | None = None
    for each in launch.extents.values():
        start, end = each.start - (each.tag << TAG), each.end - (each.tag << TAG)
        gap, side = (start - low, "before") if low < start else (high - end, "past")
        if best is None or gap < best[0]:
            best = gap, side, each
    if best is None:
        return ""
    gap, side, extent = best
    return f", {-(-gap // extent.itemsize):,} elements {side} the nearest, {launch.name(extent)}"
