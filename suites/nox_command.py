"""Commands for nox that work where they are pasted: by the nox that runs, as its user calls it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable

# Set by noxfile.py: the words before `-s`, quoted for a shell, as `.venv/bin/nox`.
VARIABLE = "WORKBENCH_NOX"


def nox_command(session: str, own: Iterable[str]) -> str:
    """What runs a session; own: its arguments, `--` first, or none."""
    return f"{os.environ.get(VARIABLE, 'nox')} -s {shlex.join([session, *own])}"
