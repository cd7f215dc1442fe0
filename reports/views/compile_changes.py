"""Compare two records of compiled code, variant by variant on each generation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernel_workbench.reports.phrases import memory
from kernel_workbench.reports.views.compile_figures import (
    WHOLE,
    Variant,
    matrix_families,
    occupancy,
    share_of_width,
    variant_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kernel_workbench.reports.record import CompileRow, Record

# The gravest first: what is worse, and the same the other way round.
_PAIRS = (
    ("no longer compiles", "compiles again"),
    ("spills appeared", "spills gone"),
    ("more spills", "fewer spills"),
    ("vector width lost", "vector width gained"),
    ("matrix instruction lost", "matrix instruction gained"),
    ("doesn't fit any more", "fits again"),
    ("occupancy down", "occupancy up"),
    ("registers up", "registers down"),
    ("shared memory up", "shared memory down"),
    ("code grew", "code shrank"),
)
KINDS = [worse for worse, _ in _PAIRS] + [better for _, better in _PAIRS]
WORSE = frozenset(worse for worse, _ in _PAIRS)
_SHARE = 0.05  # of the bytes loaded: less is a few loads at the edges
_CODE = 0.10  # of the code's size


@dataclass(frozen=True, slots=True)
class CodeChange:
    """One change of one variant on one generation. size: how much, for the order."""

    kind: str
    variant: Variant
    sm: int
    before: str
    after: str
    size: float


@dataclass(frozen=True, slots=True)
class CodeChanges:
    """All that changed; variants that only one of the records has, on so many generations.

    Attributes:
        compared: the number of rows that both records have.
        tools: versions that differ, as (name, before, after).
    """

    changes: tuple[CodeChange, ...]
    compared: int
    new: dict[Variant, int]
    gone: dict[Variant, int]
    tools: tuple[tuple[str, str, str], ...]


def changes_between(before: Record, after: Record) -> CodeChanges:
    """Return the changes from one record to another."""
    old = {(variant_of(row), row.sm): row for row in before.compiled}
    new = {(variant_of(row), row.sm): row for row in after.compiled}
    both = [key for key in new if key in old]
    result = [
        CodeChange(kind, variant, sm, then, now, size)
        for variant, sm in both
        for kind, then, now, size in _of_rows(old[variant, sm], new[variant, sm])
    ]
    result.sort(key=lambda item: (KINDS.index(item.kind), -item.size, item.variant, item.sm))
    # A generation that one of the records left out isn't news of its variants.
    shared = {sm for _, sm in old} & {sm for _, sm in new}
    had, has = tools_of(before), tools_of(after)
    return CodeChanges(
        changes=tuple(result),
        compared=len(both),
        new=Counter(variant for variant, sm in new.keys() - old.keys() if sm in shared),
        gone=Counter(variant for variant, sm in old.keys() - new.keys() if sm in shared),
        tools=tuple(
            (name, had.get(name, "none"), has.get(name, "none"))
            for name in dict.fromkeys((*has, *had))
            if had.get(name) != has.get(name)
        ),
    )


def tools_of(record: Record) -> dict[str, str]:
    """Return the versions of what compiled the rows."""
    return {name: version for row in record.compiled for name, version in row.tools.items()}


_Found = tuple[str, str, str, float]  # the kind, before, after, and how much


def _of_rows(old: CompileRow, new: CompileRow) -> Iterator[_Found]:
    if old.status != new.status:
        kind = "no longer compiles" if new.status == "failed" else "compiles again"
        yield kind, old.reason or old.status, new.reason or new.status, 0.0
    if "failed" in (old.status, new.status):
        return
    more, fewer = "more spills", "fewer spills"
    if not old.spill_store_bytes or not new.spill_store_bytes:
        more, fewer = "spills appeared", "spills gone"
    yield from _amount(more, fewer, old.spill_store_bytes, new.spill_store_bytes, _bytes)
    yield from _code(old, new)
    fitted, fits = old.blocks_per_sm, new.blocks_per_sm
    if fitted is not None and fits is not None and (fitted == 0) != (fits == 0):
        kind = "doesn't fit any more" if fits == 0 else "fits again"
        words = ["?" if row.shared_bytes is None else memory(row.shared_bytes)
                for row in (old, new)]  # fmt: skip
        yield kind, words[0], f"{words[1]} of {memory(new.shared_limit_bytes)}", 0.0
    was, is_now = occupancy(old), occupancy(new)
    if was and is_now and was != is_now:
        kind = "occupancy down" if is_now < was else "occupancy up"
        yield kind, f"{was:.0%}", f"{is_now:.0%} ({new.limited_by})", abs(is_now - was)
    yield from _amount("registers up", "registers down", old.registers, new.registers, str)
    yield from _amount(
        "shared memory up", "shared memory down", old.shared_bytes, new.shared_bytes, memory
    )
    if old.code_bytes and new.code_bytes and abs(new.code_bytes / old.code_bytes - 1) > _CODE:
        yield from _amount("code grew", "code shrank", old.code_bytes, new.code_bytes, _bytes)


def _amount(
    up: str, down: str, old: int | None, new: int | None, form: Callable[[int], str]
) -> Iterator[_Found]:
    if old is not None and new is not None and old != new:
        yield up if new > old else down, form(old), form(new), abs(new - old)


def _bytes(number: int) -> str:
    return f"{number:,} B"


def _code(old: CompileRow, new: CompileRow) -> Iterator[_Found]:
    if old.mix is None or new.mix is None:
        return
    for what, before, after in (
        ("loads", old.mix.loads, new.mix.loads),
        ("stores", old.mix.stores, new.mix.stores),
    ):
        was, now = share_of_width(before, WHOLE), share_of_width(after, WHOLE)
        if abs(now - was) > _SHARE:
            kind = "vector width lost" if now < was else "vector width gained"
            yield kind, f"{was:.0%} of {what} by 16 bytes", f"{now:.0%}", abs(now - was)
    had, has = matrix_families(old.mix), matrix_families(new.mix)
    if set(had) != set(has):
        lost = _strength(has) < _strength(had)
        kind = "matrix instruction lost" if lost else "matrix instruction gained"
        yield kind, " ".join(had) or "none", " ".join(has) or "none", 0.0


def _strength(families: tuple[str, ...]) -> tuple[int, int]:
    """Return a rank: a generation's own instructions above older ones, several above one."""
    ranks = [3 if name.startswith("UTC") else 2 if "GMMA" in name else 1 for name in families]
    return max(ranks, default=0), len(ranks)
