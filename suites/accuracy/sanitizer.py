"""Run the suite under NVIDIA's compute-sanitizer and Triton's consan, where they are installed.

    python -m kernel_workbench.suites.accuracy.sanitizer --kernel flash -k "s_q129 and float16"

runs the cases that the options select once under each of its tools: memcheck (accesses out of
bounds), racecheck (shared memory that threads of a program race for), initcheck (reads of memory
that nothing wrote). It slows a kernel down by ten to a hundred times, so select few cases; torch
allocates each tensor on its own meanwhile, so that the end of one isn't the start of another.

Findings in a library's own kernels are counted apart and fail nothing: racecheck doesn't follow
cuBLAS's barriers (every product of halves on an H200, sm 90, has thousands of hazards).

consan (asynchronous copies and barriers) is a mode of Triton's compiler since 3.9. A finding is an
assertion on the device, which ends the CUDA context of its process: kernels run in workers then,
and a row has the lines that its worker printed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from rich.table import Table

from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.output import outlast_readers, report_console
from kernel_workbench.reports.phrases import count
from kernel_workbench.reports.record import AccuracyRow, RecordError, read
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
_ABSENT = "compute-sanitizer isn't installed here"
_CONSAN_SINCE = (3, 9)  # of Triton, which ignores names of modes that it doesn't know
_ASSERTION = re.compile(
    r"(\S+:\d+): [^:]*: block: \[[^]]*\], thread: \[[^]]*\] Assertion `([^`\n]*)"
)
# Beginnings of consan's texts; an assertion with another text is the kernel's own.
_CONSAN_TEXTS = (
    "Accessing buffer ",
    "Barrier ",
    "Buffer being accessed ",
    "Deadlock detected",
    "Shared memory reused ",
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


def without_consan() -> str | None:
    """Return why consan can't run with the installed Triton; None if it can."""
    needs = f"consan needs Triton {'.'.join(map(str, _CONSAN_SINCE))}"
    try:
        installed = version("triton")
    except PackageNotFoundError:
        return f"{needs}, and no Triton is installed here"
    numbers = tuple(int(number) for number in re.findall(r"\d+", installed)[:2])
    return None if numbers >= _CONSAN_SINCE else f"{needs}; {installed} is installed here"


def run_consan(options: Sequence[str], device: str = "cuda") -> ToolResult:
    """Run the suite with kernels that Triton compiles under consan, in workers.

    Args:
        options: the options of `sanitize`.
        device: the device of the kernels; on a CPU Triton compiles nothing.

    Returns:
        The result, with status 1 for a finding in a kernel that gates, else the suite's status.
    """
    # Both import torch, which --help needn't wait for.
    from kernel_workbench.suites.accuracy.run import INSTRUMENTATION  # noqa: PLC0415
    from kernel_workbench.suites.run.shards import RECORD_NOTE  # noqa: PLC0415

    suite = [sys.executable, "-m", "pytest", str(FOLDERS["accuracy"]), f"--device={device}"]
    with tempfile.TemporaryDirectory(prefix="workbench-consan-") as folder:
        cache, note = Path(folder) / "cache", Path(folder) / "record"
        variables = {
            INSTRUMENTATION: "consan",
            "TRITON_CACHE_DIR": str(cache),
            RECORD_NOTE: str(note),
        }
        sys.stdout.flush()
        ran = subprocess.run(
            [*suite, *(option for option in options if option != "-s")],  # for --in-process alone
            env=os.environ | variables,
            check=False,
        )
        compiled = any(cache.rglob("*.cubin"))
        try:
            rows = read(Path(note.read_text())).rows if note.exists() else ()
        except RecordError as error:
            return ToolResult(ran.returncode, str(error))
    return judged_rows(ran.returncode, rows, compiled=compiled)


def judged_rows(status: int, rows: Iterable[AccuracyRow], *, compiled: bool) -> ToolResult:
    """Find consan's assertions in what workers printed, grouped by line and text.

    Args:
        status: the suite's exit status.
        rows: the suite's rows.
        compiled: Triton compiled a kernel.
    """
    tried = [row for row in rows if row.status != "refused"]
    findings: dict[tuple[str, str], list[AccuracyRow]] = {}
    for row in tried:
        printed = "\n".join((*row.printed, row.reason or ""))
        for place, text in _ASSERTION.findall(printed):
            if text.startswith(_CONSAN_TEXTS):
                group = findings.setdefault(_same_finding(findings, place, text), [])
                if not group or group[-1] is not row:
                    group.append(row)
    if any(row.gates for group in findings.values() for row in group):
        status = ExitStatus.WRONG
    if findings:
        return ToolResult(
            int(status), "; ".join(_finding(at, group) for at, group in findings.items())
        )
    if not compiled:
        return ToolResult(status, "Triton compiled no kernel: nothing was watched")
    return ToolResult(status, f"no finding in {count(len(tried), 'row')}")


def _same_finding(findings: Iterable[tuple[str, str]], place: str, text: str) -> tuple[str, str]:
    """Return the finding that this text belongs to; of a long line only the beginning is kept."""
    text = text.removesuffix("...")
    same = (
        (at, earlier)
        for at, earlier in findings
        if at == place and (earlier.startswith(text) or text.startswith(earlier))
    )
    return next(same, (place, text))


def _finding(at: tuple[str, str], rows: Sequence[AccuracyRow]) -> str:
    """Return a sentence about a finding, with the first of its rows."""
    place, text = at
    more = f" and {count(len(rows) - 1, 'more row')}" if len(rows) > 1 else ""
    return f"{place}: {text.rstrip('.')}: {rows[0].kernel} on {rows[0].case.id}{more}"


def main(options: Sequence[str]) -> int:
    """Run every tool, print a table of their results, and return the exit status.

    The status is 1 for a finding, 2 for bad options and 4 if no tool is there.
    """
    try:
        check("sanitize", options)
    except pytest.UsageError as error:
        print(error, file=sys.stderr)
        return ExitStatus.USAGE
    program = cuda_program("compute-sanitizer")
    no_consan = without_consan()
    if program is None and no_consan is not None:
        print(
            f"{_ABSENT}: it comes with NVIDIA's CUDA toolkit; put its folder on PATH, or set "
            f"CUDA_HOME; {no_consan}",
            file=sys.stderr,
        )
        return ExitStatus.INCOMPLETE
    table = Table("tool", "exit status", "what it says", box=None)
    worst = ExitStatus.RIGHT
    for tool in TOOLS:
        if program is None:
            table.add_row(tool, "-", _ABSENT)
            continue
        result = run(program, tool, options)
        finding = result.status == _FINDING_STATUS
        worst = max(worst, ExitStatus.WRONG if finding else of_pytest(result.status))
        table.add_row(tool, str(result.status), result.text)
    if no_consan is None:
        result = run_consan(options)
        worst = max(worst, of_pytest(result.status))
        table.add_row("consan", str(result.status), result.text)
    else:
        table.add_row("consan", "-", no_consan)
    report_console().print(table)
    return worst


if __name__ == "__main__":
    outlast_readers()
    sys.exit(main(sys.argv[1:]))
