"""The records of one run on one type of node: one record a board, since boards must not be mixed.

A row is in the file as soon as it has arrived. An interrupted record continues when the same board
and the same files return.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from kernel_workbench.reports.phrases import shown
from kernel_workbench.reports.record import (
    Record,
    RecordContinuation,
    RecordWriter,
    Row,
    RunEnd,
    RunHeader,
    new_record,
    read,
)
from kernel_workbench.reports.record.writer import interrupts_later
from kernel_workbench.suites.fleet.attempts import Attempts
from kernel_workbench.suites.fleet.engine import FleetError


class Shelf:
    """A folder of records.

    command  the command that would repeat the run; records state it
    rows     the number of rows in each record, by its path
    """

    def __init__(self, folder: Path, command: str) -> None:
        self.folder, self.command = folder, command
        self._open: dict[object, tuple[RecordWriter, RunHeader]] = {}
        self.rows: dict[Path, int] = {}
        self._current: RecordWriter | None = None
        self._started: float | None = None  # None while the run waits for its node

    def resume(self, attempts: Attempts, tree: str) -> None:
        """Load the rows of an interrupted run, and continue its records.

        `tree` is the checkout's hash. Raises FleetError if a record is of another checkout or
        command, and RecordError if a record can't be read.
        """
        for path in sorted(self.folder.glob("*.jsonl")):
            record = read(path)
            self._fits(record, tree)
            for row in record.every_row:
                attempts.keep(row)
            attempts.planned = max(attempts.planned or 0, record.header.planned_rows)
            self.rows[path] = len(record.every_row)
            if record.problem is not None:
                writer = RecordContinuation(record)
                self._open[_board(record.header)] = writer, record.header
        if attempts.planned is not None and len(attempts.rows) >= attempts.planned:
            attempts.stop(None)

    def _fits(self, record: Record, tree: str) -> None:
        header = record.header
        if header.command != self.command:
            raise FleetError(
                f"--resume: {shown(record.path)} is of another command; its own was: "
                f"{shown(header.command)}"
            )
        if header.environment.tree != tree:
            raise FleetError(
                f"--resume: the checkout has changed since {shown(record.path)} was written; run "
                "all of it again"
            )

    def begin(self, header: RunHeader, planned: int) -> None:
        """Write the following rows to the record of this header's board, a new one if needed.

        `planned` is the number of rows still to come. Raises RecordError.
        """
        board = _board(header)
        self._started = self._started or time.monotonic()
        if board not in self._open:
            described = header.model_copy(update={"command": self.command, "planned_rows": planned})
            writer = new_record(self.folder, datetime.now(UTC), described)
            self._open[board] = writer, described
            self.rows[writer.path] = 0
        self._current = self._open[board][0]

    def write(self, row: Row) -> None:
        """Write a row to the current board's record. Raises RecordError."""
        assert self._current is not None
        with interrupts_later():
            self._current.write(row)
            self.rows[self._current.path] += 1

    def close(self, status: int, problem: str | None) -> None:
        """Write the last lines. `problem` says why rows are missing. Raises RecordError."""
        for writer, header in self._open.values():
            rows = self.rows[writer.path]
            missing = rows < header.planned_rows
            elsewhere = ", ".join(path.name for path in self.rows if path != writer.path)
            stopped = problem or f"the node was lost; the other rows are in {elsewhere}"
            writer.close(
                RunEnd(
                    finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
                    duration_s=time.monotonic() - (self._started or time.monotonic()),
                    rows=rows,
                    interrupted=missing,
                    exit_status=status,
                    stopped=stopped if missing else None,
                )
            )
        self._open.clear()


def _board(header: RunHeader) -> object:
    """Return the key that all rows of one record share: board, protocol and software."""
    machine = header.environment
    card = machine.gpu_uuid or f"{machine.hostname} {machine.pci_bus_id} {machine.cpu}"
    packages = machine.packages.get("torch"), machine.packages.get("triton")
    software = machine.tree, machine.git_commit, *packages
    return card, machine.device_name, machine.power_limit_w, header.protocol, software
