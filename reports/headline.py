"""The verdict on a run, in one sentence that holds, and what was run where."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from reports.coverage import variants_counted
from reports.partial import part_notes
from reports.phrases import count, duration
from reports.served import served, served_notes, thin_clause
from reports.summary import BOUND_RULES, short_case

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reports.record import Record
    from reports.schema import AccuracyRow

Verdict = Literal["PASSED", "FAILED", "INCOMPLETE", "NOT GATED"]


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
        notes.insert(0, record.problem)
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


def total_duration(record: Record) -> str:
    """How long the run took; of one without an end, how long its rows did."""
    if record.end is not None:
        return duration(record.end.duration_s)
    return f"{duration(sum(row.duration_s for row in record.rows))} of whole rows"


def environment_lines(record: Record) -> tuple[tuple[str, str], ...]:
    """What was run and where, as (label, text), a figure that is missing left out."""
    header, machine = record.header, record.header.environment
    if machine.device == "cpu":
        asked = (
            ""
            if machine.simulated_sm is None
            else f", domains asked about sm {machine.simulated_sm}"
        )
        but_for = f" but for {', '.join(machine.unchecked)}" if machine.unchecked else ""
        checked = {True: f" (strict{but_for})", False: " (not strict)", None: ""}[machine.strict]
        device = f"no GPU: Triton interpreter{checked}{asked}"
    else:
        memory = None if machine.memory_bytes is None else f"{machine.memory_bytes / 2**30:.0f} GiB"
        parts = (
            machine.device_name,
            machine.sm and f"sm {machine.sm}",
            machine.multiprocessors and f"{machine.multiprocessors} multiprocessors",
            memory,
            machine.driver and f"driver {machine.driver}",
            machine.cuda and f"CUDA {machine.cuda}",
        )
        device = ", ".join(part for part in parts if part)
    versions = {} if "python" in machine.missing else {"Python": machine.python}
    versions |= machine.packages
    host = f"{machine.hostname}, {machine.cpu}, {count(machine.cpu_count, 'core')}"
    commit = machine.git_commit and machine.git_commit[:12] + (
        " and changes that are not committed" if machine.git_dirty else ""
    )
    lines = (
        ("command", header.command),
        ("device", device),
        ("host", "" if "hostname" in machine.missing else host),
        ("system", "" if "platform" in machine.missing else machine.platform),
        ("software", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("commit", commit or ""),
        ("absent", "; ".join(f"{each.name}, {each.reason}" for each in header.absent)),
        ("started", f"{header.started_at}, protocol {header.protocol}"),
        ("record", str(record.path)),
    )
    return tuple((label, text) for label, text in lines if text)


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
    baselines = {(k.op, k.name) for k in record.header.kernels if k.origin == "baseline"}
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
        thin_clause(record),
    )
    return f"{text}, " + "; ".join(each for each in also if each)


def _parts(record: Record) -> list[str]:
    """What is said of the kernels that ran and compute a part of their op."""
    ran = {(row.case.op, row.kernel) for row in record.rows if row.status != "refused"}
    return part_notes(record.header, ran)
