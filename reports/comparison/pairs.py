"""Which rows of two sides are held against one another, and why others aren't."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from kernel_workbench.reports.comparison.side import Key, Powered, Timed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kernel_workbench.reports.comparison.side import Side
    from kernel_workbench.reports.record import CaseInfo

_Row = TypeVar("_Row", bound="Timed | Powered")


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
    return _paired(base, other, base.speeds, other.speeds, dispatched=dispatched)


def pair_energies(base: Side, other: Side) -> Pairs[Powered]:
    """The rows of two sides of energies."""
    return _paired(base, other, base.energies, other.energies)


def _paired(
    base: Side,
    other: Side,
    ours: Mapping[Key, _Row],
    theirs: Mapping[Key, _Row],
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
        reason = _refusal(ours[key], found[its], base, other)
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


def _renamed(ours: Iterable[Key], theirs: Iterable[Key]) -> dict[str, tuple[str, str]]:
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
    mine, its = _alone(ours, theirs, base), _alone(theirs, ours, other)
    return {key: its[case] for case, key in mine.items() if case in its}


def _alone(keys: Iterable[Key], rest: Mapping[Key, _Row], side: Side) -> dict[Key, Key]:
    """By case without its kernel: the one key of a kernel of the side's own that the rest lacks."""
    own = {(each.op, each.name) for each in side.header.kernels if each.origin != "baseline"}
    of_case: dict[Key, list[Key]] = defaultdict(list)
    for key in keys:
        if key not in rest and (key.op, key.kernel) in own:
            of_case[key._replace(kernel="")].append(key)
    return {case: found[0] for case, found in of_case.items() if len(found) == 1}


def _apart(
    ours: Iterable[Key], theirs: Iterable[Key], base: Side, other: Side
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


def _refusal(ours: _Row, theirs: _Row, base: Side, other: Side) -> str | None:
    """Why two rows of one name aren't compared."""
    differ = _inputs_differ(ours.row.case, theirs.row.case, base, other)
    if differ is not None:
        return differ
    mine, its = base.left_out(ours.key), other.left_out(theirs.key)
    if mine != its:
        return (
            f"not the same work: {', '.join(mine) or 'nothing'} is left out in {base.letter} and "
            f"{', '.join(its) or 'nothing'} in {other.letter}"
        )
    for each, side in ((ours, base), (theirs, other)):
        accuracy = each.row.accuracy
        if each.row.status == "wrong" or accuracy == "failed":
            return f"its accuracy failed in {side.letter}"
        lack = each.lack(side.letter)
        if lack is not None:
            return lack
        if side.figures == "measured" and accuracy != "passed":
            told = "was never checked" if accuracy is None else f"is told as: {accuracy}"
            return f"its accuracy {told} in {side.letter}"
    flops, others = ours.row.flops, theirs.row.flops
    if flops is not None and others is not None and flops != others:
        return (
            f"not the same work: {flops:,} flops are counted in {base.letter} and {others:,} in "
            f"{other.letter}"
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
