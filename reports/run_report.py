"""A run as one JSON object: what a program reads of it in place of the report in a terminal.

`--json` prints it, the Python API returns it, and docs/reference/report.schema.json is its schema.
A failing row has the element that shows the failure and the command that tries the row again. No
row of it says anything of values that a later run draws: each run has a secret of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Self

from pydantic import Field

from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.output import save
from kernel_workbench.reports.phrases import ACCEPTED_PASSES
from kernel_workbench.reports.record import (
    AccuracyRow,
    BenchRow,
    FindRow,
    OutputError,
    ProfileRow,
    Record,
    RecordError,
    read,
)
from kernel_workbench.reports.record.line import SchemaLine, Whole

REPORT_SCHEMA_VERSION = 1
Outcome = Literal["passed", "failed", "usage", "suite failed", "incomplete"]
_OUTCOMES: dict[int, Outcome] = {
    ExitStatus.RIGHT: "passed",
    ExitStatus.WRONG: "failed",
    ExitStatus.USAGE: "usage",
    ExitStatus.SUITE_FAILED: "suite failed",
    ExitStatus.INCOMPLETE: "incomplete",
}


class Failure(SchemaLine):
    """A kernel that is wrong on a case: the rule that it breaks and the element that shows it."""

    kernel: str = Field(description="name of the kernel")
    op: str = Field(description="name of the op")
    case: str = Field(description="id of the case, which --case takes")
    rule: str = Field(description="the rule that the kernel breaks")
    sentence: str = Field(description="why, in one sentence")
    output: str | None = Field(
        default=None, description="the output that breaks the rule; null: no output does"
    )
    index: tuple[Whole, ...] | None = Field(
        default=None, description="of the element with the largest error over its bound"
    )
    got: float | None = Field(default=None, description="that element's value")
    expected: float | None = Field(default=None, description="that element's true value")
    bound: float | None = Field(default=None, description="that element's deterministic bound")
    ratio: float | None = Field(
        default=None, description="the largest error over its bound, by the rule"
    )
    gates: bool = Field(
        description="the failure sets the exit status; false: a baseline, or accepted by --accepted"
    )
    command: str = Field(description="the command that tries the case again")


class Rows(SchemaLine):
    """The number of rows by status."""

    planned: Whole = Field(description="rows of a whole run; 0 where that isn't known before")
    passed: Whole = Field(default=0, description="right by every rule")
    failed: Whole = Field(default=0, description="wrong by a rule")
    refused: Whole = Field(default=0, description="outside of the kernel's domain")
    no_power: Whole = Field(default=0, description="the bound allows any value")


class Report(SchemaLine):
    """A run: its outcome, the failures, what ran, the versions and the record.

    Example:
        >>> report = Report.of_no_run("accuracy", 2, "--kernels mine.py: there is no such file")
        >>> report.passed, report.verdict
        (False, 'usage')
    """

    schema_version: Literal[1] = Field(
        default=1, description="changes when a field changes its meaning or goes"
    )
    suite: str = Field(description="what ran: accuracy, search, bench or profile")
    verdict: Outcome = Field(description="the exit status in a word")
    passed: bool = Field(description="the run is whole, and nothing that gates is wrong")
    exit_status: Whole = Field(description="of the command: 0, 1, 2, 3 or 4")
    error: str | None = Field(
        default=None,
        description="where the verdict isn't about a kernel, or the run ended early: why",
    )
    failures: tuple[Failure, ...] = Field(default=(), description="in the order of the record")
    accepted_that_pass: tuple[str, ...] = Field(
        default=(), description="kernel and case of each failure that --accepted names and passes"
    )
    rows: Rows | None = Field(default=None, description="null where nothing ran")
    kernels: tuple[str, ...] = Field(default=(), description="names of the kernels that were tried")
    ops: tuple[str, ...] = Field(default=(), description="names of their ops")
    device: str | None = Field(default=None, description="cpu or cuda")
    device_name: str | None = Field(default=None, description="of the GPU, or of the CPU")
    command: str | None = Field(default=None, description="what runs all of it again")
    duration_s: float | None = Field(default=None, description="of the run")
    python: str | None = Field(default=None, description="version of Python")
    packages: dict[str, str] = Field(
        default_factory=dict, description="version of each package that decides a result"
    )
    protocol: Whole | None = Field(
        default=None, description="changes when the rules of the verdict do"
    )
    record: str | None = Field(default=None, description="path of the record; null: there is none")

    @classmethod
    def of_record(cls, record: Record, status: int, error: str | None = None) -> Self:
        """Return the report of a record that a run left.

        Args:
            record: the record, whole or cut off.
            status: the exit status of the run's process.
            error: a sentence about the run itself, as it was printed.
        """
        header, end = record.header, record.end
        statuses = [row.status for row in _judged(record)]
        message = error
        if status not in {ExitStatus.RIGHT, ExitStatus.WRONG}:
            problems = end.problems if end is not None else ()
            message = error or "; ".join(problems) or record.problem
        elif end is not None and end.stopped is not None:
            message = f"the run ended before its last row: {end.stopped}"
        return cls(
            suite=header.suite,
            verdict=_OUTCOMES.get(status, "suite failed"),
            passed=status == ExitStatus.RIGHT,
            exit_status=status,
            error=message,
            failures=(*map(_of_find, record.finds), *_failures(record)),
            accepted_that_pass=accepted_that_pass(record.rows),
            rows=Rows(
                planned=header.planned_rows,
                passed=statuses.count("passed"),
                failed=statuses.count("failed"),
                refused=statuses.count("refused"),
                no_power=statuses.count("no power"),
            ),
            kernels=tuple(kernel.name for kernel in header.kernels),
            ops=tuple(dict.fromkeys(kernel.op for kernel in header.kernels)),
            device=header.environment.device,
            device_name=header.environment.device_name,
            command=header.command,
            duration_s=None if end is None else end.duration_s,
            python=header.environment.python,
            packages=header.environment.packages,
            protocol=header.protocol,
            record=str(record.path.resolve()),
        )

    @classmethod
    def of_no_run(cls, suite: str, status: int, error: str) -> Self:
        """Return the report of a command that left no record; error: why, in a sentence."""
        verdict = _OUTCOMES.get(status, "suite failed")
        return cls(suite=suite, verdict=verdict, passed=False, exit_status=status, error=error)

    @classmethod
    def of_run(cls, suite: str, status: int, record: Path | None, error: str) -> Self:
        """Return the report of a process that ended.

        Args:
            suite: what was asked for.
            status: the exit status of the process.
            record: the record that it began; None where it began none.
            error: the sentence that the process printed, or "".
        """
        if record is None:
            status = status or ExitStatus.INCOMPLETE  # a kernel ended the process
            return cls.of_no_run(suite, status, error or "the run ended before it began a record")
        try:
            whole = read(record)
        except RecordError as problem:
            return cls.of_no_run(suite, status or ExitStatus.INCOMPLETE, error or str(problem))
        if status == ExitStatus.RIGHT and (whole.end is None or whole.problem is not None):
            status = ExitStatus.INCOMPLETE
        return cls.of_record(whole, status, error or None)

    def to_json(self) -> str:
        """Return the report as one JSON object on one line.

        JSON has no NaN: "NaN", "Infinity" and "-Infinity" are strings.
        """
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the report that a command printed by --json. Raises ValueError."""
        return cls.model_validate_json(text)

    def save(self, path: str | Path) -> None:
        """Write the report to a file, as `to_json` gives it. Raises OSError."""
        save(Path(path), self.to_json().encode() + b"\n")

    def read_record(self) -> Record:
        """Return the record with all rows. Raises RecordError where the run left none."""
        if self.record is None:
            raise RecordError(f"the run left no record: {self.error}")
        return read(Path(self.record))


def _failures(record: Record) -> list[Failure]:
    """Return the rows that failed, as far as they are no finds of a search already."""
    if record.header.suite == "search":
        return []
    return [_of_row(row) for row in _judged(record) if row.status == "failed"]


def accepted_that_pass(rows: Iterable[AccuracyRow]) -> tuple[str, ...]:
    """Return kernel and case of each accepted failure of which all rows pass."""
    passes: dict[str, bool] = {}
    for row in rows:
        name = f"{row.kernel} {row.case.id}"
        passes[name] = passes.get(name, True) and ACCEPTED_PASSES in row.notes
    return tuple(name for name, does in passes.items() if does)


def _judged(record: Record) -> tuple[AccuracyRow | BenchRow | ProfileRow, ...]:
    """Return the rows that have a verdict."""
    return record.rows + record.benches + record.profiles


def _of_row(row: AccuracyRow | BenchRow | ProfileRow) -> Failure:
    outputs = row.outputs if isinstance(row, AccuracyRow) else ()
    rule = row.rule if isinstance(row, AccuracyRow) else None
    sentence = row.reason or ""
    output = next((x for x in outputs if sentence.startswith(f"{x.output}[")), None)
    return Failure(
        kernel=row.kernel,
        op=row.case.op,
        case=row.case.id,
        rule=rule or "wrong",
        sentence=sentence,
        output=None if output is None else output.output,
        index=None if output is None else output.worst_index,
        got=None if output is None else output.got,
        expected=None if output is None else output.expected,
        bound=None if output is None else output.bound,
        ratio=None if output is None else _ratio(output, rule),
        gates=row.gates,
        command=row.reproduce,
    )


def _ratio(output: OutputError, rule: str | None) -> float | None:
    if rule == "probabilistic bound":
        return output.worst_probabilistic
    return output.worst_emulation if rule == "emulation" else output.worst_deterministic


def _of_find(find: FindRow) -> Failure:
    return Failure(
        kernel=find.kernel,
        op=find.op,
        case=find.case.id,
        rule=find.rule,
        sentence=find.reason,
        output=find.output,
        ratio=find.worst_ratio,
        gates=find.gates,
        command=find.reproduce,
    )


def schema_text() -> str:
    """Return the JSON schema of a report, as docs/reference/report.schema.json holds it."""
    schema = Report.model_json_schema(mode="serialization")
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A run of kernel-workbench, as --json prints it",
    }
    return json.dumps(head | {k: v for k, v in schema.items() if k != "title"}, indent=1) + "\n"
