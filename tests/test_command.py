"""The command `python -m kernel_workbench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)


def test_command_help_lists_suites_without_torch() -> None:
    """The help names each suite and loads neither torch nor triton."""
    done = _run("-X", "importtime", "-m", "kernel_workbench", "--help")
    assert done.returncode == 0
    assert all(f"  {suite} " in done.stdout for suite in ("accuracy", "bench", "report"))
    assert "| torch" not in done.stderr
    assert "| triton" not in done.stderr


def test_command_refuses_an_unknown_suite() -> None:
    """A name that is no suite's ends with a sentence and status 2."""
    done = _run("-m", "kernel_workbench", "acuracy")
    assert done.returncode == 2
    assert done.stderr.startswith("no suite is named 'acuracy'; name one of accuracy, ")


def test_command_passes_options_to_a_report() -> None:
    """A report that is asked for its help shows its own options."""
    done = _run("-m", "kernel_workbench", "report", "--help")
    assert done.returncode == 0
    assert "--markdown" in done.stdout
