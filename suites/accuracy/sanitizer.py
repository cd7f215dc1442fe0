"""The suite under NVIDIA's compute-sanitizer, where that is installed.

    python -m suites.accuracy.sanitizer --kernel flash -k "s_q37 and float16"

runs the cases that the options select once under each of its tools: memcheck (accesses out of
bounds), racecheck (shared memory that threads of a program race for), initcheck (reads of memory
that nothing wrote). It slows a kernel down by ten to a hundred times, so select few cases; torch
allocates each tensor on its own meanwhile, so that the end of one isn't the start of another.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

TOOLS = ("memcheck", "racecheck", "initcheck")
_FOUND = 86  # the exit status asked of it where it found something
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (.*)")
_HOMES = ("CUDA_HOME", "CUDA_PATH")


def compute_sanitizer() -> str | None:
    """The program's path: on PATH, or in CUDA's own folder; None where there is none."""
    roots = [Path(os.environ[each]) for each in _HOMES if each in os.environ]
    places = [str(root / "bin") for root in (*roots, Path("/usr/local/cuda"))]
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=os.pathsep.join(places)
    )


def run(program: str, tool: str, options: Sequence[str]) -> tuple[int, str]:
    """Run the suite under one tool; its exit status, and its summary in its own words."""
    suite = [sys.executable, "-m", "pytest", "suites/accuracy", "--device=cuda", "--in-process"]
    watched = [program, "--tool", tool, "--error-exitcode", str(_FOUND), "--target-processes=all"]
    ran = subprocess.run(
        [*watched, *suite, *options],
        env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    sys.stdout.write(ran.stdout)
    found = _SUMMARY.findall(ran.stdout)
    return ran.returncode, found[-1] if found else "it printed no summary"


def main(options: Sequence[str]) -> int:
    """Run every tool and print what each found; the exit status is 0 where none found anything."""
    program = compute_sanitizer()
    if program is None:
        print(
            "compute-sanitizer isn't installed here: it comes with NVIDIA's CUDA toolkit; put its "
            "folder on PATH, or set CUDA_HOME",
            file=sys.stderr,
        )
        return 1
    table = Table("tool", "exit status", "what it says", box=None)
    worst = 0
    for tool in TOOLS:
        status, summary = run(program, tool, options)
        worst = worst or status
        table.add_row(tool, str(status), summary)
    Console().print(table)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
