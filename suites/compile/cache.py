"""Measurements of compiled kernels on disk, by a hash of everything that they depend on.

A measurement is one file. The file's name hashes the jit function's source and its callees, the
specialisation, the target, the options, and the versions of triton, ptxas and the analysis. A file
that can't be read counts as absent; a file that can't be written is skipped.
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
    """Return the folder in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(home) / _FOLDER / "compile"


class Cache:
    """Measurements in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str, tools: dict[str, str]) -> Measured | None:
        """Return the measurement of a key with these tools, or None."""
        try:
            stored = json.loads(self._path(key, tools).read_text())
            return Measured(**{column.name: stored[column.name] for column in fields(Measured)})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, key: str, tools: dict[str, str], measured: Measured) -> None:
        """Store a measurement, unless the kernel didn't compile."""
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
