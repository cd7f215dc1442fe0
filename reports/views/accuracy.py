"""A record of `nox -s accuracy` as a part of a document.

A terminal's summary has the verdict, the kernels that gate with their largest errors, and what
failed; the rest is behind it. Where a run tried several ops, a kernel stands under its op's name:
two ops may have kernels of one name.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from reports.document.model import Cell, Column, Part, table_of
from reports.phrases import count, duration, memory, ratio, share
from reports.views.accuracy_figures import (
    PROPERTIES,
    ULP_TITLES,
    by_kernel,
    cell_of,
    counterexamples,
    dtype_rank,
    failing_output,
    failing_ratio,
    failures,
    kernel_properties,
    kernel_summaries,
    kernel_variants,
    matrices,
    nearest_passes,
    refusals,
    several_ops,
    short_case,
    slowest,
    ulp_shares,
    variants_counted,
    workspaces,
    worst,
)
from reports.views.accuracy_verdict import headline
from reports.views.run import environment_lines, look_closer, total_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reports.document.model import Field, Level, Table, Tone
    from reports.record import AccuracyRow, Record
    from reports.views.accuracy_figures import (
        FailureGroup,
        KernelSummary,
        KernelVariants,
        Matrix,
        MatrixCell,
        Property,
        UlpShares,
        VariantRows,
        Worst,
    )
    from reports.views.accuracy_verdict import Headline

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
    "no power": "dim",
}
_CELLS = (
    "Each cell: the largest error / deterministic bound of its cases, at most 1 passes; "
    "FAIL p: of the probabilistic bound; FAIL e: of what an emulation's errors allow; no power: "
    "bounds that say nothing; refused: outside what the kernel serves; -: no case."
)


def accuracy_part(record: Record) -> Part:
    """The record's part of a document."""
    line = headline(record)
    environment = environment_lines(record)
    return Part(
        title=f"Accuracy: {record.path.name}",
        verdict=line.verdict,
        tone=_VERDICTS[line.verdict],
        sentence=line.sentence,
        notes=line.notes,
        facts=[each for each in environment if each[0] == "device"],
        environment=[each for each in environment if each[0] != "device"],
        items=tuple(_View(record).tables()),
        record=str(record.path),
        closing=_closing(record, line),
    )


def _closing(record: Record, line: Headline) -> str:
    """What the last line of a terminal says; of a run that failed, how to look closer."""
    if line.verdict == "PASSED":
        statuses = Counter(row.status for row in record.rows)
        return f"{statuses['passed']:,} passed, {statuses['refused']:,} refused"
    failed = sum(row.status == "failed" and row.gates for row in record.rows)
    told = f"{count(failed, 'row')} failed; " if failed else ""
    return f"{told}{look_closer(record)}"


class _View:
    """A record's tables. Each field is named once, as a column beside what its cell shows."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._several = several_ops(record)
        self._summaries = kernel_summaries(record)

    def tables(self) -> Iterator[Table]:
        """The most needed first."""
        gates = [each for each in self._summaries if each.gates]
        beside = [each for each in self._summaries if not each.gates]
        yield self._kernels("Kernels, and their largest error / bound", gates or beside)
        yield from self._failures()
        yield self._kernels("Kernels that don't gate", beside if gates else [], level="details")
        for matrix in matrices(self._record):
            yield self._matrix(matrix)
        yield from self._every_failure()
        yield self._worst_cases()
        yield table_of(
            "Declared arithmetic that differs from a plain kernel's",
            [each for each in self._summaries if each.declares],
            (
                *self._op(lambda each: each.op),
                (Column("kernel"), lambda each: each.name),
                (Column("declares"), lambda each: each.declares),
            ),
            level="details",
        )
        yield self._nearest()
        yield self._ulps()
        yield from self._variants()
        yield self._workspaces()
        yield from self._properties()
        yield self._refusals()
        yield self._slowest()
        yield self._rows()

    def _op(self, op_of: Callable[[Any], str]) -> list[Field[Any]]:
        """The op's column where a run tried several."""
        return [(Column("op", group=True), op_of)] if self._several else []

    def _kernels(
        self, title: str, kernels: Sequence[KernelSummary], level: Level = "summary"
    ) -> Table:
        rows = by_kernel(self._record)
        cells: dict[tuple[str, str, str], MatrixCell] = {}
        for each in kernels:
            of_kernel = rows[each.op, each.name]
            for dtype in {row.case.dtype for row in of_kernel}:
                alike = [row for row in of_kernel if row.case.dtype == dtype]
                cells[each.op, each.name, dtype] = cell_of(alike)
        shown = {dtype for (*_, dtype), each in cells.items() if each.status != "refused"}

        def of_dtype(dtype: str) -> Field[KernelSummary]:
            title = dtype.replace("_", " ")
            return (
                Column(title, "number", rank=int("_" in dtype)),  # mixtures go where it is narrow
                lambda each: _matrix_cell(cells.get((each.op, each.name, dtype))),
            )

        judged: Field[KernelSummary] = (
            Column("judged"),
            lambda each: Cell(each.judged, tone="" if each.judged == "all" else "doubtful"),
        )

        def counted(
            title: str, rank: int, of: Callable[[KernelSummary], int]
        ) -> Field[KernelSummary]:
            return Column(title, "number", rank=rank), lambda each: _count(of(each))

        return table_of(
            title,
            kernels,
            (
                *self._op(lambda each: each.op),
                (Column("kernel"), lambda each: each.name),
                *([judged] if any(each.judged != "all" for each in kernels) else []),
                *map(of_dtype, sorted(shown, key=dtype_rank)),
                counted("ran", 3, lambda each: each.ran),
                counted("passed", 5, lambda each: each.passed),
                (Column("failed", "number", rank=2), _failed),
                (
                    Column("no power", "number", rank=6),
                    lambda each: _count(each.powerless) if each.powerless else Cell("-", 0),
                ),
                counted("refused", 4, lambda each: each.refused),
                (Column("origin", rank=7), lambda each: each.origin),
            ),
            _CELLS if level == "details" else "",
            level=level,
            folded=level == "details",
            most=60,
        )

    def _failures(self) -> Iterator[Table]:
        groups = failures(self._record)

        def fields(*, gating: bool) -> tuple[Field[FailureGroup], ...]:
            return (
                *self._op(lambda each: each.op),
                (Column("kernel"), lambda each: each.kernel),
                (
                    Column("rule"),
                    lambda each: Cell(each.rule, tone="bad" if gating else "doubtful"),
                ),
                (Column("rows", "number"), lambda each: _count(len(each.rows))),
                (
                    Column("worst error / bound", "number"),
                    lambda each: _ratio(failing_ratio(each.rows[0])),
                ),
                (
                    Column("one case", below=True),
                    lambda each: f"{each.rows[0].case.id}: {_wrong(each.rows[0])}",
                ),
                (Column("command", "command"), lambda each: each.rows[0].reproduce),
            )

        gating = [each for each in groups if each.gates]
        yield table_of("Failures", gating, fields(gating=True))
        # One line for a kernel: a baseline's failure is its author's concern.
        by_rules: dict[tuple[str, str], list[FailureGroup]] = {}
        for each in groups:
            if not each.gates:
                by_rules.setdefault((each.op, each.kernel), []).append(each)
        yield table_of(
            "Failures that don't gate",
            by_rules.items(),
            (
                *self._op(lambda each: each[0][0]),
                (Column("kernel"), lambda each: each[0][1]),
                (
                    Column("rows", "number"),
                    lambda each: _count(sum(len(group.rows) for group in each[1])),
                ),
                (
                    Column("rules"),
                    lambda each: ", ".join(f"{len(one.rows):,} {one.rule}" for one in each[1]),
                ),
            ),
            folded=True,
        )

    def _every_failure(self) -> Iterator[Table]:
        groups = failures(self._record)
        for gates in (True, False):
            yield table_of(
                "Every failure" if gates else "Every failure that doesn't gate",
                [(group, row) for group in groups for row in group.rows if group.gates == gates],
                (
                    *self._op(lambda each: each[0].op),
                    (Column("kernel"), lambda each: each[0].kernel),
                    (Column("rule"), lambda each: each[0].rule),
                    (
                        Column("error / bound", "number"),
                        lambda each: _ratio(failing_ratio(each[1])),
                    ),
                    (Column("case", below=True), lambda each: each[1].case.id),
                    (Column("what is wrong", below=True), lambda each: _wrong(each[1])),
                    (Column("command", "command"), lambda each: each[1].reproduce),
                ),
                level="details",
                folded=not gates,
            )

    def _matrix(self, matrix: Matrix) -> Table:
        alone = all(dtypes == ("",) for _, dtypes in matrix.kernels)
        gates = {each.name for each in self._summaries if each.gates and each.op == matrix.op}

        def of_family(family: str) -> Field[tuple[str, str]]:
            return (
                Column(family, "number"),
                lambda each: _matrix_cell(matrix.cells.get((*each, family))),
            )

        dtype: Field[tuple[str, str]] = (Column("dtype"), lambda each: each[1])
        return table_of(
            f"{matrix.op}: {matrix.title}",
            [(name, dtype) for name, dtypes in matrix.kernels for dtype in dtypes],
            (
                (
                    Column("kernel", group=not alone),
                    lambda each: each[0] if each[0] in gates else f"{each[0]}, not gating",
                ),
                *([] if alone else [dtype]),
                *map(of_family, matrix.families),
            ),
            _CELLS,
            level="details",
        )

    def _worst_cases(self) -> Table:
        rows = [
            (each, rule, found)
            for each in self._summaries
            for rule, found in (
                ("deterministic bound", each.deterministic),
                ("probabilistic bound", each.probabilistic),
                ("emulation", each.emulation),
            )
            if found is not None
        ]
        return table_of(
            "Largest error / bound of each kernel, and block / what an emulation allows",
            rows,
            (
                *self._op(lambda each: each[0].op),
                (Column("kernel"), lambda each: each[0].name),
                (Column("rule"), lambda each: each[1]),
                (Column("ratio", "number"), lambda each: _worst(each[2])),
                (Column("output"), lambda each: each[2].output),
                (Column("case"), lambda each: short_case(each[2].row)),
            ),
            level="details",
        )

    def _nearest(self) -> Table:
        return table_of(
            "The worst cases that pass",
            nearest_passes(self._record),
            (
                *self._op(lambda each: each[0].case.op),
                (Column("kernel"), lambda each: each[0].kernel),
                (Column("rule"), lambda each: each[1]),
                (Column("ratio", "number"), lambda each: _worst(each[2])),
                (Column("output"), lambda each: each[2].output),
                (Column("case", below=True), lambda each: each[0].case.id),
                (Column("command", "command"), lambda each: each[0].reproduce),
            ),
            level="details",
        )

    def _ulps(self) -> Table:
        def of_place(place: int) -> Field[UlpShares]:
            title = ULP_TITLES[place]
            return (
                Column(title, "number"),
                lambda each: Cell(share(each.shares[place]), each.shares[place]),
            )

        return table_of(
            "Errors in units of the last place, by the share of a kernel's elements",
            ulp_shares(self._record),
            (
                *self._op(lambda each: each.op),
                (Column("kernel"), lambda each: each.kernel),
                *map(of_place, range(len(ULP_TITLES))),
            ),
            level="details",
        )

    def _variants(self) -> Iterator[Table]:
        kernels = kernel_variants(self._record)
        yield table_of(
            f"Variants: {variants_counted(self._record) or 'those that ran'}",
            [(kernel, each) for kernel in kernels for each in kernel.ran],
            (
                (Column("kernel", group=True), self._variants_of),
                (
                    Column("variant"),
                    lambda each: f"{each[1].name}{'' if each[1].listed else ' (not listed)'}",
                ),
                (Column("cases", "number"), lambda each: _count(each[1].ran)),
                (
                    Column("failed", "number"),
                    lambda each: Cell(
                        f"{each[1].failed:,}",
                        each[1].failed,
                        _gating(each[1].failed, gates=each[1].gates),
                    ),
                ),
                (
                    Column("error / bound", "number"),
                    lambda each: Cell("-") if each[1].ratio is None else _ratio(each[1].ratio),
                ),
            ),
            level="details",
            folded=True,
        )
        yield table_of(
            "Variants that no case took",
            [each for each in kernels if each.not_taken],
            (
                *self._op(lambda each: each.op),
                (Column("kernel"), lambda each: each.kernel),
                (Column("variants", "number"), lambda each: _count(len(each.not_taken))),
                (Column("names", below=True), lambda each: ", ".join(each.not_taken)),
            ),
            level="details",
            folded=True,
        )

    def _variants_of(self, each: tuple[KernelVariants, VariantRows]) -> str:
        kernel = each[0]
        name = f"{kernel.op} {kernel.kernel}" if self._several else kernel.kernel
        return f"{name}: {kernel.sentence}"

    def _workspaces(self) -> Table:
        return table_of(
            "Most memory beyond inputs and outputs, of kernels that declare it",
            workspaces(self._record),
            (
                *self._op(lambda each: each.op),
                (Column("kernel"), lambda each: each.kernel),
                (
                    Column("taken", "number"),
                    lambda each: Cell(
                        memory(each.taken),
                        each.taken,
                        "good" if each.taken <= each.declared else "bad",
                    ),
                ),
                (
                    Column("declared", "number"),
                    lambda each: Cell(memory(each.declared), each.declared),
                ),
                (Column("case"), lambda each: short_case(each.row)),
            ),
            level="details",
        )

    def _properties(self) -> Iterator[Table]:
        known = kernel_properties(self._record)

        yield table_of(
            "What bits depend on, measured",
            known,
            (
                *self._op(lambda each: each.op),
                (Column("kernel"), lambda each: each.kernel),
                *(
                    (Column(name), lambda each, place=place: _property(each.properties[place]))
                    for place, name in enumerate(PROPERTIES)
                ),
            ),
            level="details",
        )
        yield table_of(
            "What shows that bits depend on more",
            [
                (each, found, text)
                for each in known
                for found, text in counterexamples(each)
                if found.is_broken or found.declared is None
            ],
            (
                *self._op(lambda each: each[0].op),
                (Column("kernel"), lambda each: each[0].kernel),
                (Column("property"), lambda each: f"not {each[1].name}"),
                (Column("one case", below=True), lambda each: each[2]),
            ),
            level="details",
        )

    def _refusals(self) -> Table:
        return table_of(
            "Refused: outside what a kernel says it serves",
            refusals(self._record),
            (
                *self._op(lambda each: each.op),
                (Column("kernel"), lambda each: each.kernel),
                (Column("rows", "number"), lambda each: _count(each.count)),
                (Column("reason"), lambda each: each.reason),
                (
                    Column("one case", below=True),
                    lambda each: Cell(short_case(each.example), tone="dim"),
                ),
            ),
            "N: a number that varies.",
            level="details",
            folded=True,
        )

    def _slowest(self) -> Table:
        return table_of(
            f"Time taken: {total_duration(self._record)}; the slowest cases",
            slowest(self._record),
            (
                *self._op(lambda row: row.case.op),
                (Column("kernel"), lambda row: row.kernel),
                (
                    Column("took", "number"),
                    lambda row: Cell(duration(row.duration_s), row.duration_s),
                ),
                (Column("first call", "number"), _first_call),
                (Column("case"), short_case),
            ),
            level="details",
        )

    def _rows(self) -> Table:
        return table_of(
            "Every row",
            self._record.rows,
            (
                *self._op(lambda row: row.case.op),
                (Column("kernel"), lambda row: row.kernel),
                (Column("case"), short_case),
                (Column("status"), lambda row: Cell(row.status, None, _TONES[row.status])),
                (
                    Column("deterministic", "number"),
                    lambda row: _worst(worst([row], "deterministic bound")),
                ),
                (
                    Column("probabilistic", "number"),
                    lambda row: _worst(worst([row], "probabilistic bound")),
                ),
                (
                    Column("took", "number"),
                    lambda row: Cell(duration(row.duration_s), row.duration_s),
                ),
                (Column("why"), lambda row: row.reason or ""),
            ),
            level="page",
            folded=True,
        )


def _count(number: int) -> Cell:
    return Cell(f"{number:,}", number)


def _gating(number: int, *, gates: bool) -> Tone:
    return "" if not number else "bad" if gates else "doubtful"


def _failed(each: KernelSummary) -> Cell:
    return Cell(f"{each.failed:,}", each.failed, _gating(each.failed, gates=each.gates))


def _ratio(value: float) -> Cell:
    if math.isinf(value):  # a rule that measures none
        return Cell("-")
    return Cell(ratio(value), value, "good" if value <= 1 else "bad")


def _worst(found: Worst | None) -> Cell:
    return Cell("-") if found is None else _ratio(found.ratio)


def _matrix_cell(cell: MatrixCell | None) -> Cell:
    if cell is None:
        return Cell("-", tone="dim")
    tone = "doubtful" if cell.status == "failed" and not cell.gates else _TONES[cell.status]
    return Cell(cell.text, cell.ratio, tone)


def _property(found: Property) -> Cell:
    text = found.text if found.row is None else f"{found.text}: {short_case(found.row)}"
    return Cell(text, tone="bad" if found.is_broken else "")


def _wrong(row: AccuracyRow) -> str:
    """What is wrong with a row that failed, and what its kernel printed."""
    told = (row.reason or failing_output(row) or "", *(f"printed: {each}" for each in row.printed))
    return "; ".join(filter(None, told))


def _first_call(row: AccuracyRow) -> Cell:
    known = row.call_s is not None and not math.isnan(row.call_s)
    return Cell(duration(row.call_s), row.call_s) if known and row.call_s is not None else Cell("-")
