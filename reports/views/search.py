"""A record of `search` as a part of a document.

Finds come first: for each the options that its case needs, what else fails, and the command that
runs it. The pairs of levels that no case met follow.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernel_workbench.reports.commands import program_of
from kernel_workbench.reports.document.fields import number, table_of, text
from kernel_workbench.reports.phrases import (
    VALUES_NOT_FINITE,
    alike_word,
    count,
    duration,
    ratio,
    share,
)
from kernel_workbench.reports.record import FindRow
from kernel_workbench.reports.views.coverage import share_met, unmet_pairs
from kernel_workbench.reports.views.row_columns import fields_in_order
from kernel_workbench.reports.views.run import (
    environment_lines,
    record_part,
    total_duration,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kernel_workbench.reports.document.fields import Field
    from kernel_workbench.reports.document.model import ReportPart, Table, Tone
    from kernel_workbench.reports.record import AccuracyRow, CoverageRow, Record

_TONES: dict[str, Tone] = {"FOUND": "bad", "NOTHING FOUND": "good", "NOTHING RAN": "doubtful"}


def search_part(record: Record) -> ReportPart:
    """Return the record's part of a document."""
    finds = distinct(record.finds)
    tried = [row for row in record.rows if row.status != "refused"]
    gating = sum(find.gates for find in finds)
    verdict = "FOUND" if finds else "NOTHING FOUND" if tried else "NOTHING RAN"
    tone: Tone = "doubtful" if finds and not gating else _TONES[verdict]
    finds_text = count(len(finds), "find")
    finds_text += f", {len(finds) - gating:,} of baselines" if gating < len(finds) else ""
    cases = len({row.case.id for row in tried})
    sentence = (
        f"{finds_text} in {count(cases, 'case')}, {count(len(tried), 'row')} of "
        f"{count(len({(row.case.op, row.kernel) for row in tried}), 'kernel')}, in "
        f"{total_duration(record)}"
    )
    path = shlex.quote(str(record.path))
    command_less_record = record.header.finds_command or program_of(
        record.header.command, "search"
    ).prefix("accuracy")
    again = f"; all of them again: {command_less_record} --cases={path}"
    return record_part(
        record,
        "Search",
        (verdict, tone, sentence),
        found=finds_text + (again if finds else ""),
        notes=_notes(record, finds),
        facts=environment_lines(record),
        items=_tables(record, finds),
        needed=("device",),
    )


def distinct(finds: Sequence[FindRow]) -> list[FindRow]:
    """Return the finds, each once.

    Finds that need no values of their own come first, then finds on finite values; among these the
    finds that fresh values show.
    """
    kept: list[FindRow] = []
    for find in sorted(finds, key=lambda item: (_strangeness(item), -item.confirmed)):
        if not any(_same(find, item) for item in kept):
            kept.append(find)
    return kept


def _strangeness(find: FindRow) -> int:
    """Return 0 for a find on ordinary values, 1 for one on other finite ones, else 2."""
    words = {alike_word(need) for need in find.needs if need.startswith("values ")}
    return 2 if VALUES_NOT_FINITE in words else 1 if words else 0


def _same(one: FindRow, other: FindRow) -> bool:
    """Return True if two finds name the same rule, output, essence and a common dtype."""
    essences = [set(map(alike_word, find.essence)) for find in (one, other)]
    names = ("op", "kernel", "rule")
    alike = all(getattr(one, name) == getattr(other, name) for name in names)
    alike &= essences[0] == essences[1]
    alike &= one.output == other.output or VALUES_NOT_FINITE in essences[0]
    return alike and not set(one.dtypes).isdisjoint(other.dtypes or one.dtypes)


def _notes(record: Record, finds: Sequence[FindRow]) -> Iterator[str]:
    if record.problem is not None and not record.header.planned_rows and record.end is None:
        yield record.problem
    cut = sum(not find.whole for find in finds)
    if cut:
        yield f"{count(cut, 'find')} may shrink further: the limit ended it"
    chance = sum(not find.confirmed for find in finds)
    if chance:
        yield (
            f"{count(chance, 'find')} didn't fail again on fresh values: errors near their bound, "
            "or what memory held"
        )


def _tables(record: Record, finds: Sequence[FindRow]) -> Iterator[Table]:
    fresh: Field[FindRow] = text(
        "fresh values", _confirmed, "runs on other values that failed", rank=5
    )
    yield table_of(
        "Found, each shrunk until nothing could be left out",
        fields_in_order(FindRow, lambda find: find, derived={"fails_too": [fresh]}),
        finds,
    )
    yield table_of(
        "Kernels",
        (
            text("op", lambda item: item.op, group=True),
            text("kernel", lambda item: item.name),
            number("cases", lambda item: len(item.rows)),
            number("failed", lambda item: item.failed, tone=lambda item: item.tone),
            number("error / bound", lambda item: item.largest, ratio, "largest that passed"),
            number("variants", lambda item: item.variants, rank=3),
            number("pairs met", lambda item: item.met, share, "of those that it serves"),
        ),
        _kernels(record),
    )
    yield unmet_pairs(record.coverage)
    yield table_of(
        "Notes",
        (
            text("kernel", lambda item: item.kernel),
            text("case", lambda item: item.case.id, below=True),
            text("note", lambda item: "; ".join(item.notes), below=True),
        ),
        [row for row in record.rows if row.notes],
        level="details",
    )
    yield table_of(
        "Shrinking",
        (
            text("kernel", lambda item: item.kernel),
            text("rule", lambda item: item.rule),
            number("cases tried", lambda item: item.tried),
            number("took", lambda item: item.duration_s, duration),
            text("drawn", lambda item: item.first_case, below=True),
            text("shrunk", lambda item: item.case.id, below=True),
        ),
        finds,
        level="details",
    )


def _confirmed(find: FindRow) -> str:
    return f"{find.confirmed} of {find.confirmations}"


@dataclass(frozen=True, slots=True)
class _SearchedKernel:
    """A kernel's rows that ran, and what they met."""

    op: str
    name: str
    rows: Sequence[AccuracyRow]
    coverage: Sequence[CoverageRow]

    @property
    def failed(self) -> int:
        """Return the number of failed rows."""
        return sum(row.status == "failed" for row in self.rows)

    @property
    def tone(self) -> Tone:
        gates = any(row.gates for row in self.rows if row.status == "failed")
        return "bad" if gates else "doubtful" if self.failed else ""

    @property
    def largest(self) -> float | None:
        ratios = [
            value
            for row in self.rows
            if row.status == "passed"
            for output in row.outputs
            for value in (output.worst_deterministic, output.worst_probabilistic)
            if value is not None
        ]
        return max(ratios, default=None)

    @property
    def variants(self) -> int | None:
        return len({row.variant for row in self.rows if row.variant is not None}) or None

    @property
    def met(self) -> float | None:
        return share_met(self.coverage)


def _kernels(record: Record) -> list[_SearchedKernel]:
    rows: dict[tuple[str, str], list[AccuracyRow]] = defaultdict(list)
    for row in record.rows:
        if row.status != "refused":
            rows[row.case.op, row.kernel].append(row)
    met: dict[tuple[str, str], list[CoverageRow]] = defaultdict(list)
    for coverage_row in record.coverage:
        met[coverage_row.op, coverage_row.kernel].append(coverage_row)
    return [_SearchedKernel(*name, own, met[name]) for name, own in rows.items()]
