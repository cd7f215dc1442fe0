"""Ctrl-C in the seconds that a command takes to import what it needs: one sentence."""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path

import pytest

from suites.resources.worker import serve
from tests.commands import run_python

ROOT = Path(__file__).resolve().parents[1]
_PRESSED = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
# As Ctrl-C that comes while the session's modules are imported.
_COMPILE = """
import os, signal, sys
from suites.resources import __main__ as command

class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == "suites.resources.command":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Pressed())
sys.exit(command.main([]))
"""


def test_suite_that_is_interrupted_among_its_imports(tmp_path: Path) -> None:
    """Nothing was run, and the status is that of an interrupted run."""
    (tmp_path / "conftest.py").write_text(_PRESSED)
    ours = ("-c", str(ROOT / "pyproject.toml"), "--device=cpu", "-p", "no:cacheprovider")
    done = run_python("-m", "pytest", *ours, tmp_path)
    assert done.returncode == pytest.ExitCode.INTERRUPTED
    assert done.stderr == "interrupted before anything was run\n"
    assert done.stdout == ""


def test_compile_that_is_interrupted_among_its_imports() -> None:
    """Its server, which imports the same meanwhile, doesn't hear of it."""
    done = run_python("-c", _COMPILE)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr == "interrupted before anything was compiled\n"


def test_worker_of_a_run_that_is_over_ends_without_a_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was asked for before Ctrl-C, and begins after the run's folder is gone."""
    ours, theirs = multiprocessing.Pipe()
    serve(theirs, 90, (), tmp_path / "gone")
    assert not ours.poll()
    assert capfd.readouterr() == ("", "")
