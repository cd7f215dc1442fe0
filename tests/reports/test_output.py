"""Commands whose output has no width, no reader or no room."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_workbench.reports.output import LastingOutput, report_console
from tests import ROOT

_RECORD = ROOT / "docs" / "gallery" / "published-b200.jsonl"


@pytest.mark.parametrize("columns", ["", "0", "²", "-5", "abc", "1e3", "9" * 30])
def test_columns_that_are_no_width_are_as_if_not_set(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich would draw nothing, or raise."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)
    width = report_console(stream=io.StringIO()).width
    with monkeypatch.context() as patch:  # pytest reads them, too, when the test has ended
        patch.setenv("COLUMNS", columns)
        patch.setenv("LINES", columns)
        assert report_console(stream=io.StringIO()).width == width > 0


@pytest.mark.parametrize(("columns", "width"), [("5", 20), ("77", 77), ("999999999", 10_000)])
def test_columns_are_kept_to_what_a_report_can_have(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As --width is."""
    monkeypatch.setenv("COLUMNS", columns)
    assert report_console(stream=io.StringIO()).width == width


def test_output_outlasts_its_reader() -> None:
    """A closed pipe loses what is written, and raises neither then nor when it is flushed."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        output = LastingOutput(stream)
        output.write("lost")
        output.flush()
        output.write("lost too")
        output.flush()
    assert output.problem is None


def test_output_names_the_reason_of_what_is_lost() -> None:
    """A disk without room is told, other than a pipe that a reader closed."""
    with Path("/dev/full").open("w") as stream:
        output = LastingOutput(stream)
        output.write("lost")
        output.flush()
    assert output.problem == "No space left on device"


def test_report_that_finds_no_room_is_refused_in_a_sentence() -> None:
    """Nothing else is printed, and the status isn't that of a report which was written."""
    command = [sys.executable, "-m", "kernel_workbench.reports", str(_RECORD)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False
        )
    assert done.returncode == 2
    sentence = "the report can't be written to stdout (No space left on device); name a file\n"
    assert done.stderr == sentence
