"""A record of `nox -s accuracy` as a part of a page: what the other forms show, and every row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.coverage import kernel_variants, workspaces
from reports.headline import environment_lines, headline
from reports.invariance import HEAD as PROPERTIES
from reports.invariance import table_rows
from reports.matrix import LEGEND
from reports.page import Cell, Column, Part, Table
from reports.phrases import duration, memory, ratio
from reports.summary import (
    failing_output,
    failing_ratio,
    failures,
    kernel_summaries,
    matrices,
    refusals,
    short_case,
    worst,
)
from reports.ulps import HEAD as ULPS
from reports.ulps import TITLE as ULP_TITLE
from reports.ulps import ulp_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reports.page import Tone
    from reports.record import Record
    from reports.schema import AccuracyRow
    from reports.summary import Matrix, Worst

_VERDICTS: dict[str, Tone] = {
    "PASSED": "good",
    "FAILED": "bad",
    "INCOMPLETE": "doubtful",
    "NOT GATED": "doubtful",
}
_TONES: dict[str, Tone] = {
    "passed": "good",
    "failed": "bad",
    "refused": "dim",
    "no power": "doubtful",
}


def accuracy_part(record: Record) -> Part:
    """The record's part of a page."""
    line = headline(record)
    return Part(
        title=f"Accuracy: {record.path.name}",
        verdict=line.verdict,
        tone=_VERDICTS[line.verdict],
        sentence=line.sentence,
        notes=line.notes,
        facts=environment_lines(record),
        items=tuple(_items(record)),
    )


def _items(record: Record) -> Iterator[Table]:
    yield _failures(record)
    yield _kernels(record)
    for matrix in matrices(record):
        yield _matrix(matrix)
    columns = (Column(ULPS[0]), *(Column(title, "number") for title in ULPS[1:]))
    yield Table(ULP_TITLE, columns, [tuple(map(_share, row)) for row in ulp_rows(record)])
    yield _variants(record)
    yield _workspaces(record)
    properties = tuple(map(Column, PROPERTIES))
    yield Table("What bits depend on, measured", properties, table_rows(record))
    yield _refusals(record)
    yield _rows(record)


def _share(text: str) -> Cell:
    """A share of the elements, which sorts by its number."""
    figures = text.lstrip("<>").removesuffix("%").strip()
    return Cell(text, float(figures) if figures.replace(".", "", 1).isdecimal() else None)


def _kernels(record: Record) -> Table:
    columns = (
        *(Column("kernel"), Column("origin"), Column("judged")),
        *(Column(each, "number") for each in ("ran", "passed", "failed", "no power", "refused")),
        *(Column(each, "number") for each in ("deterministic", "probabilistic", "emulation")),
        *(Column("declares"), Column("op")),
    )
    rows: list[Sequence[Cell | str]] = []
    for each in kernel_summaries(record):
        origin = each.origin if each.gates or not each.ran else f"{each.origin}, not gating"
        counts = (each.ran, each.passed, each.failed, each.powerless, each.refused)
        found = (each.deterministic, each.probabilistic, each.emulation)
        rows.append(
            (
                *(
                    each.name,
                    origin,
                    Cell(each.judged, None, "" if each.judged == "all" else "doubtful"),
                ),
                *(Cell(f"{number:,}", number) for number in counts),
                *map(_worst, found),
                *(each.declares, each.op),
            )
        )
    note = "The largest error / bound of each kernel, and block / what an emulation allows."
    return Table("Kernels", columns, rows, note)


def _worst(found: Worst | None) -> Cell:
    return Cell("-") if found is None else _ratio(found.ratio)


def _ratio(value: float) -> Cell:
    return Cell(ratio(value), value, "good" if value <= 1 else "bad")


def _matrix(matrix: Matrix) -> Table:
    alone = all(dtypes == ("",) for _, dtypes in matrix.kernels)
    named = (Column("kernel"),) if alone else (Column("kernel"), Column("dtype"))
    columns = (*named, *(Column(each, "number") for each in matrix.families))
    rows: list[Sequence[Cell | str]] = []
    for name, dtypes in matrix.kernels:
        for dtype in dtypes:
            found = (matrix.cells.get((name, dtype, each)) for each in matrix.families)
            cells = (
                Cell("-") if each is None else Cell(each.text, each.ratio, _TONES[each.status])
                for each in found
            )
            rows.append((name, *(() if alone else (dtype,)), *cells))
    return Table(f"{matrix.op}: {matrix.title}", columns, rows, LEGEND)


def _failures(record: Record) -> Table:
    every = len(record.rows)
    columns = (
        *(Column("kernel"), Column("rule"), Column("error / bound", "number"), Column("case")),
        *(Column("what is wrong"), Column("reproduce", "command")),
    )
    rows = [
        (
            *(row.kernel, _rule(row), _ratio(failing_ratio(row)), row.case.id),
            *("; printed: ".join((row.reason or failing_output(row) or "", *row.printed)),),
            row.reproduce,
        )
        for group in failures(record, every, every)
        for row in group.rows
    ]
    return Table("Failures", columns, rows)


def _rule(row: AccuracyRow) -> str:
    return (row.rule or "no rule given") + ("" if row.gates else ", not gating")


def _variants(record: Record) -> Table:
    columns = (
        *(Column("op"), Column("kernel"), Column("variant"), Column("cases", "number")),
        *(Column("failed", "number"), Column("error / bound", "number")),
    )
    rows = []
    for kernel in kernel_variants(record):
        names = (kernel.op, kernel.kernel)
        for each in kernel.ran:
            found = Cell("-") if each.ratio is None else _ratio(each.ratio)
            counts = (Cell(f"{each.ran:,}", each.ran), Cell(f"{each.failed:,}", each.failed))
            rows.append((*names, each.name, *counts, found))
        rows += [
            (*names, name, Cell("0", 0, "doubtful"), Cell("0", 0), Cell("-"))
            for name in kernel.not_taken
        ]
    return Table("Variants: the cases that took each", columns, rows, folded=True)


def _workspaces(record: Record) -> Table:
    columns = (
        *(Column("op"), Column("kernel"), Column("taken", "number")),
        *(Column("declared", "number"), Column("case")),
    )
    rows = [
        (
            *(each.op, each.kernel),
            Cell(memory(each.taken), each.taken, "good" if each.taken <= each.declared else "bad"),
            *(Cell(memory(each.declared), each.declared), short_case(each.row)),
        )
        for each in workspaces(record)
    ]
    return Table("Most memory beyond inputs and outputs, of kernels that declare it", columns, rows)


def _refusals(record: Record) -> Table:
    columns = (
        *(Column("op"), Column("kernel"), Column("rows", "number"), Column("reason")),
        Column("one case"),
    )
    rows = [
        (each.op, each.kernel, Cell(f"{each.count:,}", each.count), each.reason,
         short_case(each.example))
        for each in refusals(record)
    ]  # fmt: skip
    return Table("Refused", columns, rows, "N: a number that varies.", folded=True)


def _rows(record: Record) -> Table:
    columns = (
        *(Column("op"), Column("kernel"), Column("case"), Column("status")),
        *(Column("deterministic", "number"), Column("probabilistic", "number")),
        *(Column("took", "number"), Column("why")),
    )
    rows = [
        (
            *(row.case.op, row.kernel, short_case(row)),
            Cell(row.status, None, _TONES[row.status]),
            _worst(worst([row], "deterministic bound")),
            _worst(worst([row], "probabilistic bound")),
            Cell(duration(row.duration_s), row.duration_s),
            row.reason or "",
        )
        for row in record.rows
    ]
    return Table("Every row", columns, rows, folded=True)
