"""Which rows of two sides are held against one another, and why others aren't."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from reports.comparison.sides import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reports.comparison.sides import Powered, Side, Timed
    from reports.schema import CaseInfo, Status


class _Compared(Protocol):
    @property
    def key(self) -> Key: ...
    @property
    def case(self) -> CaseInfo: ...
    @property
    def status(self) -> str: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def accuracy(self) -> Status | None: ...
    @property
    def flops(self) -> int | None: ...


_Row = TypeVar("_Row", bound=_Compared)


@dataclass(frozen=True, slots=True)
class Pair(Generic[_Row]):
    """A row of the base, and the same of the other side."""

    key: Key
    base: _Row
    other: _Row


@dataclass(frozen=True, slots=True)
class Dropped:
    """A row that isn't compared, and why."""

    key: Key
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs(Generic[_Row]):
    """pairs: rows to compare; refused: both have them; unmatched: one side has them.

    renamed: kernels of the other side that stand for one of the base, by op: the sides share no
    kernel of the op, and either has one.
    """

    pairs: tuple[Pair[_Row], ...]
    refused: tuple[Dropped, ...]
    unmatched: tuple[Dropped, ...]
    renamed: dict[str, tuple[str, str]]


def pair_speeds(base: Side, other: Side, *, dispatched: bool = False) -> Pairs[Timed]:
    """The rows of two sides of speeds.

    dispatched: where either side timed one kernel of its own on a case, these are a pair, by
    whatever names: dispatch takes another one now.
    """

    def untimed(row: Timed, side: Side) -> str | None:
        if row.evidence is not None:
            return None
        why = f": {row.reason}" if row.reason else ""
        return f"not timed in {side.letter} ({row.status}){why}"

    return _paired(base, other, base.speeds, other.speeds, untimed, dispatched=dispatched)


def pair_energies(base: Side, other: Side) -> Pairs[Powered]:
    """The rows of two sides of energies."""

    def unmeasured(row: Powered, side: Side) -> str | None:
        if row.validity == "invalid":
            return (
                f"its windows in {side.letter} aren't valid: {', '.join(row.codes) or row.reason}"
            )
        if row.energy_j is not None:
            return None
        why = f": {row.reason}" if row.reason else ""
        return f"no energy in {side.letter} ({row.status}){why}"

    return _paired(base, other, base.energies, other.energies, unmeasured)


def _paired(
    base: Side,
    other: Side,
    ours: Mapping[Key, _Row],
    theirs: Mapping[Key, _Row],
    lacks: Callable[[_Row, Side], str | None],
    *,
    dispatched: bool = False,
) -> Pairs[_Row]:
    renamed = _renamed(ours, theirs)
    found = {
        key._replace(kernel=renamed[key.op][0]) if key.op in renamed else key: row
        for key, row in theirs.items()
    }
    pairs: list[Pair[_Row]] = []
    refused: list[Dropped] = []
    matches = {key: key for key in ours if key in found}
    if dispatched:
        matches |= _handed_over(ours, found, base, other)
    for key, its in matches.items():
        reason = _refusal(ours[key], found[its], base, other, lacks)
        named = key if key == its else key._replace(kernel=f"{key.kernel}, then {its.kernel}")
        if reason is None:
            pairs.append(Pair(named, ours[key], found[its]))
        else:
            refused.append(Dropped(named, reason))
    taken = set(matches.values())
    apart, unmatched = _apart(
        [key for key in ours if key not in matches],
        [key for key in found if key not in taken],
        base,
        other,
    )
    return Pairs(
        pairs=tuple(pairs),
        refused=(*refused, *apart),
        unmatched=unmatched,
        renamed=renamed,
    )


def _renamed(ours: Mapping[Key, _Row], theirs: Mapping[Key, _Row]) -> dict[str, tuple[str, str]]:
    """By op the base's one kernel and the other's, where their names differ."""
    kernels: dict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for place, keys in enumerate((ours, theirs)):
        for key in keys:
            kernels[key.op][place].add(key.kernel)
    return {
        op: (next(iter(mine)), next(iter(its)))
        for op, (mine, its) in kernels.items()
        if len(mine) == len(its) == 1 and mine != its
    }


def _handed_over(
    ours: Mapping[Key, _Row], theirs: Mapping[Key, _Row], base: Side, other: Side
) -> dict[Key, Key]:
    """Keys of the base and, of the same case, the other's: either side's one kernel of its own."""
    alone: list[dict[Key, list[Key]]] = []
    for keys, rest, side in ((ours, theirs, base), (theirs, ours, other)):
        own = {(each.op, each.name) for each in side.header.kernels if each.origin != "baseline"}
        of_case: dict[Key, list[Key]] = defaultdict(list)
        for key in keys:
            if key not in rest and (key.op, key.kernel) in own:
                of_case[key._replace(kernel="")].append(key)
        alone.append(of_case)
    mine, its = alone
    return {
        keys[0]: its[case][0]
        for case, keys in mine.items()
        if len(keys) == 1 and len(its.get(case, ())) == 1
    }


def _apart(
    ours: Sequence[Key], theirs: Sequence[Key], base: Side, other: Side
) -> tuple[list[Dropped], tuple[Dropped, ...]]:
    """Rows of one side: those that the other has under another distribution or cache, and the rest.

    ours, theirs: without those that found one another.
    """
    near: dict[tuple[str, str, str], list[Key]] = defaultdict(list)
    for key in theirs:
        near[key.op, key.kernel, key.case].append(key)
    differing: list[Dropped] = []
    unmatched: list[Dropped] = []
    for key in ours:
        candidates = near[key.op, key.kernel, key.case]
        if not candidates:
            unmatched.append(Dropped(key, f"not in {other.letter}"))
            continue
        found = candidates.pop(0)
        told = [
            f"the {what} is {mine} in {base.letter} and {its} in {other.letter}"
            for what, mine, its in (
                ("distribution of inputs", key.distribution, found.distribution),
                ("cache", key.cache, found.cache),
            )
            if mine != its
        ]
        differing.append(Dropped(key, "; ".join(told)))
    unmatched += [
        Dropped(key, f"not in {base.letter}") for candidates in near.values() for key in candidates
    ]
    return differing, tuple(unmatched)


def _refusal(
    ours: _Row,
    theirs: _Row,
    base: Side,
    other: Side,
    lacks: Callable[[_Row, Side], str | None],
) -> str | None:
    """Why two rows of one name aren't compared."""
    differ = _inputs_differ(ours.case, theirs.case, base, other)
    if differ is not None:
        return differ
    mine, its = base.left_out(ours.key), other.left_out(theirs.key)
    if mine != its:
        return (
            f"not the same work: {', '.join(mine) or 'nothing'} is left out in {base.letter} and "
            f"{', '.join(its) or 'nothing'} in {other.letter}"
        )
    for row, side in ((ours, base), (theirs, other)):
        if row.status == "wrong" or row.accuracy == "failed":
            return f"its accuracy failed in {side.letter}"
        reason = lacks(row, side)
        if reason is not None:
            return reason
        if side.figures == "measured" and row.accuracy != "passed":
            told = "was never checked" if row.accuracy is None else f"is told as: {row.accuracy}"
            return f"its accuracy {told} in {side.letter}"
    if ours.flops is not None and theirs.flops is not None and ours.flops != theirs.flops:
        return (
            f"not the same work: {ours.flops:,} flops are counted in {base.letter} and "
            f"{theirs.flops:,} in {other.letter}"
        )
    return None


def _inputs_differ(ours: CaseInfo, theirs: CaseInfo, base: Side, other: Side) -> str | None:
    """How two cases of one id differ; a case of an import is known by its id alone."""
    kinds = {base.figures, other.figures}
    if "imported" in kinds:
        return None
    fields = ["sizes", "dtype", "options"]
    if kinds == {"measured"}:
        fields += ["layout", "distribution", "seed"]
    for each in fields:
        mine, its = getattr(ours, each), getattr(theirs, each)
        if mine != its:
            return (
                f"other inputs: {each} {_told(mine)} in {base.letter} and {_told(its)} in "
                f"{other.letter}"
            )
    return None


def _told(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={size}" for name, size in value.items())
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return str(value)
