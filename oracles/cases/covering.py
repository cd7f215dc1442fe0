"""Cases in which every pair of levels meets, and which pairs a set of cases has met.

A kernel serves some of an op's cases. Each pair of levels that such a case can have (a causal
case with a negative zero, a grouped one with an odd head size) is to meet at least once: a
defect that needs two things at once is met then, whichever two they are. Every triple of options
is to meet in `full`.

A pair is possible where a case that has both was found: by putting both into cases that are served,
and where that is refused, by changing one factor more, and two. Then cases are made greedily: two
levels that haven't met are put together, and each other factor takes the level that meets the most
new ones with those taken before, as long as the case is served.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, product

import numpy as np
from numpy.typing import NDArray

from kernel_workbench.oracles.cases import GENERATED
from kernel_workbench.oracles.cases.factors import as_part, assembled, levels_of
from kernel_workbench.oracles.cases.names import objection
from kernel_workbench.oracles.op import CONTIGUOUS, Case, Factor, Op, Part, Tier

_BASES = 6  # served cases that pairs are put into
_REPAIRS = 36  # of random changes, to find a case that has both levels
_ALTERNATIVES = 4  # of a level's parts, where the first is refused
_IN_TURN = 0.9  # how often a level takes one of its parts that the fewest cases have
# Three options are put into a plain case of so much work; a mask leaves half of it.
_ENOUGH_FLOPS = 1e5
_AHEAD = 12  # cases that are named ahead, from the second try on

Levels = tuple[int, ...]
Drawn = tuple[list[Part], list[Part]]  # the parts of a case, and those that come last


def _nobody_asks(_: Sequence[Case]) -> None:
    """Ignore the cases that are about to be tried."""


@dataclass(slots=True)
class Coverage:
    """The levels of an op's factors, and which pairs of them were met by the cases of a kernel.

    serves    whether a case is one of the kernel's, and small enough
    in_turn   whether the layouts of a level, and its sizes, take turns
    ahead     is called with cases that `serves` may be asked about next, a few at a time
    possible  [levels, levels]: whether a served case has both; found by `search`
    met       [levels, levels]: whether a case that was added has both
    """

    op: Op
    serves: Callable[[Case], bool]
    seed: int | str = 0
    ahead: Callable[[Sequence[Case]], object] = _nobody_asks
    in_turn: bool = False
    possible: NDArray[np.bool_] = field(init=False)
    met: NDArray[np.bool_] = field(init=False)
    names: list[tuple[str, str]] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    _draw: random.Random = field(init=False)
    # Each a part that comes first, and then one of each factor.
    _bases: list[list[Part]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Count the levels."""
        for factor in self.op.allowed.factors:
            self._starts.append(len(self.names))
            self.names += [(factor.name, level) for level in factor.levels]
        shape = len(self.names), len(self.names)
        self.possible = np.zeros(shape, dtype=np.bool_)
        self.met = np.zeros(shape, dtype=np.bool_)
        self._idle = np.zeros(len(self.names), dtype=np.bool_)
        self.wanted = self._pairs_to_meet()
        self._draw = random.Random(f"{self.op.name} {self.seed}")  # noqa: S311 (no secret)
        self._places = {name: place for place, name in enumerate(self.names)}

    _places: dict[tuple[str, str], int] = field(init=False)
    # The case that each pair was found in.
    _cases_of_pairs: dict[tuple[int, int], Case] = field(default_factory=dict)
    # How many cases have each layout, by its name, with sizes above 1; and how many each size.
    _uses: Counter[str | tuple[str, int]] = field(default_factory=Counter)
    # Levels of which every case has nothing to compute.
    _idle: NDArray[np.bool_] = field(init=False)

    wanted: NDArray[np.bool_] = field(init=False)

    def _pairs_to_meet(self) -> NDArray[np.bool_]:
        """Return a mask [levels, levels] of the pairs of two factors' levels that are to meet."""
        factors = self.op.allowed.factors
        of_factors = np.array(
            [[a is not b and a.meets_levels_of(b) for b in factors] for a in factors],
            dtype=np.bool_,
        )
        owner = np.repeat(np.arange(len(factors)), [len(factor.levels) for factor in factors])
        return of_factors.reshape(len(factors), len(factors))[np.ix_(owner, owner)]

    def levels(self, case: Case) -> list[int]:
        """Return the places of the case's levels; a level that no part makes has none."""
        pairs = zip(self.op.allowed.factors, levels_of(self.op, case), strict=True)
        places = (self._places.get((factor.name, level)) for factor, level in pairs)
        return [place for place in places if place is not None]

    def _pairs(self, case: Case) -> NDArray[np.bool_]:
        """Return a mask [levels, levels] of the pairs that the case has.

        Where nothing is computed (there are no rows), those with the level that makes it so alone:
        no other two have met there.
        """
        places = np.array(self.levels(case), dtype=np.intp)
        result = np.zeros(self.met.shape, dtype=np.bool_)
        result[places[:, None], places] = True
        if not self._computes(case):
            result &= self._idle[:, None] | self._idle[None, :]
        return result

    def _computes(self, case: Case) -> bool:
        """Return True if there is something to compute."""
        return self.op.flops(case) > 0

    def add(self, case: Case) -> int:
        """Note a case as met; how many possible pairs it is the first to meet."""
        is_telling = all(size > 1 for _, size in case.sizes)  # a stride of one entry isn't taken
        self._uses.update([case.layout.name] * is_telling + [*case.sizes])
        pairs = self._pairs(case)
        new = self._new(pairs)
        self.met |= pairs
        return new

    def _new(self, pairs: NDArray[np.bool_]) -> int:
        """Return how many of the pairs are possible, and haven't met."""
        return int(np.count_nonzero(pairs & ~self.met & self.possible)) // 2

    def served(self, case: Case) -> bool:
        """Return True if the op has such a case, and the kernel serves it."""
        return objection(self.op, case) is None and self.serves(case)

    def _served_case(self, parts: Iterable[Part]) -> Case | None:
        """Return the case of these parts; None where it isn't served."""
        case = assembled(self.op, parts)
        return case if self.served(case) else None

    def _any(self, factor: int, level: str | None = None) -> Part:
        levels = self.op.allowed.factors[factor].levels
        parts = levels[level if level is not None else self._draw.choice(list(levels))]
        if self.in_turn and len(parts) > 1 and self._draw.random() < _IN_TURN:
            uses = [self._uses_of(part) for part in parts]
            fewest = min(uses)
            parts = tuple(part for part, times in zip(parts, uses, strict=True) if times == fewest)
        return self._draw.choice(parts)

    def _uses_of(self, part: Part) -> int:
        """Return how many cases have the layout and the sizes that the part brings."""
        layouts = () if part.layout is None else (part.layout.name,)
        return sum(self._uses[layout] for layout in (*layouts, *part.sizes.items()))

    def _find_bases(self) -> None:
        """Find served cases: the plainest one, those that differ in a factor, the op's own."""
        factors = self.op.allowed.factors
        plain = [Part(), *(next(iter(factor_.levels.values()))[0] for factor_ in factors)]
        tries = [plain]
        tries += [
            [*plain[:place], level[0], *plain[place + 1 :]]
            for place, factor in enumerate(factors, 1)
            for level in factor.levels.values()
        ]
        self._tell_ahead(tries)
        self._bases += [parts for parts in tries if self._served_case(parts) is not None][:_BASES]
        kinds: set[frozenset[str]] = set()
        for case in self.op.cases():
            # Generated cases don't decide which pairs are possible.
            if case.why == GENERATED:
                continue
            if len(self._bases) < 2 * _BASES and case.options not in kinds and self.served(case):
                kinds.add(case.options)
                self._bases.append([as_part(self.op, case), *[Part()] * len(factors)])

    def search(self) -> None:
        """Find which pairs are possible."""
        self._find_bases()
        if not self._bases:
            return
        factors = self.op.allowed.factors
        self._note(case for base in self._bases if (case := self._served_case(base)) is not None)
        alone = {
            (place, level): self._alone(place, level)
            for place, factor in enumerate(factors)
            for level in factor.levels
        }
        for one, other in combinations(range(len(factors)), 2):
            if not factors[one].meets_levels_of(factors[other]):
                continue
            for a in factors[one].levels:
                for b in factors[other].levels:
                    if not (alone[one, a] and alone[other, b]):
                        continue
                    pair = self._place(one, a), self._place(other, b)
                    if not self.possible[pair]:
                        self._try_pair((one, a), (other, b))

    def _place(self, factor: int, level: str) -> int:
        return self._places[self.op.allowed.factors[factor].name, level]

    def _note(self, cases: Iterable[Case]) -> None:
        for case in cases:
            new = self._pairs(case) & self.wanted & ~self.possible
            self._cases_of_pairs |= {
                (int(one), int(other)): case for one, other in np.argwhere(new)
            }
            self.possible |= new

    def _alone(self, factor: int, level: str) -> bool:
        """Return True if a served case has the level at all."""
        place = self._place(factor, level)
        is_met = False
        for case in self._with(((factor, level),), _REPAIRS):
            if place in self.levels(case):
                is_met = True
                if self.op.flops(case):
                    return True
        self._idle[place] = is_met
        return is_met

    def _try_pair(self, one: tuple[int, str], other: tuple[int, str]) -> None:
        pair = self._place(*one), self._place(*other)
        for case in self._with((one, other), _REPAIRS):
            self._note([case])
            if self.possible[pair]:
                return

    def _with(self, wanted: Sequence[tuple[int, str]], tries: int) -> Iterator[Case]:
        """Served cases into which these levels were put: first plain ones, then changed ones."""
        for parts, fixed in self._tries(wanted, tries, 3):
            case = self._served_case([*parts, *fixed])
            if case is not None:
                yield case

    def _tries(self, wanted: Sequence[tuple[int, str]], tries: int, most: int) -> Iterator[Drawn]:
        """Yield parts with these levels, with at most so many other factors changed.

        Once the first was refused, the draws that come next are made, and made again in their turn.
        """
        until, count = 1, _AHEAD
        for number in range(tries):
            if number == until and self.ahead is not _nobody_asks:
                until, count = min(number + count, tries), 2 * count
                state = self._draw.getstate()
                drawn = [self._parts(index, wanted, most) for index in range(number, until)]
                self._draw.setstate(state)
                self._tell_ahead([*parts, *fixed] for parts, fixed in drawn)
            yield self._parts(number, wanted, most)

    def _tell_ahead(self, drawn: Iterable[Sequence[Part]]) -> None:
        """Name the cases that are about to be tried."""
        cases = (assembled(self.op, parts) for parts in drawn)
        self.ahead([case for case in cases if objection(self.op, case) is None])

    def _parts(self, number: int, wanted: Sequence[tuple[int, str]], most: int) -> Drawn:
        """Draw the parts of the try of this number."""
        factors = self.op.allowed.factors
        parts = list(self._bases[number % len(self._bases)])
        for place in self._draw.sample(range(len(factors)), min(number // 12, most)):
            parts[place + 1] = self._any(place)
        # Last, so that what they bring along counts.
        return parts, [self._any(*level) for level in wanted]

    def keep_pairs_of_options(self) -> None:
        """Leave pairs that are possible aside where neither level is an option that is present."""
        present = np.zeros(len(self.names), dtype=np.bool_)
        for factor, start in zip(self.op.allowed.factors, self._starts, strict=True):
            if is_option(factor):
                present[start + 1 : start + len(factor.levels)] = True
        self.possible &= present[:, None] | present[None, :]

    def missing(self) -> NDArray[np.bool_]:
        """A mask [levels, levels] of possible pairs that haven't met."""
        result: NDArray[np.bool_] = self.possible & ~self.met
        return result

    def cover(self, tier: Tier, why: str) -> Iterator[Case]:
        """Cases until each possible pair has met."""
        while (case := self.one_more()) is not None:
            self.add(case)
            yield replace(case, tier=tier, why=why)

    def one_more(self) -> Case | None:
        """A case with pairs that haven't met, as many as it can have; None where all have.

        A pair that can't be made, and that no case was found to have, is given up.
        """
        while (missing := self.missing()).any():
            one = int(missing.sum(1).argmax())
            other = self._draw.choice(np.flatnonzero(missing[one]).tolist())
            greedy = self._greedy(one, other, missing)
            case = (
                greedy
                if greedy and self._new(self._pairs(greedy))
                else self._cases_of_pairs.get((one, other))
            )
            if case is not None:
                return case
            self.possible[one, other] = self.possible[other, one] = False
        return None

    def _greedy(self, one: int, other: int, missing: NDArray[np.bool_]) -> Case | None:
        """Return a case with these two levels, and of other factors the levels that meet most."""
        factors = self.op.allowed.factors
        of_level = [place for place, factor_ in enumerate(factors) for _ in factor_.levels]
        wanted = [
            (of_level[level_place], self.names[level_place][1]) for level_place in (one, other)
        ]
        start = next(
            (case for case in self._assembled_with(wanted) if self._pairs(case[0])[one, other]),
            None,
        )
        if start is None:
            return None
        case, parts, fixed = start
        levels_met = [one, other]
        free = [
            place
            for place in range(len(factors))
            if place not in {factor_place for factor_place, _ in wanted}
        ]
        self._draw.shuffle(free)
        for place in free:
            levels = [self._places[factors[place].name, name] for name in factors[place].levels]
            self._draw.shuffle(levels)
            gains = missing[np.ix_(levels_met, levels)].sum(0).tolist()
            gain = dict(zip(levels, gains, strict=True))
            for level in sorted(levels, key=lambda level_place: -gain[level_place])[:_ALTERNATIVES]:
                if not gain[level]:
                    break
                changed = list(parts)
                changed[place + 1] = self._any(place, self.names[level][1])
                tried = self._served_case([*changed, *fixed])
                if tried is not None and self._has(tried, levels_met, level):
                    case, parts = tried, changed
                    levels_met.append(level)
                    break
        return case

    def _has(self, case: Case, levels_met: Sequence[int], level: int) -> bool:
        """Return True if the case keeps the levels met, and meets the new one with some of them."""
        pairs = self._pairs(case)
        kept = {*levels_met, level} <= set(self.levels(case)) and bool(
            pairs[levels_met[0], levels_met[1]]
        )
        return kept and bool(pairs[level, levels_met].any())

    def _assembled_with(
        self, wanted: Sequence[tuple[int, str]]
    ) -> Iterator[tuple[Case, list[Part], list[Part]]]:
        """Served cases with these levels put in, and the parts that they are made of."""
        for parts, fixed in self._tries(wanted, 4 * _REPAIRS, 4):
            case = self._served_case([*parts, *fixed])
            if case is not None:
                yield case, parts, fixed


def is_option(factor: Factor) -> bool:
    """Return True if the factor's first level is the absence of an option."""
    return next(iter(factor.levels.values())) == (Part(),)


def cover_pairs(
    op: Op,
    serves: Callable[[Case], bool],
    cases: Iterable[Case],
    tier: Tier,
    why: str,
    *,
    of_options: bool = False,
    ahead: Callable[[Sequence[Case]], object] = _nobody_asks,
    in_turn: bool = False,
) -> list[Case]:
    """Return cases until each pair that a served one can have has met, in them or in `cases`.

    of_options: pairs alone in which an option is present. ahead, in_turn: as in `Coverage`.
    """
    coverage = Coverage(op, serves, ahead=ahead, in_turn=in_turn)
    coverage.search()
    if of_options:
        coverage.keep_pairs_of_options()
    for case in cases:
        if serves(case):
            coverage.add(case)
    return list(coverage.cover(tier, why))


def cover_together(
    op: Op, serves: Callable[[Case], bool], cases: Iterable[Case], tier: Tier, why: str
) -> Iterator[Case]:
    """Yield cases until every served combination of each set of `Allowed.together` has met.

    They are put into the sizes and dtypes of the op's own cases without options, in turn. A case
    with further options counts for nothing: few kernels serve it.
    """
    met = [
        (case.options - op.allowed.implied(dict(case.sizes)), frozenset(case.sizes))
        for case in cases
        if op.flops(case) >= _ENOUGH_FLOPS / 2 and serves(case)
    ]
    bases = _plain_cases(op, serves, why, _ENOUGH_FLOPS)
    turn = 0
    for parts in chain.from_iterable(
        product(*alternatives) for alternatives in op.allowed.together
    ):
        options = frozenset[str]().union(*(part.options for part in parts))
        sizes = frozenset(size for part in parts for size in part.sizes.items())
        if any(options == words and sizes <= of for words, of in met):
            continue
        for place in range(len(bases)):
            candidate = assembled(op, [bases[(turn + place) % len(bases)], *parts])
            if objection(op, candidate) is None and serves(candidate):
                turn += place + 1
                met.append((options, frozenset(candidate.sizes)))
                yield replace(candidate, tier=tier, why=why)
                break


def _plain_cases(
    op: Op, serves: Callable[[Case], bool], why: str, least_flops: float = 1.0
) -> list[Part]:
    """Return sizes and dtypes of the op's own small cases without options, in a random order."""
    bases = [
        Part(sizes=dict(case.sizes), dtypes=(case.dtype, case.weight_dtype))
        for case in op.cases()
        if case.tier == "ci" and case.why != why and not case.options
        if op.flops(case) >= least_flops
        if case.layout == CONTIGUOUS and serves(case)
    ]
    random.Random(op.name).shuffle(bases)  # noqa: S311 (no secret)
    return bases


def cover_triples(
    op: Op, serves: Callable[[Case], bool], cases: Iterable[Case], tier: Tier, why: str
) -> Iterator[Case]:
    """Yield cases until every three levels of options that a served case can have have met.

    An option's plain level is that it is absent: a mask that is wrong where there is a bias and no
    window needs that too. Triples are put into the sizes and dtypes of the op's own served cases.
    """
    factors = [factor for factor in op.allowed.factors if is_option(factor)]

    def triples(case: Case) -> set[tuple[tuple[str, str], ...]]:
        levels = [(factor.name, factor.level(case)) for factor in factors]
        return set(combinations(levels, 3))

    met: set[tuple[tuple[str, str], ...]] = set()
    for case in cases:
        if serves(case):
            met |= triples(case)
    bases = _plain_cases(op, serves, why)
    for three in combinations(factors, 3):
        for names in product(*(factor.levels for factor in three)):
            wanted = tuple((factor.name, name) for factor, name in zip(three, names, strict=True))
            if wanted in met:
                continue
            of_levels = (factor.levels[name] for factor, name in zip(three, names, strict=True))
            for base, *parts in product(bases[:_BASES], *of_levels):
                candidate = assembled(op, [base, *parts])
                met_now = triples(candidate)
                if wanted in met_now and objection(op, candidate) is None and serves(candidate):
                    met |= met_now
                    yield replace(candidate, tier=tier, why=why)
                    break
