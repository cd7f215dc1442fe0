"""A record of `nox -s search` as a part of a document.

What was found comes first: of each find what the case needs, what else fails, and the command that
runs it. Which pairs of levels no case met stands behind it.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from reports.document.model import Cell, Column, Part, table_of
from reports.phrases import count, duration, ratio, share
from reports.views.run import environment_lines, look_closer, total_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reports.document.model import Table, Tone
    from reports.record import AccuracyRow, CoverageRow, FindRow, Record

_TONES: dict[str, Tone] = {"FOUND": "bad", "NOTHING FOUND": "good", "NOTHING RAN": "doubtful"}


def search_part(record: Record) -> Part:
    """The record's part of a document."""
    finds = distinct(record.finds)
    tried = [row for row in record.rows if row.status != "refused"]
    gating = sum(each.gates for each in finds)
    verdict = "FOUND" if finds else "NOTHING FOUND" if tried else "NOTHING RAN"
    tone: Tone = "doubtful" if finds and not gating else _TONES[verdict]
    found = f"{count(len(finds), 'find')}" + (
        f", {len(finds) - gating:,} of baselines" if gating < len(finds) else ""
    )
    cases = len({row.case.id for row in tried})
    sentence = (
        f"{found} in {count(cases, 'case')}, {count(len(tried), 'row')} of "
        f"{count(len({(row.case.op, row.kernel) for row in tried}), 'kernel')}, in "
        f"{total_duration(record)}"
    )
    environment = environment_lines(record)
    again = f"nox -s accuracy -- --cases={shlex.quote(str(record.path))}"
    return Part(
        title=f"Search: {record.path.name}",
        verdict=verdict,
        tone=tone,
        sentence=sentence,
        notes=tuple(_notes(record, finds)),
        facts=[each for each in environment if each[0] == "device"],
        environment=[each for each in environment if each[0] != "device"],
        items=tuple(_tables(record, finds)),
        record=str(record.path),
        closing=f"{found}; to run them again: {again}" if finds else look_closer(record),
    )


def distinct(finds: Sequence[FindRow]) -> list[FindRow]:
    """The finds, one of those that several processes have: of the same kernel, rule and needs."""
    kept: dict[object, FindRow] = {}
    for each in finds:
        kept.setdefault((each.op, each.kernel, each.rule, each.output, each.essence), each)
    return list(kept.values())


def _notes(record: Record, finds: Sequence[FindRow]) -> Iterator[str]:
    if record.problem is not None and not record.header.planned_rows and record.end is None:
        yield record.problem
    cut = sum(not each.whole for each in finds)
    if cut:
        yield f"{count(cut, 'find')} may shrink further: the limit ended it"
    chance = sum(not each.confirmed for each in finds)
    if chance:
        yield f"{count(chance, 'find')} didn't fail again on fresh values"


def _tables(record: Record, finds: Sequence[FindRow]) -> Iterator[Table]:
    yield table_of(
        "Found, each shrunk until nothing could be left out",
        finds,
        (
            (Column("kernel"), lambda each: each.kernel),
            (Column("rule"), lambda each: each.rule),
            (Column("output", rank=3), lambda each: each.output or "-"),
            (Column("needs"), lambda each: ", ".join(each.needs) or "nothing more"),
            (
                Column("fails too", rank=4),
                lambda each: ", ".join(each.fails_too) or "-",
            ),
            (
                Column("fresh values", rank=5),
                lambda each: f"{each.confirmed} of {each.confirmations}",
            ),
            (Column("why", below=True), lambda each: each.reason),
            (Column("run it", below=True), lambda each: each.reproduce),
        ),
        "needs: what a case has to have; fails too: other values of it with which it fails as well",
    )
    yield table_of(
        "Kernels",
        _kernels(record),
        (
            (Column("op", group=True), lambda each: each[0]),
            (Column("kernel"), lambda each: each[1]),
            (Column("cases", "number"), lambda each: Cell(f"{len(each[2]):,}", len(each[2]))),
            (Column("failed", "number"), lambda each: _failed(each[2])),
            (Column("largest error / bound", "number"), lambda each: _largest(each[2])),
            (Column("variants", "number", rank=3), lambda each: _variants(each[2])),
            (Column("pairs met", "number"), lambda each: _met(each[3])),
        ),
        "largest error / bound: of the rows that passed; pairs met: of two factors' levels, of "
        "those that the kernel serves",
    )
    yield table_of(
        "Pairs of levels that no case met",
        [each for each in record.coverage if each.met < each.possible],
        (
            (Column("op", group=True), lambda each: each.op),
            (Column("kernel"), lambda each: each.kernel),
            (Column("factors"), lambda each: f"{each.factor}, {each.other}"),
            (Column("met", "number"), lambda each: Cell(f"{each.met:,}", each.met)),
            (Column("possible", "number"), lambda each: Cell(f"{each.possible:,}", each.possible)),
            (Column("for example", below=True), lambda each: "; ".join(each.missing)),
        ),
        level="details",
    )
    yield table_of(
        "Shrinking",
        finds,
        (
            (Column("kernel"), lambda each: each.kernel),
            (Column("rule"), lambda each: each.rule),
            (Column("cases tried", "number"), lambda each: Cell(f"{each.tried:,}", each.tried)),
            (
                Column("took", "number"),
                lambda each: Cell(duration(each.duration_s), each.duration_s),
            ),
            (Column("drawn", below=True), lambda each: each.first_case),
            (Column("shrunk", below=True), lambda each: each.case.id),
        ),
        level="details",
    )


_Kernel = tuple[str, str, list["AccuracyRow"], list["CoverageRow"]]


def _kernels(record: Record) -> list[_Kernel]:
    rows: dict[tuple[str, str], list[AccuracyRow]] = defaultdict(list)
    for row in record.rows:
        if row.status != "refused":
            rows[row.case.op, row.kernel].append(row)
    return [
        (
            op,
            kernel,
            own,
            [each for each in record.coverage if (each.op, each.kernel) == (op, kernel)],
        )
        for (op, kernel), own in rows.items()
    ]


def _failed(rows: Sequence[AccuracyRow]) -> Cell:
    failed = [row for row in rows if row.status == "failed"]
    tone: Tone = "" if not failed else "bad" if any(row.gates for row in failed) else "doubtful"
    return Cell(f"{len(failed):,}", len(failed), tone)


def _largest(rows: Sequence[AccuracyRow]) -> Cell:
    found = max(
        (
            value
            for row in rows
            if row.status == "passed"
            for each in row.outputs
            for value in (each.worst_deterministic, each.worst_probabilistic)
            if value is not None
        ),
        default=None,
    )
    return Cell("-") if found is None else Cell(ratio(found), found)


def _variants(rows: Sequence[AccuracyRow]) -> Cell:
    taken = Counter(row.variant for row in rows if row.variant is not None)
    return Cell(f"{len(taken):,}" if taken else "-", len(taken))


def _met(rows: Sequence[CoverageRow]) -> Cell:
    possible, met = sum(each.possible for each in rows), sum(each.met for each in rows)
    return Cell(share(met / possible), met / possible) if possible else Cell("-")
