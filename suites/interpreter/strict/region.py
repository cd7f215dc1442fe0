"""Log which programs read and wrote each element of a tensor's memory in the current launch.

Two accesses of one element by two programs have no order on a GPU, so that it is an error if one of
them is a store, in whichever order the interpreter ran them. All arguments in one storage share its
logs, so that two views of a tensor count as one.

A log has a segment for each element. Reads before the first store are kept as a list, and go into a
log with the first store: most tensors are only read, and cost nothing.

Programs of a launch have no order on a GPU, except by atomics. If A releases a word (an atomic with
`release` or `acq_rel`, not of scope `cta`) and then B acquires it, then the accesses of A before
its release, and all that was ahead of them, come before the accesses of B after its acquire: vector
clocks, as of Lamport (1978) and Mattern (1989). Here time is a count of segments. A segment is the
part of a program between two of its releases. Programs run one after another, so that the segments
of a program have consecutive numbers, and a larger number is later. An acquire counts when its
result is read: an atomic sum whose old value is never read orders nothing.

The key of a single word is its address. The key of a tile of atomics is only its tensor, so that a
tile orders more than it should.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kernel_workbench.suites.interpreter.strict.initialisation import Array, Fresh, zeros

NOBODY, SEVERAL, FIRST = 0, 1, 2  # segments; a program's own numbers begin at FIRST
SAME = "writes the same value to"
_MOST_LANES = 2**22  # lanes of reads in the list, at 8 bytes each, before they go into a log


@dataclass(slots=True)
class ProgramOrder:
    """The programs of a launch so far, and those that atomics put ahead of the running program.

    `last_ahead` maps a program to its last segment ahead of now.
    """

    segment: int = FIRST - 1
    first: int = FIRST  # the first segment of the running program
    starts: list[int] = field(default_factory=list)
    places: list[tuple[int, int, int]] = field(default_factory=list)
    last_ahead: dict[int, int] = field(default_factory=dict)
    released: dict[object, dict[int, int]] = field(default_factory=dict)

    def begin(self, place: tuple[int, int, int]) -> None:
        """Begin the next program."""
        self.segment += 1
        self.first = self.segment
        self.starts.append(self.segment)
        self.places.append(place)
        self.last_ahead = {}

    def program(self, segment: int) -> int:
        """Return the number of the program of a segment."""
        return bisect_right(self.starts, segment) - 1

    def release(self, word: object) -> None:
        """Put the accesses so far ahead of programs that acquire `word` from now on."""
        there = self.released.setdefault(word, {})
        for program, segment in self.last_ahead.items():
            there[program] = max(segment, there.get(program, 0))
        there[len(self.starts) - 1] = self.segment
        self.segment += 1

    def acquire(self, word: object) -> None:
        """Put the accesses that were released by `word` ahead of the running program."""
        for program, segment in self.released.get(word, {}).items():
            self.last_ahead[program] = max(segment, self.last_ahead.get(program, 0))

    def ahead(self, segment: int) -> bool:
        """Return True if a segment is ahead; SEVERAL counts as ahead if any program is."""
        if segment < FIRST:
            return bool(self.last_ahead)
        return self.last_ahead.get(self.program(segment), 0) >= segment

    def place(self, segment: int) -> str:
        """Return the name of a segment's program, for example "program (1, 0, 0)"."""
        if segment < FIRST:
            return "several programs"
        return f"program {self.places[self.program(segment)]}"


@dataclass(slots=True)
class Region:
    """One storage and its logs; elements have `itemsize` bytes, the smallest of its views."""

    start: int
    nbytes: int
    fresh: Fresh | None
    itemsize: int
    writers: Array | None = None
    readers: Array | None = None
    _reads: list[tuple[int, Array, Array | None]] = field(default_factory=list)
    _lanes: int = 0

    def elements(self, at: Array, itemsize: int) -> Array:
        """Return the elements of the logs for elements `at`, which are counted in `itemsize`."""
        if itemsize < self.itemsize:
            self._refine(itemsize)
        parts = itemsize // self.itemsize
        if parts == 1:
            return at
        return (at.reshape(-1, 1) * parts + np.arange(parts)).reshape(-1)

    def _refine(self, itemsize: int) -> None:
        """Divide the logs into smaller elements, since a pointer was cast to such a type."""
        parts, self.itemsize = self.itemsize // itemsize, itemsize
        if self.writers is not None:
            self.writers = np.repeat(self.writers, parts)
        if self.readers is not None:
            self.readers = np.repeat(self.readers, parts)
        self._reads = [
            (segment, (places.reshape(-1, 1) * parts + np.arange(parts)).reshape(-1), None)
            for segment, places in ((s, _chosen(at, lanes)) for s, at, lanes in self._reads)
        ]

    def note_read(self, at: Array, lanes: Array | None, order: ProgramOrder) -> None:
        """Note that the running program reads these elements of the log in the `lanes`."""
        if self.readers is not None:
            self._log_read(_chosen(at, lanes), order.segment, order.first)
            return
        self._reads.append((order.segment, at, lanes))
        self._lanes += at.size
        if self._lanes > _MOST_LANES:
            self._log_reads(order)

    def read(self, at: Array, order: ProgramOrder) -> tuple[int, int] | None:
        """Return (element, segment) of a write by a program that isn't ahead, or None."""
        return None if self.writers is None else _unordered(self.writers, at, order)

    def write(
        self,
        at: Array,
        order: ProgramOrder,
        same: Callable[[], Array] | None = None,
        *,
        may_be_same: bool = False,
    ) -> tuple[int, int, str] | None:
        """Note a store; return (element, segment, the other program's verb) of a conflict, or None.

        `same` returns True for each element that has the stored value already; None if unknown.
        With `may_be_same`, several programs may store the same value.
        """
        if self.writers is None:
            self.writers = zeros(self.nbytes // self.itemsize, np.int32)
        if self.readers is None:
            self._log_reads(order)
        assert self.readers is not None
        for log, did in ((self.writers, "writes"), (self.readers, "reads")):
            meeting = _unordered(log, at, order)
            if meeting is None:
                continue
            if did == "writes" and same is not None:
                differs = _unordered(log, at[~same()], order)
                if differs is None and may_be_same:
                    continue
                meeting, did = (meeting, SAME) if differs is None else (differs, did)
            return *meeting, did
        self.writers[at] = order.segment
        return None

    def _log_reads(self, order: ProgramOrder) -> None:
        self.readers = zeros(self.nbytes // self.itemsize, np.int32)
        for segment, at, lanes in self._reads:
            first = order.starts[order.program(segment)]
            self._log_read(_chosen(at, lanes), segment, first)
        self._reads.clear()

    def _log_read(self, at: Array, segment: int, first: int) -> None:
        assert self.readers is not None
        before = self.readers[at]
        self.readers[at] = np.where(_is_elsewhere(before, first), SEVERAL, segment)


def _chosen(at: Array, lanes: Array | None) -> Array:
    return at if lanes is None else at[lanes]


def _is_elsewhere(segments: Array, first: int) -> Array:
    """Return which segments are another program's: neither NOBODY nor from `first` on."""
    return (segments - 1).view(np.uint32) < np.uint32(first - 1)


def _unordered(log: Array, at: Array, order: ProgramOrder) -> tuple[int, int] | None:
    """Return the first element, and its segment, of another program that isn't ahead, or None."""
    before = log[at]
    elsewhere = _is_elsewhere(before, order.first)
    if not elsewhere.any():
        return None
    for segment in np.unique(before[elsewhere]).tolist():
        if not order.ahead(segment):
            return int(at[before == segment][0]), segment
    return None
