"""Commands as a user's shell starts them: this Python, in the checkout's root."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

_PATIENCE_S = 600.0  # with what hangs: on a machine that has other work all takes longer
ROOT = Path(__file__).resolve().parent.parent


def run_python(
    *arguments: str | Path, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What Python prints and ends with; variables: its environment, by default this one's."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE_S,
    )


def wait_for(event: Callable[[], object], running: subprocess.Popen[Any] | None = None) -> None:
    """Look every 20 ms whether it has happened; five minutes of such waits are too many.

    running: what it is to happen in, or else to end. Waits are counted and no clock is read: on a
    machine that has other work all of it takes longer.
    """
    for _ in range(15_000):
        if event() or (running is not None and running.poll() is not None):
            return
        time.sleep(0.02)
    raise AssertionError("what was waited for didn't happen")


@cache
def noxfile() -> ModuleType:
    """The noxfile's sessions, as nox loads them from the checkout's root."""
    spec = importlib.util.spec_from_file_location("noxfile", ROOT / "noxfile.py")
    assert spec is not None and spec.loader is not None
    module, before = importlib.util.module_from_spec(spec), Path.cwd()
    os.chdir(ROOT)
    try:
        spec.loader.exec_module(module)
    finally:
        os.chdir(before)
    return module
