"""Exit statuses: one table for all commands, which nox passes on."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_workbench.oracles import OPS
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.record import latest, read
from kernel_workbench.suites.run.exit_status import in_pytest, of_pytest
from tests import ROOT
from tests.builders.accuracy_records import example_rows, write_example
from tests.builders.commands import Running, noxfile

pytestmark = pytest.mark.long_run

_CASE = next(
    each.id()
    for each in OPS["softmax_forward"].cases()
    if each.id().endswith("32-contiguous") and all(dict(each.sizes).values())
)
_KERNEL = """
import torch
from kernel_workbench import SOFTMAX_FORWARD, Domain, kernel

@kernel(SOFTMAX_FORWARD, Domain(dtypes=({dtype},)))
def mine(x):
    {first}
    x = x - x.amax(-1, keepdim=True)
    return x.exp() / x.exp().sum(-1, keepdim=True){last}
"""


def _nox(*words: str) -> Running:
    """Call nox as a user does."""
    called = (sys.executable, "-m", "nox", "-f", ROOT / "noxfile.py", "--no-venv")
    return Running(*called, *words)


def _file(folder: Path, dtype: str = "torch.float32", first: str = "pass", last: str = "") -> str:
    file = folder / "mine.py"
    file.write_text(_KERNEL.format(dtype=dtype, first=first, last=last))
    return str(file)


@pytest.mark.parametrize(
    ("status", "mine"),
    [
        (ExitStatus.RIGHT, {}),
        (ExitStatus.WRONG, {"last": " * 2"}),
        (ExitStatus.USAGE, {"first": "no python"}),
        (ExitStatus.SUITE_FAILED, {"first": "open(__file__, 'a').write(chr(10))"}),
        (ExitStatus.INCOMPLETE, {"dtype": "torch.float16"}),
    ],
    ids=lambda each: each.name if isinstance(each, ExitStatus) else "",
)
def test_nox_passes_on_how_a_run_ended(
    status: ExitStatus, mine: dict[str, str], tmp_path: Path
) -> None:
    """A right kernel, a wrong one, a typo in the file, a file that changes, and nothing to run."""
    words = ["--device=cpu", f"--kernels={_file(tmp_path, **mine)}", f"--case={_CASE}"]
    ended = _nox("-s", "accuracy", "--", *words, f"--results={tmp_path}").ended()
    assert ended.returncode == status, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    if status != ExitStatus.USAGE:
        end = read(latest(tmp_path)).end
        assert end is not None
        assert end.exit_status == status


@pytest.mark.parametrize(
    "module", ["pytest kernel_workbench/suites/accuracy", "kernel_workbench.suites.run accuracy"]
)
def test_reader_that_closes_its_pipe_leaves_the_status(module: str, tmp_path: Path) -> None:
    """A passing run ends with 0 where `head` takes its first line, in a bare pytest too."""
    words = [f"--kernels={_file(tmp_path)}", f"--case={_CASE}", f"--results={tmp_path}"]
    command = shlex.join([sys.executable, "-m", *module.split(), "--device=cpu", *words])
    done = subprocess.run(
        ["/bin/bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ExitStatus.RIGHT, done.stderr
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("sessions", [("report", "compare"), ("compare", "report")])
def test_largest_status_of_several_sessions_counts(
    sessions: tuple[str, str], tmp_path: Path
) -> None:
    """A record that was cut off ends `report` with 4, and alone it is misuse of `compare`."""
    record = write_example(tmp_path / "cut.jsonl", example_rows(), whole=False)
    ended = _nox("-s", *sessions, "--", str(record)).ended()
    assert ended.returncode == ExitStatus.INCOMPLETE, ended.stderr
    alone = _nox("-s", "compare", "--", str(record)).ended()
    assert alone.returncode == ExitStatus.USAGE, alone.stderr


def test_process_that_a_signal_ended_is_incomplete() -> None:
    """Both in pytest's statuses and in the noxfile's, whose numbers are the table's."""
    sessions = noxfile()
    assert of_pytest(-signal.SIGKILL) == ExitStatus.INCOMPLETE
    assert sessions._of_process(-signal.SIGKILL) == ExitStatus.INCOMPLETE
    assert sessions._INCOMPLETE == ExitStatus.INCOMPLETE == max(ExitStatus)
    assert sessions._SUITE_FAILED == ExitStatus.SUITE_FAILED
    assert [sessions._of_process(each) for each in ExitStatus] == list(ExitStatus)


def test_pytest_says_each_status_by_one_of_its_own() -> None:
    """`python -m kernel_workbench.suites.run` ends with what a suite says in pytest."""
    assert [of_pytest(in_pytest(each)) for each in ExitStatus] == list(ExitStatus)
    assert of_pytest(pytest.ExitCode.INTERRUPTED) == ExitStatus.INCOMPLETE
    assert of_pytest(pytest.ExitCode.USAGE_ERROR) == ExitStatus.USAGE
