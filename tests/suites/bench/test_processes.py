"""Runs in processes of their own, and Ctrl-C, also among their imports."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from kernel_workbench.suites.bench.processes import Process, run_in_turn, run_together, start
from tests.builders.commands import Running, wait_for

pytestmark = pytest.mark.long_run

# A run that is among its imports until it is ended; WAITS says what it does with Ctrl-C.
_CONFTEST = """
import os, pathlib, signal, time
WAITS
pathlib.Path(f"{os.getpid()}.waits").touch()
time.sleep(600)
"""
_TWO_RUNS = """
import sys
import time
from pathlib import Path
from kernel_workbench.suites.bench.processes import Process, run_together

here = Path(sys.argv[1])
runs = [Process("one", ["."], here), Process("other", ["."], here, {"TERM": "dumb"})]
print(run_together(runs), file=sys.stderr)
"""


def _until(running: Running, path: Path, files: int) -> None:
    wait_for(lambda: len(list(path.glob("*.waits"))) >= files, running)
    assert running.process.poll() is None, running.printed


def _lives(number: int) -> bool:
    """Not so of one that has ended and that nobody has asked for its status."""
    try:
        return "State:\tZ" not in Path(f"/proc/{number}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("does", "presses", "told"),
    [
        ("", 1, "([2, 2], True)"),
        (
            'signal.signal(signal.SIGINT, lambda *_: pathlib.Path(f"{os.getpid()}.asked").touch())',
            2,
            "([-9, -9], True)",
        ),
    ],
    ids=["once", "twice"],
)
def test_interrupt_ends_all_runs_without_a_traceback(
    does: str, presses: int, told: str, tmp_path: Path
) -> None:
    """One lets them end by themselves; the next kills those that don't."""
    (tmp_path / "conftest.py").write_text(_CONFTEST.replace("WAITS", does))
    running = Running(sys.executable, "-c", _TWO_RUNS, tmp_path)
    _until(running, tmp_path, 2)
    for press in range(presses):
        if press:  # two signals at one time would be one
            wait_for(lambda: len(list(tmp_path.glob("*.asked"))) == 2, running)
        running.process.send_signal(signal.SIGINT)
    errors = running.ended().stderr
    assert errors.splitlines()[-1] == told
    assert "Traceback" not in errors


def test_interrupt_before_a_run_is_up_waits_for_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """While Python itself starts: the run ends as from any Ctrl-C, and says nothing."""
    starting = start(Process("version", ["--version"], tmp_path, results=tmp_path))
    starting.send_signal(signal.SIGINT)
    assert starting.wait(600) == pytest.ExitCode.INTERRUPTED
    assert capfd.readouterr().err == ""


def test_runs_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """Which is killed: they get a Ctrl-C, and none is left on a GPU."""
    (tmp_path / "conftest.py").write_text(_CONFTEST.replace("WAITS", ""))
    running = Running(sys.executable, "-c", _TWO_RUNS, tmp_path)
    _until(running, tmp_path, 2)
    running.ended(by=signal.SIGKILL)
    numbers = [int(each.stem) for each in tmp_path.glob("*.waits")]
    wait_for(lambda: not any(map(_lives, numbers)))


def test_runs_say_how_they_ended(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each has its own status and environment; in turn the worst is that of all."""
    (tmp_path / "test_it.py").write_text(
        "import os\ndef test_it(): assert os.environ['WHICH'] == 'this'\n"
    )
    runs = [Process(each, ["-q"], tmp_path, {"WHICH": each}) for each in ("this", "other", "third")]
    assert run_together(runs[:2]) == ([0, 1], False)
    capfd.readouterr()
    assert run_in_turn([runs[:2], runs[2:]]) == (1, None)
    assert capfd.readouterr().err == "bench: this\nbench: other\nbench: third\n"
    status, told = run_in_turn([[each] for each in runs], stop_at_failure=True)
    assert (status, told) == (1, "bench: a process failed, so no other one was started")
    assert "third" not in capfd.readouterr().err
