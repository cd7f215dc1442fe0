"""How many of the cases that a kernel was asked to run it ran: a pass on one of hundreds is thin.

A kernel that was asked for (named by --kernel, or a user's) and ran nothing fails the run, whatever
passed beside it. Baselines may serve as little as they like.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reports.phrases import count
from reports.record import shown
from reports.summary import refusals

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reports.record import Record
    from reports.schema import AccuracyRow, KernelInfo

FEW = 20  # cases, below which a pass says little of shapes and layouts
_MOST_REASONS = 3
_MOST_NAMED = 3
_SEED = re.compile(r"-seed-?\d+$")
_MIXED = re.compile(r"(.+)_(.+)weight")  # a dtype's label, where the weight has another


@dataclass(frozen=True, slots=True)
class Served:
    """A kernel that gates, and numbers of cases, each counted once whatever its seeds.

    asked_for  as in the header; example  a row that ran, None where nothing did
    """

    op: str
    name: str
    asked_for: bool
    asked: int
    ran: int
    example: AccuracyRow | None

    @property
    def thin(self) -> bool:
        """Whether it ran few of many.

        Where fewer than FEW were asked for (--case, -k, a short file of --cases) no kernel could
        have run as many, and the user knows: then it isn't the kernel that is thin.
        """
        return 0 < self.ran < FEW <= self.asked

    @property
    def fails(self) -> bool:
        """Whether the run fails since none of its cases ran; by -k it may have been left none."""
        return self.asked_for and self.asked > 0 and self.ran == 0


def served(kernels: Iterable[KernelInfo], rows: Iterable[AccuracyRow]) -> tuple[Served, ...]:
    """What became of each kernel of ours and of the user's."""
    by_kernel: dict[tuple[str, str], list[AccuracyRow]] = {}
    for row in rows:
        by_kernel.setdefault((row.case.op, row.kernel), []).append(row)
    found = []
    for each in kernels:
        if each.origin == "baseline":
            continue
        own = by_kernel.get((each.op, each.name), [])
        ran = [row for row in own if row.status != "refused"]
        example = next((row for row in ran if row.status == "passed"), ran[0] if ran else None)
        told = (each.op, each.name, each.asked_for, _cases(own), _cases(ran), example)
        found.append(Served(*told))
    return tuple(found)


def _cases(rows: Iterable[AccuracyRow]) -> int:
    return len({_SEED.sub("", row.case.id) for row in rows})


def thin_clause(record: Record) -> str:
    """What the verdict's line says of thin kernels: `thin: mine ran 1 of 312 cases`; or nothing."""
    thin = [each for each in served(record.header.kernels, record.rows) if each.thin]
    if not thin or record.problem is not None:
        return ""
    told = [
        f"{shown(each.name)} ran {each.ran:,} of {each.asked:,} cases"
        for each in thin[:_MOST_NAMED]
    ]
    more = len(thin) - len(told)
    return "thin: " + ", ".join(told) + f", and {count(more, 'more kernel')}" * bool(more)


def served_notes(record: Record) -> list[str]:
    """A sentence for each kernel that was asked for and is thin, or that ran nothing of many."""
    notes = []
    for each in served(record.header.kernels, record.rows):
        if each.fails or (each.ran == 0 and each.asked >= FEW):
            notes.append(
                f"{each.name} served none of {count(each.asked, 'case')}: {_reasons(record, each)}"
            )
        elif each.thin and each.asked_for and record.problem is None:
            notes.append(
                f"{each.name} is thin, it refused: {_reasons(record, each)}; to try it on more of "
                f"what it serves, pass --cases=FILE with a line for each case, as {_line(each)}"
            )
    return notes


def _reasons(record: Record, of: Served) -> str:
    """Its most frequent refusals."""
    groups = [each for each in refusals(record) if (each.op, each.kernel) == (of.op, of.name)]
    told = [f"{each.reason} ({count(each.count, 'row')})" for each in groups[:_MOST_REASONS]]
    more: Sequence[object] = groups[_MOST_REASONS:]
    return "; ".join(told) + f"; and {count(len(more), 'more reason')}" * bool(more)


def _line(of: Served) -> str:
    """A case that it ran, as a file of --cases spells it."""
    assert of.example is not None
    case = of.example.case
    mixed = _MIXED.fullmatch(case.dtype)
    line: dict[str, object] = {"op": case.op, "sizes": case.sizes, "dtype": case.dtype}
    if mixed is not None:
        line |= {"dtype": mixed[1], "weight_dtype": mixed[2]}
    if case.layout != "contiguous":
        line["layout"] = case.layout
    if case.options:
        line["options"] = case.options
    return json.dumps(line)
