"""Write the record of a run: its header, each row as it comes, and its end with a status."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from kernel_workbench.reports.record import Row, RunEnd, RunHeader, new_record
from kernel_workbench.reports.record.writer import interrupts_later

AnyRow = TypeVar("AnyRow", bound=Row)


class RunRecord(Generic[AnyRow]):
    """A record that is being written. Raises RecordError if it can't be written.

    interrupted  planned rows may be missing
    planned      the number of rows of this run, or of its share in a process of a run
    """

    def __init__(self, results: Path, started: float, **header: Any) -> None:  # noqa: ANN401
        """`started`: by time.monotonic(); `header`: the fields of RunHeader, less `started_at`."""
        self.started, now = started, datetime.now(UTC)
        self.header = RunHeader(started_at=now.isoformat(timespec="seconds"), **header)
        self._writer = new_record(results, now, self.header)
        self.path = self._writer.path
        self.rows: list[AnyRow] = []
        self.interrupted = False
        self.planned = self.header.planned_rows

    def add(self, row: AnyRow) -> None:
        """Write a row."""
        with interrupts_later():
            self._writer.write(row)
            self.rows.append(row)

    @property
    def is_whole(self) -> bool:
        """Return True if every planned row is there."""
        return len(self.rows) >= self.planned and not self.interrupted

    def close(
        self, status: int, problems: tuple[str, ...] = (), stopped: str | None = None
    ) -> None:
        """Write the last line.

        Args:
            status: an `ExitStatus`.
            problems: sentences about the suite's or an op's failures.
            stopped: why the run ended before its last row, or None.
        """
        self._writer.close(
            RunEnd(
                finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
                duration_s=time.monotonic() - self.started,
                rows=len(self.rows),
                interrupted=not self.is_whole,
                exit_status=status,
                problems=problems,
                stopped=None if self.is_whole else stopped,
            )
        )
