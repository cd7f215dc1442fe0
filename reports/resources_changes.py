"""What changed between two records of compiled code, variant by variant of each generation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from reports.resources_figures import (
    KIB,
    WHOLE,
    Variant,
    matrix_families,
    occupancy,
    share_of_width,
    variant_of,
)

if TYPE_CHECKING:
    from reports.record import Record
    from reports.schema import ResourceRow

Kind = Literal[
    "no longer compiles",
    "spills appeared",
    "more spills",
    "vector width lost",
    "matrix instruction lost",
    "doesn't fit any more",
    "occupancy down",
    "registers up",
    "shared memory up",
    "code grew",
    "compiles again",
    "spills gone",
    "fewer spills",
    "vector width gained",
    "matrix instruction gained",
    "fits again",
    "occupancy up",
    "registers down",
    "shared memory down",
    "code shrank",
]
# In the order they are told: what is worse first, and the gravest of it at the head.
KINDS: tuple[Kind, ...] = Kind.__args__  # type: ignore[attr-defined]
WORSE = frozenset(KINDS[: KINDS.index("compiles again")])
_SHARE = 0.05  # of the bytes loaded: less is a few loads at the edges
_CODE = 0.10  # of the code's size


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one variant on one generation. size: how much, for the order."""

    kind: Kind
    variant: Variant
    sm: int
    before: str
    after: str
    size: float


@dataclass(frozen=True, slots=True)
class Changes:
    """All that changed; variants that only one of the records has, on so many generations.

    compared: rows that both have; tools: versions that differ, as (name, before, after).
    """

    changes: tuple[Change, ...]
    compared: int
    new: dict[Variant, int]
    gone: dict[Variant, int]
    tools: tuple[tuple[str, str, str], ...]


def changes_between(before: Record, after: Record) -> Changes:
    """What `after` has otherwise than `before`."""
    old = {(variant_of(row), row.sm): row for row in before.resources}
    new = {(variant_of(row), row.sm): row for row in after.resources}
    both = [key for key in new if key in old]
    found = [
        Change(kind, key[0], key[1], *texts, size)
        for key in both
        for kind, texts, size in _of_rows(old[key], new[key])
    ]
    found.sort(key=lambda each: (KINDS.index(each.kind), -each.size, each.variant, each.sm))
    # A generation that one of the records left out isn't news of its variants.
    shared = {row.sm for row in before.resources} & {row.sm for row in after.resources}
    return Changes(
        changes=tuple(found),
        compared=len(both),
        new=_counted([key for key in new if key not in old and key[1] in shared]),
        gone=_counted([key for key in old if key not in new and key[1] in shared]),
        tools=_tools(before, after),
    )


def _counted(keys: list[tuple[Variant, int]]) -> dict[Variant, int]:
    counted: dict[Variant, int] = {}
    for variant, _ in keys:
        counted[variant] = counted.get(variant, 0) + 1
    return counted


def _tools(before: Record, after: Record) -> tuple[tuple[str, str, str], ...]:
    def versions(record: Record) -> dict[str, str]:
        return {name: each for row in record.resources for name, each in row.tools.items()}

    old, new = versions(before), versions(after)
    names = [*new, *(name for name in old if name not in new)]
    return tuple(
        (name, old.get(name, "none"), new.get(name, "none"))
        for name in names
        if old.get(name) != new.get(name)
    )


_Found = tuple[Kind, tuple[str, str], float]


def _of_rows(old: ResourceRow, new: ResourceRow) -> Iterator[_Found]:
    if (old.status, new.status) == ("compiled", "failed"):
        yield "no longer compiles", ("compiled", new.reason or "failed"), 0.0
    elif (old.status, new.status) == ("failed", "compiled"):
        yield "compiles again", (old.reason or "failed", "compiled"), 0.0
    if "failed" in (old.status, new.status):
        return
    yield from _spills(old.spill_store_bytes, new.spill_store_bytes)
    yield from _code(old, new)
    fitted, fits = old.blocks_per_sm, new.blocks_per_sm
    if fitted is not None and fits is not None and (fitted == 0) != (fits == 0):
        kind: Kind = "doesn't fit any more" if fits == 0 else "fits again"
        yield kind, (_shared(old), f"{_shared(new)} of {_kib(new.shared_limit_bytes)}"), 0.0
    was, now = occupancy(old), occupancy(new)
    if was and now and was != now:
        kind = "occupancy down" if now < was else "occupancy up"
        yield kind, (f"{was:.0%}", f"{now:.0%} ({new.limited_by})"), abs(now - was)
    yield from _count("registers up", "registers down", old.registers, new.registers)
    if old.shared_bytes is not None and new.shared_bytes is not None:
        more = new.shared_bytes - old.shared_bytes
        if more:
            kind = "shared memory up" if more > 0 else "shared memory down"
            yield kind, (_shared(old), _shared(new)), abs(more)
    if old.code_bytes and new.code_bytes:
        grown = new.code_bytes / old.code_bytes - 1
        if abs(grown) > _CODE:
            kind = "code grew" if grown > 0 else "code shrank"
            yield kind, (f"{old.code_bytes:,} B", f"{new.code_bytes:,} B"), abs(grown)


def _spills(old: int | None, new: int | None) -> Iterator[_Found]:
    if old is None or new is None or old == new:
        return
    kind: Kind = "more spills" if new > old else "fewer spills"
    if not old:
        kind = "spills appeared"
    elif not new:
        kind = "spills gone"
    yield kind, (f"{old:,} B", f"{new:,} B"), abs(new - old)


def _code(old: ResourceRow, new: ResourceRow) -> Iterator[_Found]:
    if old.mix is None or new.mix is None:
        return
    for what, before, after in (
        ("loads", old.mix.loads, new.mix.loads),
        ("stores", old.mix.stores, new.mix.stores),
    ):
        was, now = share_of_width(before, WHOLE), share_of_width(after, WHOLE)
        if abs(now - was) > _SHARE:
            kind: Kind = "vector width lost" if now < was else "vector width gained"
            told = f"{was:.0%} of {what} by 16 bytes", f"{now:.0%}"
            yield kind, told, abs(now - was)
    was_used, now_used = matrix_families(old.mix), matrix_families(new.mix)
    if set(was_used) != set(now_used):
        lost = _strength(now_used) < _strength(was_used)
        kind = "matrix instruction lost" if lost else "matrix instruction gained"
        yield kind, (" ".join(was_used) or "none", " ".join(now_used) or "none"), 0.0


def _strength(families: tuple[str, ...]) -> tuple[int, int]:
    """Of a generation's own instructions above older ones', and of several above one."""
    ranks = [3 if name.startswith("UTC") else 2 if "GMMA" in name else 1 for name in families]
    return max(ranks, default=0), len(ranks)


def _count(up: Kind, down: Kind, old: int | None, new: int | None) -> Iterator[_Found]:
    if old is not None and new is not None and old != new:
        yield up if new > old else down, (f"{old}", f"{new}"), abs(new - old)


def _shared(row: ResourceRow) -> str:
    return "?" if row.shared_bytes is None else _kib(row.shared_bytes)


def _kib(size: int) -> str:
    return f"{size / KIB:.1f} KiB"
