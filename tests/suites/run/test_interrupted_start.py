"""Ctrl-C in the seconds that a command takes to import what it needs: one sentence."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests import ROOT
from tests.builders.commands import run_python

_PRESSED = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
# As Ctrl-C that comes while the session's modules are imported.
_COMPILE = """
import os, signal, sys
from suites.compile import __main__ as command

class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == "kernels.layer_norm":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Pressed())
sys.exit(command.main([]))
"""


def test_suite_that_is_interrupted_among_its_imports(tmp_path: Path) -> None:
    """Nothing was run, and the status is that of an interrupted run."""
    (tmp_path / "conftest.py").write_text(_PRESSED)
    ours = ("-c", str(ROOT / "pyproject.toml"), "--device=cpu", "-p", "no:cacheprovider")
    done = run_python("-m", "pytest", *ours, tmp_path, started=True)
    assert done.returncode == pytest.ExitCode.INTERRUPTED
    assert done.stderr == "interrupted before anything was run\n"
    assert done.stdout == ""


def test_compile_that_is_interrupted_among_its_imports() -> None:
    """Its server, which imports the same meanwhile, doesn't hear of it."""
    done = run_python("-c", _COMPILE, started=True)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr == "interrupted before anything was compiled\n"
