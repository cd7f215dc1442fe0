"""Which accesses of other programs come before the ones of the program in turn: by atomics alone.

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
from dataclasses import dataclass, field

NOBODY, SEVERAL, FIRST = 0, 1, 2  # segments; the first that is a program's own


@dataclass(slots=True)
class Order:
    """The programs of a launch so far; `known`: by program, its last segment ahead of now."""

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
