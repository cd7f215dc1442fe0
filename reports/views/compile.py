"""A record of `compile` as a part of a document: what broke, kernels, and what changed.

Each field of a row is named once, as a column beside what its cell shows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kernel_workbench.reports.document.fields import number, of_part, table_of, text
from kernel_workbench.reports.document.model import Cell
from kernel_workbench.reports.phrases import count, duration, microseconds
from kernel_workbench.reports.record import CompileRow, PredictionRow
from kernel_workbench.reports.views.compile_changes import KINDS, WORSE, changes_between, tools_of
from kernel_workbench.reports.views.compile_figures import (
    code_text,
    in_order,
    loads_are_narrow,
    occupancy,
    short_label,
    variant_of,
)
from kernel_workbench.reports.views.row_columns import column_of, field_of, fields_in_order
from kernel_workbench.reports.views.run import environment_lines, record_part, total_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kernel_workbench.reports.document.fields import Field
    from kernel_workbench.reports.document.model import Level, ReportPart, Table, Tone
    from kernel_workbench.reports.record import Record
    from kernel_workbench.reports.views.compile_changes import CodeChange, CodeChanges
    from kernel_workbench.reports.views.compile_figures import Variant

_Item = TypeVar("_Item")
_TONES: dict[str, Tone] = {"PASSED": "good", "FAILED": "bad", "INCOMPLETE": "doubtful"}


class _Break(NamedTuple):
    """Something that a row broke. instruction: where it is seen, or empty."""

    row: CompileRow
    says: str
    reason: str
    instruction: str


def compile_part(record: Record, against: Record | None = None) -> ReportPart:
    """Return the record's part of a document; against: with what changed since that record."""
    verdict = verdict_of(record)
    notes = [] if record.problem is None else [record.problem]
    notes += [] if record.end is None else record.end.problems
    tables = [*_tables(record, "summary" if against is None else "details")]
    if against is not None:
        changes = changes_between(against, record)
        worse = sum(change.kind in WORSE for change in changes.changes)
        notes.append(
            f"since {against.path.name}: {count(len(changes.changes), 'change')}, {worse:,} for "
            f"the worse, in {count(changes.compared, 'kernel')} that both have"
        )
        notes += [f"{name}: {old} then, {new} now" for name, old, new in changes.tools]
        tables[1:1] = _change_tables(changes)
    failed = sum(row.status == "failed" for row in record.compiled)
    broken = sum(len(row.broken) for row in record.compiled)
    return record_part(
        record,
        "Compiled code",
        (verdict, _TONES[verdict], summary_of(record)),
        found=f"{failed:,} failed to compile, {count(broken, 'expectation')} broken"
        if failed or broken
        else f"{len(record.compiled):,} compiled",
        notes=notes,
        facts=_environment(record),
        items=tables,
        needed=(),
    )


def verdict_of(record: Record) -> str:
    """PASSED needs a whole record, a kernel that was compiled, and nothing against it."""
    if record.problem is not None:
        return "INCOMPLETE"
    rows = record.compiled
    good = rows and not any(row.status == "failed" or row.broken for row in rows)
    status = 0 if record.end is None else record.end.exit_status
    return "PASSED" if good and not status else "FAILED"


def summary_of(record: Record) -> str:
    """Return one sentence that counts kernels compiled and expectations broken."""
    rows = record.compiled
    variants, sms = {variant_of(row) for row in rows}, {row.sm for row in rows}
    failed = sum(row.status == "failed" for row in rows)
    broken = sum(len(row.broken) for row in rows)
    expected = sum(row.expected for row in rows)
    return (
        f"{count(len(rows), 'kernel')} ({count(len(variants), 'variant')} on "
        f"{count(len(sms), 'generation')}): {len(rows) - failed:,} compiled, {failed:,} failed to; "
        f"{broken:,} of {count(expected, 'expectation')} broken; {sum(map(_spills, rows)):,} spill "
        f"registers, {sum(map(_is_unfit, rows)):,} don't fit, in {total_duration(record)}"
    )


def _environment(record: Record) -> list[tuple[str, str]]:
    fusion = {row.fp_fusion for row in record.compiled if row.fp_fusion is not None}
    fused = "mixed" if len(fusion) > 1 else "on" if True in fusion else "off"
    seconds = sum(row.compile_s for row in record.compiled)
    lines = [
        ("compiler", ", ".join(f"{name} {version}" for name, version in tools_of(record).items())),
        ("fused", f"products with sums: {fused}" if fusion else ""),
        ("compiling", f"{duration(seconds)} of all kernels together, kept ones included"),
        *(line for line in environment_lines(record) if line[0] != "device"),
    ]
    return [line for line in lines if line[1]]


def _tables(record: Record, level: Level) -> Iterator[Table]:
    """level: of the table of kernels, whose place changes take where there are any."""
    rows = in_order(record)
    breaks = [item for row in rows for item in _breaks(row)]
    alike: dict[tuple[str, str], list[_Break]] = defaultdict(list)
    kernels: dict[str, list[CompileRow]] = defaultdict(list)
    for breakage in breaks:
        alike[_kernel(breakage.row), breakage.says].append(breakage)
    for row in rows:
        kernels[_kernel(row)].append(row)
    broken: Field[Sequence[_Break]] = number(
        "kernels", len, note="variants and generations that break it", tone=lambda _: "bad"
    )
    fields = [*map(_of_first, _BREAK[:2]), broken, *map(_of_first, _BREAK[2:])]
    yield table_of("Failures, with one case of each", fields, alike.values(), least=8)
    title = "Kernels, and the most that one of them takes"
    yield table_of(title, _KERNEL, kernels.values(), level=level, least=60)
    unread: list[Field[tuple[str, int]]] = [
        text("figure", lambda item: Cell(item[0], tone="doubtful")),
        number("kernels", lambda item: item[1]),
    ]
    unread_figures = Counter(figure for row in rows for figure in row.unread)
    yield table_of("Figures that couldn't be read", unread, unread_figures.most_common())
    if len(alike) < len(breaks):
        yield table_of("All that broke", _BREAK, breaks, level="details")
    yield table_of("Every kernel", _ROW, rows, level="details")
    yield table_of(
        "Predicted, not measured: the least time of a case",
        _PREDICTION,
        record.predictions,
        "~: no variant of it was compiled in this run.",
        level="details",
        folded=True,
    )


def _of_first(field: Field[_Item]) -> Field[Sequence[_Item]]:
    """Return the field of the first of several items."""
    return of_part(field, lambda items: items[0])


def _breaks(row: CompileRow) -> Iterator[_Break]:
    if row.status == "failed":
        yield _Break(row, "it compiles", row.reason or "no reason given", "")
    for expectation in row.broken:
        yield _Break(row, expectation.says, expectation.reason, expectation.sass or "")


def _kernel(row: CompileRow | PredictionRow) -> str:
    return f"{row.op} {row.kernel}"


def _spills(row: CompileRow) -> bool:
    return bool(row.spill_store_bytes)


def _is_unfit(row: CompileRow) -> bool:
    return row.blocks_per_sm == 0


_VARIANT: Field[CompileRow] = text("variant", lambda row: short_label(row.label, row.function))
_OCCUPANCY: Field[CompileRow] = number(
    "occupancy",
    occupancy,
    lambda share: f"{100 * share:.0f} %" if share else "NO FIT",
    "warps resident of those that an SM can hold",
    kind="share",
    tone=lambda row: "bad" if _is_unfit(row) else "",
    missing="?",
)
_CODE: Field[CompileRow] = text(
    "loads and instructions",
    lambda row: Cell(code_text(row), tone="doubtful" if loads_are_narrow(row) else ""),
    "the widest loads of a thread, with the share of bytes that come so where it is below "
    "90 %; matrix instructions; local: registers spilled, or arrays, in local memory",
    rank=1,
)


def _own(name: str) -> Field[CompileRow]:
    """Return the column of a field of the row."""
    return field_of(CompileRow, name, lambda row: row)


_ROW: list[Field[CompileRow]] = [
    text("kernel", _kernel, group=True),
    _VARIANT,
    *fields_in_order(
        CompileRow,
        lambda row: row,
        derived={"shared_bytes": [_OCCUPANCY], "limited_by": [_CODE]},
    ),
]
_BREAK: list[Field[_Break]] = [
    text("kernel", lambda breakage: _kernel(breakage.row)),
    text("expectation", lambda breakage: Cell(breakage.says, tone="bad")),
    of_part(_VARIANT, lambda breakage: breakage.row),
    of_part(_own("sm"), lambda breakage: breakage.row),
    text("why it is broken", lambda breakage: breakage.reason, below=True),
    text("instruction", lambda breakage: Cell(breakage.instruction, tone="dim"), below=True),
]


def _most(field: Field[CompileRow], *, least: bool = False) -> Field[Sequence[CompileRow]]:
    """Return the cell of the row that has the most of a field, or the least."""

    def show(rows: Sequence[CompileRow]) -> Cell | str:
        cells = [cell for row in rows if isinstance(cell := field[1](row), Cell)]
        present = [cell for cell in cells if cell.value is not None]
        pick = min if least else max
        return pick(present, key=lambda cell: cell.value or 0.0) if present else Cell("?")

    return field[0], show


def _rows_that(
    title: str, hold: Callable[[CompileRow], bool], tone: Tone = "", *, rank: int = 0
) -> Field[Sequence[CompileRow]]:
    """Return how many rows of a kernel are so."""
    return number(title, lambda rows: sum(map(hold, rows)) or None, rank=rank, tone=lambda _: tone)


_KERNEL: list[Field[Sequence[CompileRow]]] = [
    text("kernel", lambda rows: _kernel(rows[0])),
    _rows_that("compiled", lambda row: row.status == "compiled"),
    _rows_that("broken", lambda row: bool(row.broken) or row.status == "failed", "bad", rank=1),
    _rows_that("spill", _spills, "doubtful", rank=1),
    _rows_that("don't fit", _is_unfit, "bad", rank=1),
    _most(_own("registers")),
    _most(_own("spill_store_bytes")),
    _most(_own("shared_bytes")),
    _most(_OCCUPANCY, least=True),
]


def _predicted(row: PredictionRow) -> Cell:
    if row.predicted_us is None:
        return Cell("-")
    sign = "" if row.from_code else "~"
    return Cell(f"{sign}{microseconds(row.predicted_us)}", row.predicted_us)


_PREDICTION: list[Field[PredictionRow]] = [
    text("kernel", _kernel, group=True),
    text("case", lambda row: row.case.id.removeprefix(f"{row.op}-"), group=True),
    *fields_in_order(
        PredictionRow,
        lambda row: row,
        without={"predicted_us"},
        derived={"predicted_us": [(column_of(PredictionRow, "predicted_us"), _predicted)]},
    ),
]


def _change_tables(changes: CodeChanges) -> Iterator[Table]:
    kinds: dict[str, list[CodeChange]] = defaultdict(list)
    for change in changes.changes:
        kinds[change.kind].append(change)
    kind, *rest = map(_of_first, _CHANGE)
    fields = [kind, number("kernels", len), *rest]
    title = "Changes, with the largest of each"
    yield table_of(title, fields, kinds.values(), least=len(KINDS))
    if len(kinds) < len(changes.changes):
        yield table_of("All that changed", _CHANGE, changes.changes, level="details")
    only = [("new", *item) for item in changes.new.items()]
    only += [("gone", *item) for item in changes.gone.items()]
    of_one: list[Field[tuple[str, Variant, int]]] = [
        text("variants", lambda item: item[0], group=True),
        text("kernel", lambda item: " ".join(item[1][:2])),
        text("variant", lambda item: short_label(*item[1][2:])),
        number("generations", lambda item: item[2]),
    ]
    yield table_of("Variants of one record alone", of_one, only)


_CHANGE: list[Field[CodeChange]] = [
    text(
        "change", lambda change: Cell(change.kind, tone="bad" if change.kind in WORSE else "good")
    ),
    text("kernel", lambda change: " ".join(change.variant[:2])),
    text("variant", lambda change: short_label(*change.variant[2:])),
    number("sm", lambda change: change.sm),
    text("then", lambda change: change.before),
    text("now", lambda change: change.after),
]
