"""The suite under NVIDIA's compute-sanitizer, where that is installed.

    python -m kernel_workbench.suites.accuracy.sanitizer --kernel flash -k "s_q129 and float16"

runs the cases that the options select once under each of its tools: memcheck (accesses out of
bounds), racecheck (shared memory that threads of a program race for), initcheck (reads of memory
that nothing wrote). It slows a kernel down by ten to a hundred times, so select few cases; torch
allocates each tensor on its own meanwhile, so that the end of one isn't the start of another.

Findings in a library's own kernels are told apart and fail nothing: racecheck doesn't follow the
barriers of cuBLAS's (every product of halves on an H200, sm 90, has thousands of hazards).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from rich.table import Table

from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.output import outlast_readers, report_console
from kernel_workbench.suites.run.cuda_programs import cuda_program
from kernel_workbench.suites.run.exit_status import of_pytest
from kernel_workbench.suites.run.options import FOLDERS, check

TOOLS = ("memcheck", "racecheck", "initcheck")
_FOUND = 86  # the exit status asked of it where it found something
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (.*)")
_SHOWN = re.compile(r"(\d+) hazards? displayed \((\d+) error")
_FINDING = re.compile(
    r"^=========\s+(?:Error: |Warning: )?.*?\bat (?:void )?(.+?)\+0x", re.MULTILINE
)
_REPORT = re.compile(r"^=========\s+\S.*?(?=^=========\s*$|\Z)", re.MULTILINE | re.DOTALL)
# Beginnings of the names of kernels that cuBLAS, cuDNN and PyTorch bring.
_LIBRARIES = (
    "nvjet",
    "cutlass",
    "cudnn",
    "cublas",
    "sm80_xmma",
    "sm90_xmma",
    "at::native",
    "cub::",
    "thrust::",
)


@dataclass(frozen=True, slots=True)
class Found:
    """What one tool says: in its own words, and how many findings are in which library's kernel."""

    status: int
    summary: str
    libraries: tuple[tuple[str, int], ...] = ()

    @property
    def text(self) -> str:
        """The summary, and what of it isn't counted."""
        if not self.libraries:
            return self.summary
        apart = ", ".join(f"{count} in {name}" for name, count in self.libraries)
        return f"{self.summary}; of a library's own kernels: {apart}"


def run(program: str, tool: str, options: Sequence[str]) -> Found:
    """Run the suite under one tool."""
    suite = [sys.executable, "-m", "pytest", str(FOLDERS["accuracy"]), "--device=cuda"]
    suite += ["--in-process"]
    watched = [program, "--tool", tool, "--error-exitcode", str(_FOUND), "--target-processes=all"]
    ran = subprocess.run(
        [*watched, "--print-limit=0", *suite, *options],
        env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return judged(ran.returncode, ran.stdout)


def judged(status: int, printed: str) -> Found:
    """What a tool's output says; findings that are a library's alone don't count."""
    summaries = _SUMMARY.findall(printed)
    summary = summaries[-1] if summaries else "it printed no summary"
    reports = [names for each in _REPORT.findall(printed) if (names := _FINDING.findall(each))]
    libraries = Counter(
        names[0] for names in reports if all(name.startswith(_LIBRARIES) for name in names)
    )
    told = _without(printed, libraries)
    sys.stdout.write(told)
    shown = _SHOWN.match(summary)
    whole = shown is None or int(shown[1]) >= int(shown[2])
    if status == _FOUND and whole and reports and libraries.total() == len(reports):
        status = 0
    return Found(status, summary, tuple(sorted(libraries.items())))


def _without(printed: str, libraries: Counter[str]) -> str:
    """The output without the thousands of lines on a library's kernels."""
    lines = printed.splitlines(keepends=True)
    return "".join(
        line
        for line in lines
        if not (line.startswith("=========") and any(f" {name}+0x" in line for name in libraries))
    )


def main(options: Sequence[str]) -> int:
    """Run every tool, print what each found, and return the exit status: 1 for a finding."""
    try:
        check("sanitize", options)
    except pytest.UsageError as error:
        print(error, file=sys.stderr)
        return ExitStatus.USAGE
    program = cuda_program("compute-sanitizer")
    if program is None:
        print(
            "compute-sanitizer isn't installed here: it comes with NVIDIA's CUDA toolkit; put its "
            "folder on PATH, or set CUDA_HOME",
            file=sys.stderr,
        )
        return ExitStatus.INCOMPLETE
    table = Table("tool", "exit status", "what it says", box=None)
    worst = ExitStatus.RIGHT
    for tool in TOOLS:
        found = run(program, tool, options)
        finding = found.status == _FOUND
        worst = max(worst, ExitStatus.WRONG if finding else of_pytest(found.status))
        table.add_row(tool, str(found.status), found.text)
    report_console().print(table)
    return worst


if __name__ == "__main__":
    outlast_readers()
    sys.exit(main(sys.argv[1:]))
