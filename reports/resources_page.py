"""A record of `nox -s compile` as a part of a page: what broke, and every kernel by generation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.page import Cell, Column, Part, Table
from reports.phrases import duration, memory, microseconds
from reports.resources import environment_of, summary_of, verdict_of
from reports.resources_figures import code_text, occupancy, short_label

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reports.page import Tone
    from reports.record import Record
    from reports.schema import ResourceRow

_TONES: dict[str, Tone] = {"PASSED": "good", "FAILED": "bad", "INCOMPLETE": "doubtful"}


def resources_part(record: Record) -> Part:
    """The record's part of a page."""
    verdict = verdict_of(record)
    problems = () if record.end is None else record.end.problems
    return Part(
        title=f"Compiled code: {record.path.name}",
        verdict=verdict,
        tone=_TONES[verdict],
        sentence=summary_of(record),
        notes=(*([record.problem] if record.problem else []), *problems),
        facts=environment_of(record),
        items=tuple(_items(record)),
    )


def _items(record: Record) -> Iterator[Table]:
    named = (Column("op"), Column("kernel"), Column("variant"), Column("sm", "number"))
    columns = (*named, Column("expectation"), Column("why it is broken"), Column("instruction"))
    yield Table(
        "Broken expectations",
        columns,
        [
            (*_named(row), each.says, each.reason, each.sass or "")
            for row in record.resources
            for each in row.broken
        ],
    )
    yield Table(
        "Not compiled",
        (*named, Column("why")),
        [
            (*_named(row), Cell(row.reason or "no reason given", None, "bad"))
            for row in record.resources
            if row.status == "failed"
        ],
    )
    yield _kernels(record, named)
    yield _predictions(record)


def _named(row: ResourceRow) -> tuple[Cell | str, ...]:
    return row.op, row.kernel, short_label(row.label, row.function), Cell(f"{row.sm}", row.sm)


def _kernels(record: Record, named: tuple[Column, ...]) -> Table:
    columns = (
        *named,
        Column("registers", "number", "of a thread"),
        Column("spilled", "number", "bytes of a thread"),
        Column("shared memory", "number", "of a block"),
        Column("occupancy", "share", "warps resident of those that an SM can hold"),
        Column("limited by"),
        Column("loads and instructions"),
        Column("code", "number"),
        Column("compiling", "number"),
    )
    rows = []
    for row in record.resources:
        spilled, held = row.spill_store_bytes, occupancy(row)
        rows.append(
            (
                *_named(row),
                Cell("?" if row.registers is None else f"{row.registers}", row.registers),
                Cell("?" if spilled is None else memory(spilled), spilled, _spill_tone(spilled)),
                Cell(
                    "?" if row.shared_bytes is None else memory(row.shared_bytes), row.shared_bytes
                ),
                Cell("?" if held is None else f"{held:.0%}", held, "bad" if held == 0 else ""),
                *(row.limited_by or "", code_text(row)),
                Cell("?" if row.code_bytes is None else memory(row.code_bytes), row.code_bytes),
                Cell(duration(row.compile_s), row.compile_s),
            )
        )
    return Table("Every kernel", columns, rows)


def _spill_tone(spilled: int | None) -> Tone:
    return "doubtful" if spilled else ""


def _predictions(record: Record) -> Table:
    columns = (
        *(Column("op"), Column("kernel"), Column("case"), Column("GPU"), Column("us", "number")),
        *(Column("limit"), Column("none, since")),
    )
    rows = [
        (
            *(each.op, each.kernel, each.case.id.removeprefix(f"{each.op}-"), each.gpu),
            Cell(microseconds(each.predicted_us), each.predicted_us),
            *(each.limit or "", each.reason or ""),
        )
        for each in record.predictions
    ]
    return Table("Predicted, not measured: the least time of a case", columns, rows, folded=True)
