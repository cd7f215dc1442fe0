"""The records of one run on one type of node: one a board, so that no comparison merges two.

Rows are in the file when they have arrived. A record that was cut off is gone on with where the
same board and the same files come again.
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

    command  what a record says that would run it again
    rows     how many each record has, by its path
    """

    def __init__(self, folder: Path, command: str) -> None:
        self.folder, self.command = folder, command
        self._open: dict[object, tuple[RecordWriter, RunHeader]] = {}
        self.rows: dict[Path, int] = {}
        self._current: RecordWriter | None = None
        self._started: float | None = None  # before, the run waits for its node

    def resume(self, attempts: Attempts, tree: str) -> None:
        """Take up the rows of a run that was cut off; its records are gone on with.

        tree: of the checkout. Raises FleetError where they are of another checkout or command, and
        RecordError where one can't be read.
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
                f"--resume: the checkout has changed since {shown(record.path)} was made; run all "
                "of it again"
            )

    def begin(self, header: RunHeader, planned: int) -> None:
        """Rows are of this run from now on: of a board that has a record, or of a new one.

        planned: rows that are still to come. Raises RecordError.
        """
        board = _board(header)
        self._started = self._started or time.monotonic()
        if board not in self._open:
            told = header.model_copy(update={"command": self.command, "planned_rows": planned})
            writer = new_record(self.folder, datetime.now(UTC), told)
            self._open[board] = writer, told
            self.rows[writer.path] = 0
        self._current = self._open[board][0]

    def write(self, row: Row) -> None:
        """Write a row to the record of the board that it came from. Raises RecordError."""
        assert self._current is not None
        with interrupts_later():
            self._current.write(row)
            self.rows[self._current.path] += 1

    def close(self, status: int, problem: str | None) -> None:
        """Write last lines. problem: why rows are missing, if any are. Raises RecordError."""
        for writer, header in self._open.values():
            rows = self.rows[writer.path]
            missing = rows < header.planned_rows
            others = ", ".join(each.name for each in self.rows if each != writer.path)
            stopped = problem or f"the node was lost; the other rows are in {others}"
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
    """What rows of one record have in common."""
    told = header.environment
    card = told.gpu_uuid or f"{told.hostname} {told.pci_bus_id} {told.cpu}"
    software = told.tree, told.git_commit, told.packages.get("torch"), told.packages.get("triton")
    return card, told.device_name, told.power_limit_w, header.protocol, software
