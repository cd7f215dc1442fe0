"""Pair the rows of two sides, and say why other rows aren't compared."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from kernel_workbench.reports.comparison.side import EnergyRow, Key, TimedRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kernel_workbench.reports.comparison.side import RecordSide
    from kernel_workbench.reports.record import CaseInfo

AnyRow = TypeVar("AnyRow", bound="TimedRow | EnergyRow")


@dataclass(frozen=True, slots=True)
class RowPair(Generic[AnyRow]):
    """A row of the base, and the row of the other side that is compared with it.

    Attributes:
        gates: True if a loss shuts a gate. A kernel that replaced another counts only where the
            other record has no row of the kernel that it replaced.
    """

    key: Key
    base: AnyRow
    other: AnyRow
    gates: bool


@dataclass(frozen=True, slots=True)
class Dropped:
    """A row that isn't compared, and why."""

    key: Key
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRows(Generic[AnyRow]):
    """The rows of two sides.

    Attributes:
        pairs: rows to compare.
        refused: rows that both sides have and that don't compare.
        unmatched: rows that one side has alone.
        renamed: by op the base's kernel and the other side's, where each side has one kernel of
            the op, by another name.
    """

    pairs: tuple[RowPair[AnyRow], ...]
    refused: tuple[Dropped, ...]
    unmatched: tuple[Dropped, ...]
    renamed: dict[str, tuple[str, str]]


def pair_speeds(
    base: RecordSide, other: RecordSide, *, dispatched: bool = False
) -> PairedRows[TimedRow]:
    """Pair the rows of two sides of speeds.

    Args:
        dispatched: also pair, case by case, the kernels that dispatch takes on either side where
            a kernel that the base hasn't replaced the base's.
    """
    return _paired(base, other, base.speeds, other.speeds, dispatched=dispatched)


def pair_energies(base: RecordSide, other: RecordSide) -> PairedRows[EnergyRow]:
    """Pair the rows of two sides of energies."""
    return _paired(base, other, base.energies, other.energies)


def _paired(
    base: RecordSide,
    other: RecordSide,
    ours: Mapping[Key, AnyRow],
    theirs: Mapping[Key, AnyRow],
    *,
    dispatched: bool = False,
) -> PairedRows[AnyRow]:
    renamed = _renamed(ours, theirs)
    named = {
        key._replace(kernel=renamed[key.op][0]) if key.op in renamed else key: row
        for key, row in theirs.items()
    }
    matches = [(key, key) for key in ours if key in named]
    if dispatched:
        before, now = _dispatched(ours, base), _dispatched(named, other)
        matches += [
            (key, now[case])
            for case, key in before.items()
            if case in now and now[case] not in ours
        ]
    pairs: list[RowPair[AnyRow]] = []
    refused: list[Dropped] = []
    for key, its_key in matches:
        mine, its = ours[key], named[its_key]
        both = key
        if key != its_key:
            both = key._replace(kernel=f"{key.kernel}, then {its_key.kernel}")
        reason = _refusal(mine, its, base, other)
        if reason is None:
            gates = its.row.gates and (key == its_key or key not in named)
            pairs.append(RowPair(both, mine, its, gates))
        else:
            refused.append(Dropped(both, reason))
    apart, unmatched = _apart(
        [key for key in ours if key not in {mine for mine, _ in matches}],
        [key for key in named if key not in {its for _, its in matches}],
        base,
        other,
    )
    return PairedRows(
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


def _dispatched(rows: Mapping[Key, AnyRow], side: RecordSide) -> dict[Key, Key]:
    """Return by case, as a key without its kernel, the key of the kernel that dispatch takes.

    Dispatch takes the highest priority among the side's own kernels; no key where two have it.
    """
    priorities = {
        (kernel.op, kernel.name): kernel.priority
        for kernel in side.header.kernels
        if kernel.origin != "baseline"
    }
    of_case: dict[Key, list[tuple[int, Key]]] = defaultdict(list)
    for key, row in rows.items():
        priority = priorities.get((key.op, key.kernel))
        if priority is not None and row.lack(side.letter) is None:
            of_case[key._replace(kernel="")].append((priority, key))
    chosen = {}
    for case, ranked in of_case.items():
        highest = max(priority for priority, _ in ranked)
        firsts = [key for priority, key in ranked if priority == highest]
        if len(firsts) == 1:
            chosen[case] = firsts[0]
    return chosen


def _apart(
    ours: Iterable[Key], theirs: Iterable[Key], base: RecordSide, other: RecordSide
) -> tuple[list[Dropped], tuple[Dropped, ...]]:
    """Rows of one side: those that the other has under another distribution or cache, and the rest.

    Args:
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
        nearest = candidates.pop(0)
        differences = [
            f"the {what} is {mine} in {base.letter} and {its} in {other.letter}"
            for what, mine, its in (
                ("distribution of inputs", key.distribution, nearest.distribution),
                ("cache", key.cache, nearest.cache),
            )
            if mine != its
        ]
        differing.append(Dropped(key, "; ".join(differences)))
    unmatched += [
        Dropped(key, f"not in {base.letter}") for candidates in near.values() for key in candidates
    ]
    return differing, tuple(unmatched)


def _refusal(ours: AnyRow, theirs: AnyRow, base: RecordSide, other: RecordSide) -> str | None:
    """Return why two rows of one name aren't compared."""
    differ = _inputs_differ(ours.row.case, theirs.row.case, base, other)
    if differ is not None:
        return differ
    mine, its = base.left_out(ours.key), other.left_out(theirs.key)
    if mine != its:
        return (
            f"not the same work: {', '.join(mine) or 'nothing'} is left out in {base.letter} and "
            f"{', '.join(its) or 'nothing'} in {other.letter}"
        )
    for row, side in ((ours, base), (theirs, other)):
        accuracy = row.row.accuracy
        if row.row.status == "wrong" or accuracy == "failed":
            return f"its accuracy failed in {side.letter}"
        lack = row.lack(side.letter)
        if lack is not None:
            return lack
        if side.figures == "measured" and accuracy != "passed":
            checked = "was never checked" if accuracy is None else f"is recorded as: {accuracy}"
            return f"its accuracy {checked} in {side.letter}"
    flops, its_flops = ours.row.flops, theirs.row.flops
    if flops is not None and its_flops is not None and flops != its_flops:
        return (
            f"not the same work: {flops:,} flops are counted in {base.letter} and {its_flops:,} in "
            f"{other.letter}"
        )
    return None


def _inputs_differ(
    ours: CaseInfo, theirs: CaseInfo, base: RecordSide, other: RecordSide
) -> str | None:
    """Return how two cases of one id differ; a case of an import is known by its id alone."""
    kinds = {base.figures, other.figures}
    if "imported" in kinds:
        return None
    fields = ["sizes", "dtype", "options"]
    if kinds == {"measured"}:
        fields += ["layout", "distribution", "seed"]
    for field_name in fields:
        mine, its = getattr(ours, field_name), getattr(theirs, field_name)
        if mine != its:
            return (
                f"other inputs: {field_name} {_value_text(mine)} in {base.letter} and "
                f"{_value_text(its)} in {other.letter}"
            )
    return None


def _value_text(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={size}" for name, size in value.items())
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return str(value)
