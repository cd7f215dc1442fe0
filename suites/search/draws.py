"""Draw cases for one kernel, from all that its op allows and its domain serves.

Three ways take turns, since one finds faults that another misses:

- Combine two levels that no case has combined, and choose the rest so that many new pairs meet.
- Draw a level of a few factors or of nearly all, and change sizes at random. In every other such
  case the values are of the distribution that was drawn least: each one comes within some tens of
  cases, whatever else is drawn.
- Change an interesting case a little: its error came near the bound, or it was the first to take a
  variant of the kernel.

Now and then a drawn case gets far strides, whose offsets pass 2**31: no level brings them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from kernel_workbench.oracles.cases.covering import Coverage
from kernel_workbench.oracles.cases.factors import as_part, assembled, is_far
from kernel_workbench.oracles.cases.names import joined
from kernel_workbench.oracles.op import Case, Op, Part

_TRIES = 200  # attempts to draw a served case
_NEAR_BOUND = 0.5  # the share of its bound from which an error makes a case interesting
_POOL = 64  # the most interesting cases to keep
_EDGES = (1, 8, 16, 32, 64, 128, 256, 512, 1024)
_LARGEST_SEED = 10_000
_VALUES_IN_TURN = 0.5  # the share of cases of random levels whose distributions take turns
_FAR_TURN = 13  # of so many draws one has far strides
_FAR_ROWS = (3, 4)  # the last of them begins past 2**31 elements


@dataclass(slots=True)
class Draws:
    """Draws the cases of one kernel.

    limits   the largest value of each size, by its name
    far      whether far strides are drawn, which take gigabytes on a GPU
    """

    op: Op
    serves: Callable[[Case], bool]
    seed: str
    limits: Mapping[str, int]
    far: bool = False
    coverage: Coverage = field(init=False)
    _draw: random.Random = field(init=False)
    _pool: list[tuple[float, Case]] = field(default_factory=list)
    _variants: set[str] = field(default_factory=set)
    _drawn: set[str] = field(default_factory=set)
    _values: Counter[str | None] = field(default_factory=Counter)
    _turn: int = 0

    def __post_init__(self) -> None:
        """Find which pairs of levels the kernel's cases can have."""
        self.coverage = Coverage(self.op, self.serves, seed=self.seed, in_turn=True)
        self.coverage.search()
        self._draw = random.Random(self.seed)  # noqa: S311 (no secret)

    def next(self) -> Case | None:
        """Draw a case that wasn't drawn before; None if no way finds one."""
        ways = (self._unmet, self._any, self._near)
        for _ in range(_TRIES):
            self._turn += 1
            way = self._far if self._turn % _FAR_TURN == 0 else ways[self._turn % len(ways)]
            case = way()
            if case is not None and case.id() not in self._drawn and self.coverage.served(case):
                self._drawn.add(case.id())
                return case
        return None

    def judged(self, case: Case, ratio: float, variant: str | None) -> None:
        """Note a case's result: its largest error over bound, and the kernel's variant."""
        self.coverage.add(case)
        is_first = variant is not None and variant not in self._variants
        if variant is not None:
            self._variants.add(variant)
        if is_first or ratio >= _NEAR_BOUND:
            self._pool.append((max(ratio, _NEAR_BOUND) if is_first else ratio, case))
            self._pool.sort(key=lambda entry: -entry[0])
            del self._pool[_POOL:]

    def _unmet(self) -> Case | None:
        """Draw a case with a pair of levels that no case has combined."""
        case = self.coverage.one_more()
        return None if case is None else replace(case, seed=self._draw.randrange(_LARGEST_SEED))

    def _any(self) -> Case | None:
        """Draw a case of random levels."""
        share = self._draw.choice((0.1, 0.3, 0.6, 1.0))
        parts = []
        for factor in self.op.allowed.factors:
            levels = list(factor.levels.values())
            level = self._draw.choice(levels) if self._draw.random() < share else levels[0]
            parts.append(self._draw.choice(level))
        if self._draw.random() < _VALUES_IN_TURN:
            parts.append(self._rarest_values())
        return self._changed(self._case(parts))

    def _rarest_values(self) -> Part:
        """Draw one of the distributions that were drawn least, with what it needs."""
        levels = (level for factor in self.op.allowed.factors for level in factor.levels.values())
        parts = [part for level in levels for part in level if part.distribution]
        fewest = min((self._values[part.distribution] for part in parts), default=0)
        rarest = [part for part in parts if self._values[part.distribution] == fewest]
        part = self._draw.choice(rarest or [Part()])
        self._values[part.distribution] += 1
        return part

    def _far(self) -> Case | None:
        """Draw a case of random levels in which an argument has far strides."""
        layouts = [layout for layout in self.op.allowed.layouts.values() if is_far(layout)]
        case = self._any()
        if not self.far or not layouts or case is None:
            return case
        layout = self._draw.choice(layouts)
        tensor, _ = layout.tensors[0]
        place = self.op.geometry(case).get(tensor)
        if place is None:  # the case lacks the option that brings the argument
            return case
        many, rows = place.shape[0], self._draw.choice(_FAR_ROWS)
        sizes = tuple((name, rows if value == many else value) for name, value in case.sizes)
        return replace(case, layout=layout, sizes=sizes)

    def _near(self) -> Case | None:
        """Draw a case near an interesting one."""
        if not self._pool:
            return None
        _, case = self._draw.choice(self._pool)
        factor = self._draw.choice(self.op.allowed.factors)
        part = self._draw.choice(self._draw.choice(list(factor.levels.values())))
        return self._changed(self._case([as_part(self.op, case), part]))

    def _case(self, parts: list[Part]) -> Case:
        return assembled(self.op, parts, seed=self._draw.randrange(_LARGEST_SEED))

    def _changed(self, case: Case) -> Case:
        """Return the case with some sizes changed, and perhaps with several layouts at once."""
        sizes = tuple(
            (name, self._size(name, value) if self._draw.random() < 0.3 else value)
            for name, value in case.sizes
        )
        options = case.options - self.op.allowed.implied(dict(case.sizes))
        changed = replace(case, sizes=sizes, options=options | self.op.allowed.implied(dict(sizes)))
        if changed.layout.tensors and self._draw.random() < 0.4:
            other = self._draw.choice(list(self.op.allowed.layouts.values()))
            layout = joined([changed.layout, other])
            if layout is not None and other.name != changed.layout.name:
                return replace(changed, layout=layout)
        return changed

    def _size(self, name: str, value: int) -> int:
        edge = self._draw.choice(_EDGES)
        tried = self._draw.choice(
            (value - 1, value + 1, 2 * value, value // 2, edge - 1, edge, edge + 1, 3 * edge, 0)
        )
        return max(0, min(tried, self.limits.get(name, tried)))
