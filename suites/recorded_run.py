"""A run of a suite as pytest sees it: the record that it writes, its exit status, what went wrong.

The plugins of accuracy, bench and profile are such runs. What they do between the record's first
line and its last is their own.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeVar

import pytest
from rich.console import Console

from reports.arguments import quoted
from reports.record import RecordError, RecordWriter, new_record
from reports.schema import Row, RunEnd, RunHeader
from suites.accuracy.shards import RECORD_NOTE
from suites.described import hashes_of
from suites.nox_command import nox_command
from suites.selection import kernel_files

AnyRow = TypeVar("AnyRow", bound=Row)


def own_arguments(given: Iterable[str], folder: str) -> list[str]:
    """What the user typed after nox's `--`, with it: pytest's arguments less the suite's folder."""
    typed = [each for each in given if each.rstrip("/") != folder]
    return ["--", *typed] if typed else []


class RecordedRun(Generic[AnyRow]):
    """What the plugins have in common. session: nox's name of it; folder: of the suite's tests.

    planned        rows that the record is to have
    interrupted    rows that were planned may be missing
    suite_errors   what failed in the suite itself, which is no verdict on a kernel
    left_out       the name of a row that -k leaves out
    files          SHA-256 of the files of --kernels and --cases, by their paths
    """

    def __init__(self, config: pytest.Config, session: str, folder: str) -> None:
        self.config, self.session, self.folder = config, session, folder
        self.started = time.monotonic()
        self.rows: list[AnyRow] = []
        self.planned = 0
        self.writer: RecordWriter | None = None
        self.path: Path | None = None
        self.interrupted = False
        self.suite_errors: list[str] = []
        self.left_out: str | None = None
        # Before any of them is read: what is edited from now on isn't what the record has.
        self.files = hashes_of(self._files())

    def _files(self) -> list[Path]:
        cases = (Path(each).expanduser().resolve() for each in self.config.getoption("--cases"))
        return [*kernel_files(self.config), *cases]

    def edited(self) -> list[str]:
        """The files that have changed since the run began."""
        now = hashes_of(self._files())
        return [path for path, told in self.files.items() if now.get(path) != told]

    def own_arguments(self) -> list[str]:
        """What the user typed after nox's `--`, with it: the arguments less the suite's path."""
        return own_arguments(map(str, self.config.invocation_params.args), self.folder)

    def command(self) -> str:
        """What would run it again."""
        return nox_command(self.session, self.own_arguments())

    def begins_nothing(self, session: pytest.Session) -> bool:
        """Whether no record is to be begun: tests are only listed, or collecting them failed.

        Raises UsageError where -k leaves no test.
        """
        # pytest tells the end of collecting where it raised, too.
        if sys.exc_info()[0] is not None:
            return True
        whole = not self.config.getoption("--shard")
        if not session.items and self.left_out is not None and whole:
            raise pytest.UsageError(
                f"-k {quoted(self.config.getoption('keyword'))}: no row has that in its name, as "
                f"{self.left_out} is one"
            )
        return bool(self.config.getoption("collectonly"))

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Keep the name of a row that -k leaves out."""
        self.left_out = items[0].name.partition("[")[2].removesuffix("]")

    def open_record(self, header: RunHeader, now: datetime) -> None:
        """Start the record, under a name of its own. Raises UsageError where it can't be."""
        results = Path(self.config.getoption("--results"))
        try:
            self.writer = new_record(results, now, header)
        except RecordError as error:
            raise pytest.UsageError(f"--results {results}: {error}") from error
        self.path = self.writer.path
        if note := os.environ.get(RECORD_NOTE):
            Path(note).write_text(str(self.path.resolve()))

    def add(self, row: AnyRow) -> None:
        """Write a row to the record; where it can't be written the run ends."""
        assert self.writer is not None
        try:
            self.writer.write(row)
        except RecordError as error:
            pytest.exit(str(error), returncode=int(pytest.ExitCode.INTERRUPTED))
        self.rows.append(row)

    @property
    def lost(self) -> bool:
        """Whether rows are missing."""
        return len(self.rows) < self.planned

    def close_record(self, exitstatus: int, *, failed: bool, anything: bool) -> int:
        """Write the last line; the exit status: 0 where anything was measured, and nothing failed.

        exitstatus: pytest's own, kept where it tells of something else than of tests.
        """
        assert self.writer is not None
        if exitstatus in (0, 1, 5):
            exitstatus = int(failed or not anything or self.lost or bool(self.suite_errors))
        try:
            self.writer.close(
                RunEnd(
                    finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
                    duration_s=time.monotonic() - self.started,
                    rows=len(self.rows),
                    interrupted=self.interrupted or self.lost,
                    exit_status=int(exitstatus),
                )
            )
        except RecordError as error:
            print(error, file=sys.stderr)
            exitstatus = exitstatus or 1
        return exitstatus

    def print_suite_errors(self, console: Console) -> None:
        """Say what failed in the suite itself."""
        for each in self.suite_errors:
            console.print("\nThe suite itself failed, which is no verdict on the kernel:")
            console.print(each, markup=False, highlight=False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str]:
        """Count each test, with no letter for it: the progress bar and the report say it."""
        if hasattr(report, "wasxfail"):
            return "xfailed", "", ""
        counts = report.when == "call" or report.failed
        return report.outcome if counts else "", "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what went wrong in the suite itself, to be shown at the end."""
        if report.failed and not any(key == "judged" for key, _ in report.user_properties):
            self.suite_errors.append(f"{report.nodeid}\n{report.longreprtext}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """Ctrl-C: what there is by then is kept and reported."""
        self.interrupted = True
