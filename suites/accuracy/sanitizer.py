"""Run the suite under NVIDIA's compute-sanitizer, if it is installed.

    python -m kernel_workbench.suites.accuracy.sanitizer --kernel flash -k "s_q129 and float16"

runs the cases that the options select once under each of its tools: memcheck (accesses out of
bounds), racecheck (shared memory that threads of a program race for), initcheck (reads of memory
that nothing wrote). It slows a kernel down by ten to a hundred times, so select few cases; torch
allocates each tensor on its own meanwhile, so that the end of one isn't the start of another.

Findings in a library's own kernels are counted apart and fail nothing: racecheck doesn't follow
cuBLAS's barriers (every product of halves on an H200, sm 90, has thousands of hazards).
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
_FINDING_STATUS = 86  # the exit status that the tool gets for a finding
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (.*)")
_COUNTS = re.compile(r"(\d+) (?:error|hazard|warning)")
_SUITE_FAILED = "========= Target application returned an error"
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
class ToolResult:
    """The result of one tool: its summary, and the findings counted by library's kernel."""

    status: int
    summary: str
    libraries: tuple[tuple[str, int], ...] = ()

    @property
    def text(self) -> str:
        """Return the summary, with the findings that fail nothing.

        >>> ToolResult(0, "ERROR SUMMARY: 2 errors", (("nvjet", 2),)).text
        "ERROR SUMMARY: 2 errors; in a library's own kernels: 2 in nvjet"
        """
        if not self.libraries:
            return self.summary
        apart = ", ".join(f"{count} in {name}" for name, count in self.libraries)
        return f"{self.summary}; in a library's own kernels: {apart}"


def run(program: str, tool: str, options: Sequence[str]) -> ToolResult:
    """Run the suite under one tool."""
    suite = [sys.executable, "-m", "pytest", str(FOLDERS["accuracy"]), "--device=cuda"]
    suite += ["--in-process"]
    watch = [program, "--tool", tool, "--error-exitcode", str(_FINDING_STATUS)]
    ran = subprocess.run(
        [*watch, "--target-processes=all", "--print-limit=0", *suite, *options],
        env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return judged(ran.returncode, ran.stdout)


def judged(status: int, printed: str) -> ToolResult:
    """Read a tool's output, and print it without the reports on libraries' kernels.

    Args:
        status: the tool's exit status.
        printed: the tool's output.

    Returns:
        The result, with status 0 if the suite passed and every error that the tool counts is
        reported in a library's kernel: an error of a CUDA call names no kernel.
    """
    summaries = _SUMMARY.findall(printed)
    summary = summaries[-1] if summaries else "it printed no summary"
    reports = [names for report in _REPORT.findall(printed) if (names := _FINDING.findall(report))]
    libraries = Counter(
        names[0] for names in reports if all(name.startswith(_LIBRARIES) for name in names)
    )
    sys.stdout.write(_without(printed, libraries))
    errors = sum(max(map(int, _COUNTS.findall(text)), default=0) for text in summaries)
    in_libraries = libraries.total() == len(reports) >= errors > 0
    if status == _FINDING_STATUS and in_libraries and _SUITE_FAILED not in printed:
        status = 0
    return ToolResult(status, summary, tuple(sorted(libraries.items())))


def _without(printed: str, libraries: Counter[str]) -> str:
    """Return the output without the thousands of lines on a library's kernels."""
    lines = printed.splitlines(keepends=True)
    return "".join(
        line
        for line in lines
        if not (line.startswith("=========") and any(f" {name}+0x" in line for name in libraries))
    )


def main(options: Sequence[str]) -> int:
    """Run every tool, print a table of their results, and return the exit status.

    The status is 1 for a finding, 2 for bad options and 3 without compute-sanitizer.
    """
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
        result = run(program, tool, options)
        finding = result.status == _FINDING_STATUS
        worst = max(worst, ExitStatus.WRONG if finding else of_pytest(result.status))
        table.add_row(tool, str(result.status), result.text)
    report_console().print(table)
    return worst


if __name__ == "__main__":
    outlast_readers()
    sys.exit(main(sys.argv[1:]))
