"""Two runs at one time in one checkout: neither takes, hides or fails what is the other's."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_workbench.reports.record import read
from kernel_workbench.reports.record import writer as record_writer
from kernel_workbench.suites.run.shards import RECORD_NOTE
from tests.builders.accuracy_records import example_header
from tests.builders.commands import noxfile


def test_each_run_checks_its_own_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that begins and ends while another goes on takes nothing from it, and leaves nothing."""
    sessions, checked, notes = noxfile(), [], []

    def run(session: Any, _: str, *command: str, variables: Any = None) -> None:  # noqa: ANN401
        if command[:2] == ("kernel_workbench", "report"):
            checked.append((session.name, command[2]))
            return
        note = Path(variables[RECORD_NOTE])
        note.write_text(f"record of {session.name}")
        notes.append(note)
        if session.name == "first":
            sessions.accuracy.func(SimpleNamespace(name="second", posargs=(), invoked_from="."))

    monkeypatch.setattr(sessions, "_run", run)
    sessions.accuracy.func(SimpleNamespace(name="first", posargs=(), invoked_from="."))
    assert checked == [("second", "record of second"), ("first", "record of first")]
    assert not any(each.exists() for each in notes)


def test_name_that_another_run_has_just_taken_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two runs that begin in one second has a record, whichever looks for a name first."""
    free = record_writer.new_path

    def taken_at_once(*asked: Any) -> Path:  # noqa: ANN401
        path = free(*asked)
        monkeypatch.setattr(record_writer, "new_path", free)
        path.write_text("another run's")
        return path

    monkeypatch.setattr(record_writer, "new_path", taken_at_once)
    writer = record_writer.new_record(tmp_path, datetime.now(UTC), example_header(1))
    others = [each for each in tmp_path.iterdir() if each != writer.path]
    assert [each.read_text() for each in others] == ["another run's"]
    assert read(writer.path).header == example_header(1)
