"""The GitHub Action, as far as a machine without GitHub can try it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernel_workbench.reports.run_report import Failure, Report
from kernel_workbench.suites.run.options import check
from tests import ROOT

_FOLDER = ROOT / ".github" / "actions" / "accuracy"


def _annotated(tmp_path: Path, report: Report) -> subprocess.CompletedProcess[str]:
    report.save(tmp_path / "accuracy.json")
    words = ["kernels/mine.py", str(tmp_path / "accuracy.json")]
    command = [sys.executable, str(_FOLDER / "annotate.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_annotations_tell_each_failure_that_counts(tmp_path: Path) -> None:
    """A line for GitHub each, with its special characters escaped; the verdict is the output."""
    failure = Failure(
        kernel="mine",
        op="softmax_forward",
        case="softmax_forward-m3-n64-float32-contiguous",
        rule="deterministic bound",
        sentence="y[1, 2]: 100 % wrong\nin two lines",
        gates=True,
        command="",
    )
    beside = failure.model_copy(update={"gates": False})
    report = Report(
        suite="accuracy", verdict="failed", passed=False, exit_status=1, failures=(failure, beside)
    )
    done = _annotated(tmp_path, report)
    assert done.stdout == "verdict=failed\n"
    assert done.stderr == (
        "::error file=kernels/mine.py::mine: softmax_forward-m3-n64-float32-contiguous: "
        "y[1, 2]: 100 %25 wrong%0Ain two lines\n"
    )


def test_accepted_failure_that_passes_is_a_notice(tmp_path: Path) -> None:
    """The job stays green, and the line tells what to take out of the file."""
    report = Report(
        suite="accuracy", verdict="passed", passed=True, exit_status=0, accepted_that_pass=("a b",)
    )
    done = _annotated(tmp_path, report)
    assert done.stdout == "verdict=passed\n"
    assert done.stderr.startswith("::notice file=kernels/mine.py::a b: an accepted failure that")


def test_workflows_of_the_page_are_yaml_and_their_options_exist() -> None:
    """Each job has a runner and steps; each step uses an action or runs words that bash reads."""
    yaml = pytest.importorskip("yaml")
    page = (ROOT / "docs" / "how-to" / "own-repository.md").read_text(encoding="utf-8")
    workflows = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    jobs = {name: job for workflow in workflows for name, job in workflow["jobs"].items()}
    assert set(jobs) == {"accuracy", "speed"}
    for workflow in workflows:
        for job in workflow["jobs"].values():
            assert job["runs-on"]
            for step in job["steps"]:
                assert ("run" in step) != ("uses" in step)
                subprocess.run(["bash", "-n"], input=step.get("run", ""), text=True, check=True)  # noqa: S607
    (bench,) = [step["run"] for step in jobs["speed"]["steps"] if step.get("name") == "bench"]
    words = shlex.split(bench.replace("\\\n", " "))[2:]
    assert "--gate" in words
    check("bench", words)
    used = [step for step in jobs["accuracy"]["steps"] if "accuracy@" in step.get("uses", "")]
    action = yaml.safe_load((_FOLDER / "action.yml").read_text())
    for step in used:
        assert set(step["with"]) <= set(action["inputs"])
    assert used


def test_annotation_tells_why_a_file_cant_be_imported(tmp_path: Path) -> None:
    """There is no failure then, and no record."""
    done = _annotated(tmp_path, Report.of_no_run("accuracy", 2, "importing it raised SyntaxError"))
    assert done.stdout == "verdict=usage\n"
    assert done.stderr == "::error file=kernels/mine.py::importing it raised SyntaxError\n"


def test_action_is_composite_and_its_options_exist() -> None:
    """Each step of the shell names one, as GitHub asks; the command's options are the suite's."""
    yaml = pytest.importorskip("yaml")
    action: dict[str, Any] = yaml.safe_load((_FOLDER / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    for step in action["runs"]["steps"]:
        assert ("run" in step) == (step.get("shell") == "bash")
        if "run" in step:
            subprocess.run(["bash", "-n"], input=step["run"], text=True, check=True)  # noqa: S607
    check(
        "accuracy",
        ["--json", "--accepted=known.txt", "--results=kernel-results", "--kernels=mine.py"],
    )
