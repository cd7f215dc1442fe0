"""The verdict on a run, in one sentence that holds, and how many of its cases a kernel ran.

A pass on one case of hundreds is thin. A kernel that was asked for (named by --kernel, or a user's)
and ran nothing fails the run, whatever passed beside it. Baselines may serve as little as they
like.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kernel_workbench.reports.phrases import count, shown
from kernel_workbench.reports.views.accuracy_figures import (
    BOUND_RULES,
    configurations_counted,
    refusals,
    short_case,
    variants_counted,
)
from kernel_workbench.reports.views.run import baselines_of, part_notes, total_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kernel_workbench.reports.record import AccuracyRow, KernelInfo, Record

Verdict = Literal["PASSED", "FAILED", "INCOMPLETE", "NOT GATED"]
FEW = 20  # cases, below which a pass says little of shapes and layouts
_MOST_REASONS = 3
_MOST_NAMED = 3
_SEED = re.compile(r"-seed-?\d+$")
_MIXED = re.compile(r"(.+)_(.+)weight")  # a dtype's label, where the weight has another


@dataclass(frozen=True, slots=True)
class Headline:
    """The verdict, the sentence that follows it, and what a reader must know besides."""

    verdict: Verdict
    sentence: str
    notes: tuple[str, ...]


def headline(record: Record) -> Headline:
    """Give the verdict. PASSED needs a whole record, a row that passed, nothing against it."""
    rows = record.rows
    failed = sum(row.status == "failed" and row.gates for row in rows)
    beside = [row for row in rows if row.status == "failed" and not row.gates]
    gated = any(row.gates for row in rows)
    ran = [row for row in rows if row.status != "refused"]
    judged = [row for row in ran if row.status != "no power"]
    contradictions = sum(_contradicts(row) for row in rows)
    status = 0 if record.end is None else record.end.exit_status
    notes = []
    verdict: Verdict = "PASSED"
    if not gated:
        verdict = "NOT GATED"
        notes.append("only baselines were run, and they don't gate: this is no verdict on a kernel")
    unserved = any(each.fails for each in served(record.header.kernels, rows))
    if failed or unserved or not any(row.gates or not gated for row in ran):
        verdict = "FAILED"
    elif not any(row.gates or not gated for row in judged):
        verdict = "NOT GATED"
        notes.append("no bound of a row that gates says anything: this is no verdict on a kernel")
    if not ran:
        notes = [f"nothing ran: {_all_refused(len(rows))}"]
    elif gated and not any(row.gates for row in ran):
        notes.append("no row that gates ran: each was refused")
    notes += served_notes(record)
    if contradictions:
        verdict = "FAILED"
        notes.append(
            f"{count(contradictions, 'row')} marked passed with an error that isn't within "
            "the bound: the record contradicts itself"
        )
    notes += _parts(record)
    unjudged = sum(_says_nothing(row) for row in rows)
    if unjudged:
        notes.append(
            f"{count(unjudged, 'row')} passed with an output of which nothing is promised: each "
            "of its bounds is infinite"
        )
    if status and not failed and not unserved and record.problem is None:
        verdict = "FAILED"
        notes.append(f"no row that gates failed, yet the run's exit status was {status}")
    if record.problem is not None:
        verdict = "INCOMPLETE"
        problems = () if record.end is None else record.end.problems
        notes[:0] = [record.problem, *problems]
        if failed:
            notes.insert(1, f"{count(failed, 'row')} that gates failed already")
    if beside:
        notes.append(_beside(record, beside))
    told = {(row.case.op, row.kernel): row for row in reversed(rows) if row.notes}
    noted = Counter((row.case.op, row.kernel) for row in rows if row.notes)
    for row in reversed(told.values()):
        more = noted[row.case.op, row.kernel] - 1
        more_cases = f" and {count(more, 'more case')}" if more else ""
        notes.append(f"{row.kernel} {'; it '.join(row.notes)} (on {row.case.id}{more_cases})")
    return Headline(verdict, _counts(record, failed, len(beside)), tuple(notes))


def _contradicts(row: AccuracyRow) -> bool:
    ratios = [each.worst_deterministic for each in row.outputs]
    ratios += [each.worst_probabilistic or 0.0 for each in row.outputs]
    return row.status == "passed" and not all(value <= 1 for value in ratios)


def _says_nothing(row: AccuracyRow) -> bool:
    judged = [each.elements - each.unjudged for each in row.outputs if each.elements]
    return row.status == "passed" and 0 in judged


def _all_refused(rows: int) -> str:
    return f"{count(rows, 'row')}, each refused" if rows else "the record has no rows"


def _beside(record: Record, rows: Sequence[AccuracyRow]) -> str:
    baselines = baselines_of(record.header)
    whose = "baselines"
    if any((row.case.op, row.kernel) not in baselines for row in rows):
        whose = "kernels that don't gate"
    if all(row.rule in BOUND_RULES for row in rows):
        return f"{whose}: {count(len(rows), 'row')} above the bound, not gating"
    rules = Counter(row.rule or "no rule given" for row in rows)
    listed = ", ".join(f"{times:,} {rule}" for rule, times in rules.most_common())
    return f"{whose}: {count(len(rows), 'row')} failed ({listed}), not gating"


def _counts(record: Record, failed: int, beside: int) -> str:
    rows = record.rows
    kernels = len({(row.case.op, row.kernel) for row in rows})
    statuses = Counter(row.status for row in rows)
    cases = len({(row.case.op, short_case(row)) for row in rows})
    joint = " x " if kernels * cases == len(rows) else ", "
    ops = len({row.case.op for row in rows})
    over = f"{ops:,} ops, " if ops > 1 else ""
    tried = f"{over}{count(kernels, 'kernel')}{joint}{count(cases, 'case')}"
    text = f"{count(len(rows), 'row')} ({tried}): {statuses['passed']:,} passed, {failed:,} failed"
    if beside:
        text += f", {beside:,} failed without gating"
    if statuses["no power"]:
        text += f", {statuses['no power']:,} without power"
    text += f", {statuses['refused']:,} refused"
    parts = len(_parts(record))
    also = (
        f"in {total_duration(record)}",
        f"{count(parts, 'kernel')} judged in part" if parts else "",
        variants_counted(record),
        configurations_counted(record),
        thin_clause(record),
    )
    return f"{text}, " + "; ".join(each for each in also if each)


def _parts(record: Record) -> list[str]:
    """What is said of the kernels that ran and compute a part of their op."""
    ran = {(row.case.op, row.kernel) for row in record.rows if row.status != "refused"}
    return part_notes(record.header, ran)


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
        # A run that was cut off hasn't tried the cases that the kernel may serve.
        tried = record.problem is None
        if tried and (each.fails or (each.ran == 0 and each.asked >= FEW)):
            notes.append(
                f"{each.name} served none of {count(each.asked, 'case')}: {_reasons(record, each)}"
            )
        elif tried and each.thin and each.asked_for:
            notes.append(
                f"{each.name} is thin, it refused: {_reasons(record, each)}; to try it on more of "
                f"what it serves, pass --cases=FILE with a line for each case, as {_line(each)}"
            )
    return notes


def _reasons(record: Record, of: Served) -> str:
    """Its most frequent refusals."""
    groups = [each for each in refusals(record) if (each.op, each.kernel) == (of.op, of.name)]
    told = [f"{each.why} ({count(len(each.rows), 'row')})" for each in groups[:_MOST_REASONS]]
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
