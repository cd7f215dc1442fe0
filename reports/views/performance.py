"""Parts that bench and profile share: verdict, machine, rows without a figure, cases."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kernel_workbench.reports.document.fields import command, number, table_of, text
from kernel_workbench.reports.document.model import Cell
from kernel_workbench.reports.phrases import figure
from kernel_workbench.reports.views.run import (
    environment_lines,
    joint_reason,
    part_notes,
    reason_key,
    record_part,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kernel_workbench.reports.document.fields import Field
    from kernel_workbench.reports.document.model import Figure, ReportPart, Table, Tone
    from kernel_workbench.reports.record import BenchRow, ProfileRow, Record, Roof

TimedOrMeasured = TypeVar("TimedOrMeasured", "BenchRow", "ProfileRow")

_BAD = {"wrong", "failed"}
STATUSES: dict[str, Tone] = {
    "wrong": "bad",
    "failed": "bad",
    "absent": "doubtful",
    "refused": "dim",
}
_VERDICTS: dict[str, Tone] = {
    "TIMED": "good",
    "MEASURED": "good",
    "INCOMPLETE": "doubtful",
    "PUBLISHED": "doubtful",
    "IMPORTED": "doubtful",
}


class NoFigure(NamedTuple):
    """Rows of one kernel without a figure for one reason; case: of the first of them."""

    rows: Sequence[BenchRow | ProfileRow]
    reason: str
    case: str

    @property
    def fails(self) -> bool:
        """True if it fails the run."""
        return _fails(self.rows[0])


def _fails(row: BenchRow | ProfileRow) -> bool:
    return row.gates and row.status in _BAD


def verdict_of(
    record: Record, rows: Sequence[BenchRow | ProfileRow], done: str, *, believed: bool = True
) -> str:
    """TIMED or MEASURED, as `done` says, of a whole record with nothing against it."""
    status = 0 if record.end is None else record.end.exit_status
    if record.problem is not None:
        return "INCOMPLETE"
    if any(map(_fails, rows)) or status or not believed:
        return "FAILED"
    if not any(row.status == done for row in rows):
        return f"NOTHING {done.upper()}"
    figures = record.header.figures
    return (done if figures == "measured" else figures).upper()


def part_of(
    record: Record,
    verdict: str,
    tried: str,
    found: str,
    how: str,
    notes: Iterable[str],
    items: Iterable[Table | Figure],
) -> ReportPart:
    """Return the record's part of a document.

    Args:
        tried, found, how: `407 rows (26 kernels)`, `361 timed, 46 refused`, `in 6 min 41 s`.
    """
    flush = record.header.flush
    return record_part(
        record,
        record.header.suite.capitalize(),
        (
            verdict,
            _VERDICTS.get(verdict, "bad"),
            f"{tried}: {found}" + (f", {how}" if how else ""),
        ),
        found=found,
        notes=notes,
        facts=machine_facts(record),
        items=items,
        needed={"device"} | ({"L2 flush"} if flush is not None and not flush.evicts else set()),
    )


def statuses_of(rows: Sequence[BenchRow | ProfileRow], done: str) -> list[str]:
    """Return `361 timed`, `46 refused`: how many rows ended how."""
    statuses: Counter[str] = Counter(row.status for row in rows)
    return [
        f"{statuses[status]:,} {status}"
        for status in (done, *STATUSES)
        if statuses[status] or status == done
    ]


def problems_of(record: Record, ran: Iterable[BenchRow | ProfileRow]) -> list[str]:
    """Return the problems of the run, and a note for each kernel that computes a part alone."""
    notes = [] if record.problem is None else [record.problem]
    notes += [] if record.end is None else record.end.problems
    return notes + part_notes(record.header, {(row.op, row.kernel) for row in ran})


def machine_facts(record: Record) -> tuple[tuple[str, str], ...]:
    """Return the machine, its limits and its roofs, as (label, text)."""
    header, machine = record.header, record.header.environment
    facts = list(environment_lines(record))
    if machine.device == "cpu":  # nothing is interpreted here: what runs is timed as it is
        facts = [
            (label, f"no GPU: {machine.device_name}" if label == "device" else text)
            for label, text in facts
        ]
    parts = (
        machine.power_limit_w and f"{figure(machine.power_limit_w)} W enforced",
        machine.default_sm_clock_mhz and f"SM clock {machine.default_sm_clock_mhz:,} MHz",
        machine.max_sm_clock_mhz and f"at most {machine.max_sm_clock_mhz:,} MHz",
    )
    facts.append(("limits", ", ".join(part for part in parts if part)))
    for label, measured in (("datasheet", False), ("measured", True)):
        roofs = [roof_text(roof) for roof in header.roofs if roof.measured is measured]
        facts.append((label, ", ".join(roofs)))
    if header.flush is not None:
        word = "evicts" if header.flush.evicts else "DOES NOT EVICT"
        facts.append(("L2 flush", f"{word}: {header.flush.reason}"))
    if header.empty_call_us is not None:
        took = f"{figure(header.empty_call_us)} us, which are part of every time here"
        facts.append(("empty call", took))
    missing = (f"{name} ({why})" for name, why in machine.missing.items())
    facts.append(("not read", "; ".join(missing)))
    return tuple(fact for fact in facts if fact[1])


def roof_text(roof: Roof) -> str:
    """Return `add 4,390 GB/s`, with the clock that the SMs ran at where it is known."""
    clock = "" if roof.clock_mhz is None else f" at {figure(roof.clock_mhz)} MHz"
    return f"{roof.name} {figure(roof.value)} {roof.unit}{clock}"


def reasons_of(
    rows: Iterable[TimedOrMeasured], done: str, case_of: Callable[[TimedOrMeasured], str]
) -> list[NoFigure]:
    """Return why rows have no figure, failures of the run first, like reasons together."""
    groups: dict[tuple[str, str, str, bool, tuple[str, ...]], list[TimedOrMeasured]] = {}
    for row in rows:
        if row.status != done:
            alike = reason_key(row.reason or "no reason given")
            key = (row.op, row.kernel, row.status, row.gates, alike)
            groups.setdefault(key, []).append(row)
    ops = list(dict.fromkeys(op for op, *_ in groups))
    ranks = list(STATUSES)

    def rank(having: Sequence[TimedOrMeasured]) -> tuple[bool, int, int, int]:
        first = having[0]
        return not _fails(first), ops.index(first.op), ranks.index(first.status), -len(having)

    return [
        NoFigure(
            having,
            joint_reason([row.reason or "no reason given" for row in having]),
            case_of(having[0]),
        )
        for having in sorted(groups.values(), key=rank)
    ]


def reasons_tables(reasons: Sequence[NoFigure]) -> tuple[Table, Table]:
    """Rows that failed the run, and the others without a figure."""
    fields: list[Field[NoFigure]] = [
        text("op", lambda reason: reason.rows[0].op, group=True),
        text("kernel", lambda reason: reason.rows[0].kernel),
        text("status", lambda reason: _status(reason.rows[0])),
        number("rows", lambda reason: len(reason.rows)),
        text("reason", lambda reason: reason.reason, "N: a number that varies"),
        text("one case", lambda reason: Cell(reason.case, tone="dim"), below=True),
        command("reproduce", lambda reason: _command(reason.rows[0])),
    ]
    gating = [reason for reason in reasons if reason.fails]
    rest = [reason for reason in reasons if not reason.fails]
    return (
        table_of("Failed", fields, gating, least=10),
        table_of("Without a figure, which doesn't fail the run", fields, rest, folded=True),
    )


def _status(row: BenchRow | ProfileRow) -> Cell:
    return Cell(row.status, tone=STATUSES[row.status])


def _command(row: BenchRow | ProfileRow) -> str:
    return row.reproduce if row.status in _BAD else ""


def by_case(
    rows: Iterable[TimedOrMeasured], title: Callable[[TimedOrMeasured], str]
) -> dict[tuple[str, str], list[TimedOrMeasured]]:
    """Return the rows by op and case's title, op by op, each in the order of its first row."""
    groups: dict[tuple[str, str], list[TimedOrMeasured]] = {}
    for row in rows:
        groups.setdefault((row.op, title(row)), []).append(row)
    ops = list(dict.fromkeys(op for op, _ in groups))
    return dict(sorted(groups.items(), key=lambda item: ops.index(item[0][0])))


def over(value: float | None, other: float | None) -> float | None:
    """value / other; None where it can't be had."""
    return None if value is None or not other else value / other
