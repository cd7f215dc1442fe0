"""Which rows of two sides are held against one another, and why others aren't."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from reports.comparison.sides import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


def pair_speeds(base: Side, other: Side) -> Pairs[Timed]:
    """The rows of two sides of speeds."""

    def untimed(row: Timed, side: Side) -> str | None:
        if row.evidence is not None:
            return None
        why = f": {row.reason}" if row.reason else ""
        return f"not timed in {side.letter} ({row.status}){why}"

    return _paired(base, other, base.speeds, other.speeds, untimed)


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
) -> Pairs[_Row]:
    renamed = _renamed(ours, theirs)
    found = {
        key._replace(kernel=renamed[key.op][0]) if key.op in renamed else key: row
        for key, row in theirs.items()
    }
    pairs: list[Pair[_Row]] = []
    refused: list[Dropped] = []
    for key, row in ours.items():
        if key not in found:
            continue
        reason = _refusal(row, found[key], base, other, lacks)
        if reason is None:
            pairs.append(Pair(key, row, found[key]))
        else:
            refused.append(Dropped(key, reason))
    apart, unmatched = _apart(ours, found, base, other)
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


def _apart(
    ours: Mapping[Key, _Row], theirs: Mapping[Key, _Row], base: Side, other: Side
) -> tuple[list[Dropped], tuple[Dropped, ...]]:
    """Rows of one side: those that the other has under another distribution or cache, and the rest.

    Both sides may have a case under several distributions; then each finds its own.
    """
    near: dict[tuple[str, str, str], list[Key]] = defaultdict(list)
    for key in theirs:
        if key not in ours:
            near[key.op, key.kernel, key.case].append(key)
    differing: list[Dropped] = []
    unmatched: list[Dropped] = []
    for key in ours:
        if key in theirs:
            continue
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
