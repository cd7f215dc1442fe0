"""What was measured of compiled kernels, kept on disk by all that it depends on.

A file for each: its name is a hash of the jit function's source and of all that it calls, what it
is specialised for, the target, the options, the versions of triton and ptxas, and of the analysis.
A file that can't be read counts as none; one that can't be written isn't kept.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path

from kernel_workbench.suites.compile.compiler import ANALYSIS, Measured

_FOLDER = "kernel-workbench"


def default_folder() -> Path:
    """Where the user's system keeps such things."""
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(home) / _FOLDER / "compile"


class Cache:
    """Measurements in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str, tools: dict[str, str]) -> Measured | None:
        """What was measured under the key with these tools; None where nothing was."""
        try:
            found = json.loads(self._path(key, tools).read_text())
            return Measured(**{each.name: found[each.name] for each in fields(Measured)})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, key: str, tools: dict[str, str], measured: Measured) -> None:
        """Keep a measurement; of a kernel that didn't compile nothing is kept."""
        if measured.problem is not None:
            return
        path = self._path(key, tools)
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            aside.write_text(json.dumps(asdict(measured)))
            aside.replace(path)

    def _path(self, key: str, tools: dict[str, str]) -> Path:
        described = json.dumps({"key": key, "tools": tools, "analysis": ANALYSIS}, sort_keys=True)
        name = hashlib.sha256(described.encode()).hexdigest()
        return self._folder / name[:2] / f"{name}.json"
