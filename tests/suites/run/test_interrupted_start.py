"""Ctrl-C before a run has begun its record: one sentence, and the status of an incomplete run."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.record import AccuracyRow
from kernel_workbench.suites.run.session import Session
from tests.builders.commands import Running, run_python, wait_for

pytestmark = pytest.mark.long_run

# As Ctrl-C that comes while a module is imported: the launcher finds this as a module of its own.
_PRESSED = """
import os, runpy, signal, sys

class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Pressed())
sys.argv = ["-m", {words}]
runpy.run_module({command!r}, run_name="__main__", alter_sys=True)
"""
# Ctrl-C that comes while the judge asks the kernel's process for what it registers.
_WAITS = """
import pathlib, time
pathlib.Path({marker!r}).touch()
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("command", "words", "module"),
    [
        ("kernel_workbench.suites.run", '"accuracy", "--device=cpu"', "_pytest.config"),
        ("kernel_workbench.suites.run", '"accuracy", "--device=cpu"', "torch"),
        (
            "kernel_workbench.suites.run",
            '"bench", "--device=cpu"',
            "kernel_workbench.suites.bench.suite",
        ),
        (
            "kernel_workbench.suites.run",
            '"search", "--device=cpu"',
            "kernel_workbench.suites.search.suite",
        ),
        ("kernel_workbench.suites.compile", "", "kernel_workbench.kernels.layer_norm"),
    ],
)
def test_command_that_is_interrupted_among_its_imports(
    command: str, words: str, module: str
) -> None:
    """Early, late, and while pytest captures what conftests print."""
    code = _PRESSED.format(command=command, words=words, module=module)
    done = run_python("-c", code, started=True)
    assert (done.returncode, done.stdout) == (ExitStatus.INCOMPLETE, "")
    assert done.stderr == "interrupted before anything was run\n"


def test_run_that_is_interrupted_before_its_record(tmp_path: Path) -> None:
    """A user's file takes its time to be imported, and nothing is left of its process."""
    marker, file = tmp_path / "marker", tmp_path / "mine.py"
    file.write_text(_WAITS.format(marker=str(marker)))
    command = (sys.executable, "-m", "kernel_workbench.suites.run", "accuracy", "--device=cpu")
    running = Running(*command, f"--kernels={file}", f"--results={tmp_path}", started=True)
    wait_for(marker.exists, running)
    done = running.ended(by=signal.SIGINT)
    assert (done.returncode, done.stdout.strip()) == (ExitStatus.INCOMPLETE, "")
    assert done.stderr == "interrupted before anything was run\n"
    assert not list(tmp_path.glob("*.jsonl"))


def test_interrupt_is_rendered_without_its_frames() -> None:
    """pytest renders every frame of it, and one without a line ended the run in a traceback."""
    session: Session[AccuracyRow] = Session.__new__(Session)
    session.record = None

    def interrupted() -> None:
        try:
            raise ValueError("in the middle of something")  # noqa: TRY301
        except ValueError:
            raise KeyboardInterrupt  # noqa: B904

    try:
        interrupted()
    except KeyboardInterrupt:
        excinfo = pytest.ExceptionInfo.from_current()
    session.pytest_keyboard_interrupt(excinfo)
    text = str(excinfo.getrepr(funcargs=True))
    assert text.count("test_interrupted_start.py:") == 1
    assert "During handling" not in text
