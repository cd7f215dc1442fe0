"""A record of `accuracy` as a part of a document.

A terminal's summary has the verdict, the kernels that gate with their largest errors, and what
failed; the rest is behind it. Where a run tried several ops, a kernel stands under its op's name:
two ops may have kernels of one name.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from kernel_workbench.reports.document.fields import command, number, table_of, text
from kernel_workbench.reports.document.model import Cell, Column
from kernel_workbench.reports.phrases import count, duration, memory, ratio, share
from kernel_workbench.reports.record import AccuracyRow
from kernel_workbench.reports.views.accuracy_figures import (
    MEASURED_RULES,
    PROPERTIES,
    ULP_TITLES,
    cell_of,
    counterexamples,
    dtype_rank,
    failing_output,
    failing_ratio,
    failures,
    held_case,
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
from kernel_workbench.reports.views.accuracy_verdict import headline
from kernel_workbench.reports.views.coverage import share_met, unmet_pairs
from kernel_workbench.reports.views.row_columns import field_of, fields_in_order
from kernel_workbench.reports.views.run import environment_lines, record_part, total_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kernel_workbench.reports.document.fields import Field
    from kernel_workbench.reports.document.model import Level, Part, Table, Tone
    from kernel_workbench.reports.record import CoverageRow, Record
    from kernel_workbench.reports.views.accuracy_figures import (
        KernelProperties,
        KernelSummary,
        KernelVariants,
        Key,
        Matrix,
        MatrixCell,
        Property,
        RowGroup,
        UlpShares,
        VariantRows,
        Worst,
    )

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
_MOST_FAILURES = 10  # of three lines each: so many a terminal shows, however full the screen is


def accuracy_part(record: Record) -> Part:
    """The record's part of a document."""
    line = headline(record)
    statuses = Counter(row.status for row in record.rows)
    failed = sum(row.status == "failed" and row.gates for row in record.rows)
    passed = f"{statuses['passed']:,} passed, {statuses['refused']:,} refused"
    return record_part(
        record,
        "Accuracy",
        (line.verdict, _VERDICTS[line.verdict], line.sentence),
        found=f"{count(failed, 'row')} failed" if failed else passed,
        notes=line.notes,
        facts=environment_lines(record),
        items=_View(record).tables(),
    )


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
        named = self._names(lambda each: (each.op, each.name))
        yield table_of(
            "Declared arithmetic that differs from a plain kernel's",
            [*named, text("declares", lambda each: each.declares)],
            [each for each in self._summaries if each.declares],
            level="details",
        )
        yield self._nearest()
        yield self._ulps()
        yield from self._variants()
        yield self._workspaces()
        yield from self._properties()
        yield self._refusals()
        yield from self._coverage()
        yield self._slowest()
        yield self._rows()

    def _names(self, key_of: Callable[[Any], Key]) -> list[Field[Any]]:
        """The kernel's column, below its op's where a run tried several."""
        op: list[Field[Any]] = [text("op", lambda each: key_of(each)[0], group=True)]
        return [*(op if self._several else []), text("kernel", lambda each: key_of(each)[1])]

    def _kernels(
        self, title: str, kernels: Sequence[KernelSummary], level: Level = "summary"
    ) -> Table:
        cells: dict[tuple[str, str, str], MatrixCell] = {}
        for each in kernels:
            for dtype in {row.case.dtype for row in each.rows}:
                alike = [row for row in each.rows if row.case.dtype == dtype]
                cells[each.op, each.name, dtype] = cell_of(alike)
        shown = {dtype for (*_, dtype), each in cells.items() if each.status != "refused"}

        def of_dtype(dtype: str) -> Field[KernelSummary]:
            return _matrix_field(
                dtype.replace("_", " "),
                lambda each: cells.get((each.op, each.name, dtype)),
                "the largest error / deterministic bound of its cases; at most 1 passes",
                rank=int("_" in dtype),  # mixtures go where it is narrow
            )

        judged: Field[KernelSummary] = text(
            "judged",
            lambda each: Cell(each.judged, tone="" if each.judged == "all" else "doubtful"),
        )
        fields: list[Field[KernelSummary]] = [
            *self._names(lambda each: (each.op, each.name)),
            *([judged] if any(each.judged != "all" for each in kernels) else []),
            *map(of_dtype, sorted(shown, key=dtype_rank)),
            number("ran", lambda each: each.count("passed", "failed", "no power"), rank=3),
            number("passed", lambda each: each.count("passed"), rank=5),
            number("failed", lambda each: each.failed, rank=2, tone=_failed_tone),
            number("no power", lambda each: each.count("no power") or None, rank=6),
            number("refused", lambda each: each.count("refused"), rank=4),
            text("origin", lambda each: each.origin, rank=7),
        ]
        is_beside = level == "details"
        note = _CELLS if is_beside else ""
        least = 0 if is_beside else 60
        return table_of(title, fields, kernels, note, level=level, folded=is_beside, least=least)

    def _coverage(self) -> Iterator[Table]:
        """Where the run was asked for it."""
        met: dict[Key, list[CoverageRow]] = {}
        for each in self._record.coverage:
            met.setdefault((each.op, each.kernel), []).append(each)
        fields: list[Field[tuple[Key, list[CoverageRow]]]] = [
            *self._names(lambda each: each[0]),
            number("cases", lambda each: each[1][0].cases),
            number("possible", lambda each: sum(one.possible for one in each[1])),
            number("met", lambda each: sum(one.met for one in each[1])),
            number("share", lambda each: share_met(each[1]), share),
        ]
        note = (
            "Of pairs that a case has which the kernel serves and this device judges in a second; "
            "`--tier full` and `search` meet more."
        )
        yield table_of("Pairs of levels that met", fields, list(met.items()), note, level="details")
        yield unmet_pairs(self._record.coverage)

    def _failures(self) -> Iterator[Table]:
        groups = failures(self._record)
        gating: list[Field[RowGroup]] = [
            *self._names(lambda each: (each.op, each.kernel)),
            text("rule", lambda each: Cell(each.why, tone="bad")),
            text("output", lambda each: each.output or "-", rank=1),
            number("rows", lambda each: len(each.rows)),
            _ratio_field("error / bound", lambda each: each.largest, "the worst"),
            text(
                "shared",
                lambda each: f"all need: {', '.join(each.needs)}" if each.needs else "",
                "what the failing cases share and no passing case of the kernel has",
                below=True,
            ),
            text(
                "plainest case",
                lambda each: f"{held_case(each.rows[0])}: {_wrong(each.rows[0])}",
                below=True,
            ),
            command("command", lambda each: each.rows[0].reproduce),
        ]
        failed = [each for each in groups if each.gates]
        yield table_of("Failures", gating, failed, least=_MOST_FAILURES)
        # One line for a kernel: a baseline's failure is its author's concern.
        by_rules: dict[Key, list[RowGroup]] = {}
        for each in groups:
            if not each.gates:
                by_rules.setdefault((each.op, each.kernel), []).append(each)
        beside: list[Field[tuple[Key, list[RowGroup]]]] = [
            *self._names(lambda each: each[0]),
            number("rows", lambda each: sum(len(group.rows) for group in each[1])),
            text(
                "rules", lambda each: ", ".join(f"{len(one.rows):,} {one.why}" for one in each[1])
            ),
        ]
        yield table_of("Failures that don't gate", beside, by_rules.items(), folded=True)

    def _every_failure(self) -> Iterator[Table]:
        fields: list[Field[tuple[RowGroup, AccuracyRow]]] = [
            *self._names(lambda each: (each[0].op, each[0].kernel)),
            text("rule", lambda each: each[0].why),
            text("output", lambda each: each[0].output or "-", rank=1),
            _ratio_field("error / bound", lambda each: failing_ratio(each[1])),
            text("case", lambda each: held_case(each[1]), below=True),
            text("what is wrong", lambda each: _wrong(each[1]), below=True),
            command("command", lambda each: each[1].reproduce),
        ]
        groups = failures(self._record)
        for gates, title in (
            (True, "Every failure"),
            (False, "Every failure that doesn't gate"),
        ):
            rows = [(group, row) for group in groups for row in group.rows if group.gates == gates]
            yield table_of(title, fields, rows, level="details", folded=not gates)

    def _matrix(self, matrix: Matrix) -> Table:
        alone = all(dtypes == ("",) for _, dtypes in matrix.kernels)
        gates = {each.name for each in self._summaries if each.gates and each.op == matrix.op}

        def of_family(family: str) -> Field[tuple[str, str]]:
            return _matrix_field(family, lambda each: matrix.cells.get((*each, family)))

        dtype: Field[tuple[str, str]] = text("dtype", lambda each: each[1])
        fields: list[Field[tuple[str, str]]] = [
            text(
                "kernel",
                lambda each: each[0] if each[0] in gates else f"{each[0]}, not gating",
                group=not alone,
            ),
            *([] if alone else [dtype]),
            *map(of_family, matrix.families),
        ]
        rows = [(name, dtype) for name, dtypes in matrix.kernels for dtype in dtypes]
        return table_of(f"{matrix.op}: {matrix.title}", fields, rows, _CELLS, level="details")

    def _worst_cases(self) -> Table:
        rows = [
            (each, rule, found)
            for each in self._summaries
            for rule in MEASURED_RULES
            if (found := worst(each.rows, rule)) is not None
        ]
        fields: list[Field[tuple[KernelSummary, str, Worst]]] = [
            *self._names(lambda each: (each[0].op, each[0].name)),
            text("rule", lambda each: each[1]),
            _ratio_field("ratio", lambda each: each[2].ratio),
            text("output", lambda each: each[2].output),
            text("case", lambda each: short_case(each[2].row)),
        ]
        title = "Largest error / bound of each kernel, and block / what an emulation allows"
        return table_of(title, fields, rows, level="details")

    def _nearest(self) -> Table:
        fields: list[Field[tuple[AccuracyRow, str, Worst]]] = [
            *self._names(lambda each: (each[0].case.op, each[0].kernel)),
            text("rule", lambda each: each[1]),
            _ratio_field("ratio", lambda each: each[2].ratio),
            text("output", lambda each: each[2].output),
            text("case", lambda each: held_case(each[0]), below=True),
            command("command", lambda each: each[0].reproduce),
        ]
        nearest = nearest_passes(self._record)
        return table_of("The worst cases that pass", fields, nearest, level="details")

    def _ulps(self) -> Table:
        def of_place(place: int) -> Field[UlpShares]:
            return number(ULP_TITLES[place], lambda each: each.shares[place], share)

        fields = [
            *self._names(lambda each: (each.op, each.kernel)),
            *map(of_place, range(len(ULP_TITLES))),
        ]
        title = "Errors in units of the last place, by the share of a kernel's elements"
        return table_of(title, fields, ulp_shares(self._record), level="details")

    def _variants(self) -> Iterator[Table]:
        kernels = kernel_variants(self._record)
        ran: list[Field[tuple[KernelVariants, VariantRows]]] = [
            text("kernel", self._variants_of, group=True),
            text(
                "variant", lambda each: f"{each[1].name}{'' if each[1].listed else ' (not listed)'}"
            ),
            number("cases", lambda each: len(each[1].rows)),
            number("failed", lambda each: each[1].failed, tone=lambda each: _failed_tone(each[1])),
            _ratio_field(
                "error / bound",
                lambda each: _ratio(worst(each[1].rows, "deterministic bound")),
            ),
        ]
        yield table_of(
            f"Variants: {variants_counted(self._record) or 'those that ran'}",
            ran,
            [(kernel, each) for kernel in kernels for each in kernel.ran],
            level="details",
            folded=True,
        )
        fields: list[Field[KernelVariants]] = [
            *self._names(lambda each: (each.op, each.kernel)),
            number("variants", lambda each: len(each.not_taken)),
            text("names", lambda each: ", ".join(each.not_taken), below=True),
        ]
        not_taken = [each for each in kernels if each.not_taken]
        title = "Variants that no case took"
        yield table_of(title, fields, not_taken, level="details", folded=True)

    def _variants_of(self, each: tuple[KernelVariants, VariantRows]) -> str:
        kernel = each[0]
        name = f"{kernel.op} {kernel.kernel}" if self._several else kernel.kernel
        return f"{name}: {kernel.sentence}"

    def _workspaces(self) -> Table:
        fields: list[Field[AccuracyRow]] = [
            *self._names(lambda row: (row.case.op, row.kernel)),
            number("taken", lambda row: row.workspace_bytes, memory, tone=_memory_tone),
            number("declared", lambda row: row.declared_workspace_bytes, memory),
            text("case", short_case),
        ]
        title = "Most memory beyond inputs and outputs, of kernels that declare it"
        return table_of(title, fields, workspaces(self._record), level="details")

    def _properties(self) -> Iterator[Table]:
        def of_place(place: int, name: str) -> Field[KernelProperties]:
            return text(name, lambda each: _property(each.properties[place]))

        known = kernel_properties(self._record)
        fields = [
            *self._names(lambda each: (each.op, each.kernel)),
            *(of_place(place, name) for place, name in enumerate(PROPERTIES)),
        ]
        yield table_of("What bits depend on, measured", fields, known, level="details")
        shown: list[Field[tuple[KernelProperties, Property, str]]] = [
            *self._names(lambda each: (each[0].op, each[0].kernel)),
            text("property", lambda each: f"not {each[1].name}"),
            text("one case", lambda each: each[2], below=True),
        ]
        examples = [
            (each, found, told)
            for each in known
            for found, told in counterexamples(each)
            if found.is_broken or found.declared is None
        ]
        yield table_of("What shows that bits depend on more", shown, examples, level="details")

    def _refusals(self) -> Table:
        fields: list[Field[RowGroup]] = [
            *self._names(lambda each: (each.op, each.kernel)),
            number("rows", lambda each: len(each.rows)),
            text("reason", lambda each: each.why),
            text("one case", lambda each: Cell(short_case(each.rows[0]), tone="dim"), below=True),
        ]
        return table_of(
            "Refused: outside what a kernel says it serves",
            fields,
            refusals(self._record),
            "N: a number that varies.",
            level="details",
            folded=True,
        )

    def _slowest(self) -> Table:
        fields: list[Field[AccuracyRow]] = [
            *self._names(lambda row: (row.case.op, row.kernel)),
            field_of(AccuracyRow, "duration_s", lambda row: row),
            number("first call", _first_call, duration),
            text("case", short_case),
        ]
        title = f"Time taken: {total_duration(self._record)}; the slowest cases"
        return table_of(title, fields, slowest(self._record), level="details")

    def _rows(self) -> Table:
        def worst_of(rule: str) -> Callable[[AccuracyRow], float | None]:
            return lambda row: _ratio(worst([row], rule))

        fields: list[Field[AccuracyRow]] = [
            *self._names(lambda row: (row.case.op, row.kernel)),
            text("case", short_case),
            text("status", lambda row: Cell(row.status, tone=_TONES[row.status])),
            _ratio_field("deterministic", worst_of("deterministic bound")),
            _ratio_field("probabilistic", worst_of("probabilistic bound")),
            *fields_in_order(AccuracyRow, lambda row: row, derived={}),
        ]
        return table_of("Every row", fields, self._record.rows, level="page", folded=True)


def _ratio(found: Worst | None) -> float | None:
    return None if found is None else found.ratio


def _failed_tone(each: KernelSummary | VariantRows) -> Tone:
    return "" if not each.failed else "bad" if each.gates else "doubtful"


def _ratio_field(title: str, value: Callable[[Any], float | None], note: str = "") -> Field[Any]:
    """A field of an error over its bound; infinite of a rule that measures none."""

    def cell(item: object) -> Cell:
        found = value(item)
        if found is None or math.isinf(found):
            return Cell("-")
        return Cell(ratio(found), found, "good" if found <= 1 else "bad")

    return Column(title, "number", note), cell


def _memory_tone(row: AccuracyRow) -> Tone:
    taken, declared = row.workspace_bytes or 0, row.declared_workspace_bytes or 0
    return "good" if taken <= declared else "bad"


def _matrix_field(
    title: str, cell_of: Callable[[Any], MatrixCell | None], note: str = "", *, rank: int = 0
) -> Field[Any]:
    """A field of what rows of a kernel come to."""

    def cell(item: object) -> Cell:
        found = cell_of(item)
        if found is None:
            return Cell("-", tone="dim")
        beside = found.status == "failed" and not found.gates
        return Cell(found.text, found.ratio, "doubtful" if beside else _TONES[found.status])

    return Column(title, "number", note, rank=rank), cell


def _property(found: Property) -> Cell:
    told = found.text if found.row is None else f"{found.text}: {short_case(found.row)}"
    return Cell(told, tone="bad" if found.is_broken else "")


def _wrong(row: AccuracyRow) -> str:
    """What is wrong with a row that failed, and what its kernel printed."""
    told = (row.reason or failing_output(row) or "", *(f"printed: {each}" for each in row.printed))
    return "; ".join(filter(None, told))


def _first_call(row: AccuracyRow) -> float | None:
    return None if row.call_s is None or math.isnan(row.call_s) else row.call_s
