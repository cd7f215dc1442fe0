"""One JSON object on stdout, and all else on stderr, for a program that starts a run by --json."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from kernel_workbench.reports.run_report import Report
from kernel_workbench.suites.run.shards import RECORD_NOTE

_MOST_KEPT = 2**16  # characters of what is printed, from its end
_MOST_SAID = 600


@dataclass(slots=True)
class _Kept:
    """A stream that keeps the end of what is written to it."""

    stream: TextIO
    text: str = ""

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        self.text = (self.text + text)[-_MOST_KEPT:]
        return self.stream.write(text)


@dataclass(slots=True)
class JsonOutput:
    """The process's own stdout, kept for the report, while the run prints to stderr.

    suite   what was asked for
    stdout  a descriptor of the stdout that the process was started with
    note    the file that the session writes the record's path to
    errors  what the run prints to stderr
    """

    suite: str
    stdout: int
    note: Path
    errors: _Kept

    @classmethod
    def begin(cls, suite: str) -> JsonOutput:
        """Send all that is printed from here on to stderr."""
        sys.stdout.flush()
        stdout = os.dup(1)
        os.dup2(2, 1)
        path = os.environ.get(RECORD_NOTE)
        if path is None:
            descriptor, path = tempfile.mkstemp(prefix="kernel-workbench-")
            os.close(descriptor)
            os.environ[RECORD_NOTE] = path
        errors = _Kept(sys.stderr)
        sys.stderr = errors
        return cls(suite, stdout, Path(path), errors)

    def end(self, status: int) -> int:
        """Print the report and return the exit status that it has."""
        noted = self.note.read_text().strip() if self.note.is_file() else ""
        report = Report.of_run(self.suite, status, Path(noted) if noted else None, self._error())
        with os.fdopen(self.stdout, "w", encoding="utf-8") as stdout:
            stdout.write(report.to_json() + "\n")
        if self.note.name.startswith("kernel-workbench-"):
            self.note.unlink(missing_ok=True)
        return report.exit_status

    def _error(self) -> str:
        """Return the sentence of an error that pytest printed, without pytest's word before it."""
        lines = [line.strip() for line in self.errors.text.splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        return errors[-1][:_MOST_SAID] if errors else ""
