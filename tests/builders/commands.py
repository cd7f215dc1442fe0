"""Commands as a user's shell starts them: this Python, in the checkout's root."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType
from typing import Any

from tests import ROOT
from tests.builders.python_server import Fork, can_fork

# Arguments of Python for the accuracy suite in pytest, quietly, under the interpreter.
ACCURACY = ("-m", "pytest", "kernel_workbench/suites/accuracy", "--device=cpu", "-qq")
_PATIENCE_S = 600.0  # before a command counts as hung; a busy machine is slower


class Running:
    """A command that runs in the checkout's root; files keep its printed text.

    A Python of the workbench is a fork of a Python that has loaded torch and the suites, unless
    `started`.
    """

    def __init__(
        self,
        *command: str | Path,
        variables: Mapping[str, str] | None = None,
        folder: Path = ROOT,
        started: bool = False,
    ) -> None:
        self.command = [str(each) for each in command]
        self._files = TemporaryFile(), TemporaryFile()  # noqa: SIM115 (they last as long as it)
        for each in self._files:
            weakref.finalize(self, each.close)
        forks = not started and can_fork(self.command, folder, variables)
        start: type[Fork | subprocess.Popen[Any]] = Fork if forks else subprocess.Popen
        output, errors = self._files
        self.process = start(self.command, cwd=folder, env=variables, stdout=output, stderr=errors)
        weakref.finalize(self, self.process.kill)

    @property
    def printed(self) -> tuple[str, str]:
        """Return the text printed so far, and its part on stderr."""
        output, errors = (os.pread(each.fileno(), 2**26, 0).decode() for each in self._files)
        return output, errors

    def ended(self, *, by: signal.Signals | None = None) -> subprocess.CompletedProcess[str]:
        """Send the command a signal, if any, and wait for its end."""
        if by is not None:
            self.process.send_signal(by)
        try:
            status = self.process.wait(_PATIENCE_S)
        finally:
            self.process.kill()
        return subprocess.CompletedProcess(self.command, status, *self.printed)


def run_python(
    *arguments: str | Path, variables: Mapping[str, str] | None = None, started: bool = False
) -> subprocess.CompletedProcess[str]:
    """Return Python's printed text and status; variables: its environment, by default ours."""
    return Running(sys.executable, *arguments, variables=variables, started=started).ended()


def wait_for(event: Callable[[], object], running: Running | None = None) -> None:
    """Wait in steps of 20 ms until a condition holds; fail after five minutes of such waits.

    running: a command that must not end before. Waits are counted instead of time, because a busy
    machine is slower.
    """
    for _ in range(15_000):
        if event() or (running is not None and running.process.poll() is not None):
            return
        time.sleep(0.02)
    raise AssertionError("what was waited for didn't happen")


@cache
def noxfile() -> ModuleType:
    """Return the noxfile's sessions, as nox loads them in the checkout's root."""
    spec = importlib.util.spec_from_file_location("noxfile", ROOT / "noxfile.py")
    assert spec is not None and spec.loader is not None
    module, before = importlib.util.module_from_spec(spec), Path.cwd()
    os.chdir(ROOT)
    try:
        spec.loader.exec_module(module)
    finally:
        os.chdir(before)
    return module
