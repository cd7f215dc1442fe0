"""The suite under compute-sanitizer: each tool once, its summary kept; one sentence without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parent.parent
# Stands in the program's place: it runs nothing, and finds something by one of its tools.
_PROGRAM = """#!/bin/sh
echo "$PYTORCH_NO_CUDA_MEMORY_CACHING $*" >> "$WORKBENCH_TEST_LOG"
case "$2" in
racecheck) echo "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)"; exit 86;;
*) echo "========= ERROR SUMMARY: 0 errors";;
esac
"""


def _run(path: str, log: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "suites.accuracy.sanitizer", "--kernel", "flash"]
    environment = {
        name: value for name, value in os.environ.items() if name not in {"CUDA_HOME", "CUDA_PATH"}
    }
    environment |= {"PATH": path, "WORKBENCH_TEST_LOG": str(log), "COLUMNS": "120"}
    return subprocess.run(
        command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_each_tool_runs_the_selected_cases_and_one_finding_fails(tmp_path: Path) -> None:
    """A hazard under racecheck sets the exit status, though the last tool found nothing."""
    program = tmp_path / "compute-sanitizer"
    program.write_text(_PROGRAM)
    program.chmod(0o755)
    ran = _run(f"{tmp_path}:/usr/bin:/bin", tmp_path / "log")
    calls = (tmp_path / "log").read_text().splitlines()
    assert ran.returncode == 86
    assert "2 hazards displayed" in ran.stdout
    assert [each.split()[2] for each in calls] == ["memcheck", "racecheck", "initcheck"]
    assert all(each.startswith("1 ") and each.endswith("--kernel flash") for each in calls)


@pytest.mark.skipif(
    Path("/usr/local/cuda/bin/compute-sanitizer").exists(), reason="it is installed here"
)
def test_machine_without_it_says_where_it_comes_from(tmp_path: Path) -> None:
    """One sentence, and a failure: nothing was checked."""
    ran = _run(str(tmp_path), tmp_path / "log")
    assert ran.returncode == 1
    assert "isn't installed here" in ran.stderr
    assert "Traceback" not in ran.stderr
