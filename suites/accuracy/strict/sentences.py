"""What the strict interpreter says: kernel, program, line, argument, and by how much."""

from __future__ import annotations

from suites.accuracy.strict.launch import TAG, Extent, Launch, line
from suites.accuracy.strict.order import FIRST
from suites.accuracy.strict.region import SAME


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
