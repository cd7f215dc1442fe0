"""Commands as a user's shell starts them: this Python, in the checkout's root."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent


def run_python(
    *arguments: str | Path, variables: Mapping[str, str] | None = None, timeout_s: float = 600.0
) -> subprocess.CompletedProcess[str]:
    """What Python prints and ends with; variables: its environment, by default this one's."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


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
