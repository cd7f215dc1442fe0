"""Commands as a user's shell starts them: this Python, in the checkout's root."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

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
