"""NVIDIA's programs, where the machine has them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_HOMES = ("CUDA_HOME", "CUDA_PATH")


def cuda_program(name: str) -> str | None:
    """The program's path: on PATH, or in CUDA's own folder; None where there is none."""
    roots = [Path(os.environ[home]) for home in _HOMES if home in os.environ]
    places = [str(root / "bin") for root in (*roots, Path("/usr/local/cuda"))]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(places))
