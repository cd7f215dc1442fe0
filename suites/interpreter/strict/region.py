"""Who read and who wrote each element of a tensor's memory in the launch in progress.

Two accesses of one element by two programs, one of them a store, have no order on a GPU: neither
two stores, nor a load of what another program stores, in whichever order the interpreter ran them.
All arguments in one storage share its logs, so that a tensor seen through two of them is one.

A log holds a segment for each element. Reads of memory that nothing has written yet in
the launch are kept as they come, and go into a log with the first store: most tensors are only
read, and cost nothing.

Programs of a launch have no order on a GPU. A release (an atomic with `release` or `acq_rel`, not
of scope `cta`) by A, and then an acquire by B of the same word, put what A did before the one ahead
of what B does after the other, along with what A itself knew to be ahead of it: vector clocks, as
of Lamport (1978) and Mattern (1989). Here time is a count of segments. A segment is what a program
does between two of its releases, and programs run one after another, so that the segments of one
follow each other and a larger number is later. An acquire counts once its result is looked at: a
sum whose old value nobody reads tells a program nothing.

A single word is known by its address. Of a tile of atomics it is only known in which tensor it
lies, so that it orders more than it should.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kernel_workbench.suites.interpreter.strict.initialisation import Array, Fresh, zeros

NOBODY, SEVERAL, FIRST = 0, 1, 2  # segments; the first that is a program's own
SAME = "writes the same value to"
_MOST_LANES = 2**22  # kept of reads, at 8 bytes each, before they go into a log


@dataclass(slots=True)
class Order:
    """The programs of a launch so far, and which are ahead of the one in turn: by atomics alone.

    known: by program, its last segment ahead of now.
    """

    segment: int = FIRST - 1
    first: int = FIRST  # the first segment of the program in turn
    starts: list[int] = field(default_factory=list)
    places: list[tuple[int, int, int]] = field(default_factory=list)
    known: dict[int, int] = field(default_factory=dict)
    released: dict[object, dict[int, int]] = field(default_factory=dict)

    def begin(self, place: tuple[int, int, int]) -> None:
        """The next program's turn."""
        self.segment += 1
        self.first = self.segment
        self.starts.append(self.segment)
        self.places.append(place)
        self.known = {}

    def program(self, segment: int) -> int:
        """The number of the program that a segment is of."""
        return bisect_right(self.starts, segment) - 1

    def release(self, word: object) -> None:
        """Whatever the program in turn did is ahead of whoever acquires `word` from now on."""
        there = self.released.setdefault(word, {})
        for program, segment in self.known.items():
            there[program] = max(segment, there.get(program, 0))
        there[len(self.starts) - 1] = self.segment
        self.segment += 1

    def acquire(self, word: object) -> None:
        """Whatever was released by `word` is ahead of the program in turn from now on."""
        for program, segment in self.released.get(word, {}).items():
            self.known[program] = max(segment, self.known.get(program, 0))

    def ahead(self, segment: int) -> bool:
        """Whether another program's segment is ahead; of several nobody knows, if any is."""
        if segment < FIRST:
            return bool(self.known)
        return self.known.get(self.program(segment), 0) >= segment

    def place(self, segment: int) -> str:
        """The program of a segment, as a sentence names it."""
        if segment < FIRST:
            return "several programs"
        return f"program {self.places[self.program(segment)]}"


@dataclass(slots=True)
class Region:
    """One storage: logs of its elements, counted in `itemsize` bytes, the smallest of its views."""

    start: int
    nbytes: int
    fresh: Fresh | None
    itemsize: int
    writers: Array | None = None
    readers: Array | None = None
    _reads: list[tuple[int, Array, Array | None]] = field(default_factory=list)
    _lanes: int = 0

    def elements(self, at: Array, itemsize: int) -> Array:
        """Of elements of `itemsize` bytes, counted in those, the elements of the logs."""
        if itemsize < self.itemsize:
            self._refine(itemsize)
        parts = itemsize // self.itemsize
        if parts == 1:
            return at
        return (at.reshape(-1, 1) * parts + np.arange(parts)).reshape(-1)

    def _refine(self, itemsize: int) -> None:
        """Count in smaller elements: a pointer was cast to one to such."""
        parts, self.itemsize = self.itemsize // itemsize, itemsize
        if self.writers is not None:
            self.writers = np.repeat(self.writers, parts)
        if self.readers is not None:
            self.readers = np.repeat(self.readers, parts)
        self._reads = [
            (segment, (each.reshape(-1, 1) * parts + np.arange(parts)).reshape(-1), None)
            for segment, each in ((s, _chosen(at, lanes)) for s, at, lanes in self._reads)
        ]

    def note_read(self, at: Array, lanes: Array | None, order: Order) -> None:
        """The program in turn reads these elements of the log, where `lanes` says so."""
        if self.readers is not None:
            self._log_read(_chosen(at, lanes), order.segment, order.first)
            return
        self._reads.append((order.segment, at, lanes))
        self._lanes += at.size
        if self._lanes > _MOST_LANES:
            self._log_reads(order)

    def read(self, at: Array, order: Order) -> tuple[int, int] | None:
        """(element, segment) where one of these was written by a program that isn't ahead."""
        return None if self.writers is None else _unordered(self.writers, at, order)

    def write(
        self,
        at: Array,
        order: Order,
        same: Callable[[], Array] | None = None,
        *,
        may_be_same: bool = False,
    ) -> tuple[int, int, str] | None:
        """Note a store; (element, segment, what another program does there) where it meets one.

        same: gives, of each element, whether it holds what is stored; None: nobody knows.
        may_be_same: then several programs may store it.
        """
        if self.writers is None:
            self.writers = zeros(self.nbytes // self.itemsize, np.int32)
        if self.readers is None:
            self._log_reads(order)
        assert self.readers is not None
        for log, did in ((self.writers, "writes"), (self.readers, "reads")):
            found = _unordered(log, at, order)
            if found is None:
                continue
            if did == "writes" and same is not None:
                differs = _unordered(log, at[~same()], order)
                if differs is None and may_be_same:
                    continue
                found, did = (found, SAME) if differs is None else (differs, did)
            return *found, did
        self.writers[at] = order.segment
        return None

    def _log_reads(self, order: Order) -> None:
        self.readers = zeros(self.nbytes // self.itemsize, np.int32)
        for segment, at, lanes in self._reads:
            first = order.starts[order.program(segment)]
            self._log_read(_chosen(at, lanes), segment, first)
        self._reads.clear()

    def _log_read(self, at: Array, segment: int, first: int) -> None:
        assert self.readers is not None
        before = self.readers[at]
        self.readers[at] = np.where(_others(before, first), SEVERAL, segment)


def _chosen(at: Array, lanes: Array | None) -> Array:
    return at if lanes is None else at[lanes]


def _others(segments: Array, first: int) -> Array:
    """Which are another program's: neither nobody's nor from `first` on. One step for the two."""
    return (segments - 1).view(np.uint32) < np.uint32(first - 1)


def _unordered(log: Array, at: Array, order: Order) -> tuple[int, int] | None:
    """The first of these elements whose segment in the log is another's and isn't ahead."""
    before = log[at]
    others = _others(before, order.first)
    if not others.any():
        return None
    for segment in np.unique(before[others]).tolist():
        if not order.ahead(segment):
            return int(at[before == segment][0]), segment
    return None
