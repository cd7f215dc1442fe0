"""`python -m studies.sound_kernels [FILE ...]`: the accuracy suite on kernels that are right.

By default the kernels are those of tests/candidates/sound. They run on the `ci` cases of their ops,
with the suite's own progress, and the table has the number of passed, failed and refused rows of
each kernel. A failure is a false alarm: its command follows the table, and the exit status is 1.
The exit status is 3 if the suite itself failed.

--seed N or N..M: added to every case's seed.
--device, --jobs, --kernel, --op, --case: as in `nox -s accuracy`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from kernel_workbench.reports.arguments import CommandLine
from kernel_workbench.reports.record import AccuracyRow, latest, read
from tests import ROOT

FILES = tuple(sorted((ROOT / "tests" / "candidates" / "sound").glob("[!_]*.py")))
_FAILED, _SUITE_FAILED = 1, 3


def rows_of(files: Sequence[Path], typed: Sequence[str]) -> tuple[int, tuple[AccuracyRow, ...]]:
    """Run the accuracy suite on the files' kernels; return its exit status and its rows."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "kernel_workbench/suites/accuracy",
            f"--results={folder}",
        ]
        kernels = [f"--kernels={file.resolve()}" for file in files]
        quiet = ["--no-header", "--no-summary", "--tb=no", "-qq"]
        status = subprocess.run(
            [*command, *kernels, *quiet, *typed], cwd=ROOT, check=False
        ).returncode
        if not any(Path(folder).iterdir()):
            return status, ()
        return status, tuple(read(latest(Path(folder))).rows)


def table_of(rows: Iterable[AccuracyRow]) -> Table:
    """Return the table: a line for each kernel, and the sums."""
    counts = dict[tuple[str, str], Counter[str]]()
    for row in rows:
        counts.setdefault((row.case.op, row.kernel), Counter())[row.status] += 1
    columns = ("passed", "failed", "refused")
    table = Table("op", Column("kernel", overflow="fold"), "rows", *columns)
    total = Counter[str]()
    for (op, kernel), count in counts.items():
        total += count
        tried = count["passed"] + count["failed"]
        table.add_row(op, kernel, str(tried), *(str(count[status]) for status in columns))
    tried = total["passed"] + total["failed"]
    table.add_row(
        "all", f"{len(counts)} kernels", str(tried), *(str(total[status]) for status in columns)
    )
    return table


def main() -> int:
    """Run the suite, and print the table and the commands of failed rows."""
    parser = CommandLine(prog="python -m studies.sound_kernels", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="instead of all files")
    parser.add_argument("--seed", default="0", metavar="N|N..M", help="added to every case's seed")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--jobs", default="1", metavar="N", help="processes (default 1)")
    parser.add_argument("--kernel", action="append", default=[], metavar="NAME")
    parser.add_argument("--op", action="append", default=[], metavar="NAME")
    parser.add_argument("--case", action="append", default=[], metavar="NAME")
    options = parser.read()
    typed = [f"--seed={options.seed}", f"--device={options.device}", f"--jobs={options.jobs}"]
    for name in ("kernel", "op", "case"):
        typed += [f"--{name}={value}" for value in getattr(options, name)]
    status, rows = rows_of(options.files or FILES, typed)
    Console().print(table_of(rows))
    failures = [row for row in rows if row.status == "failed"]
    for row in failures:
        print(f"{row.kernel}: {row.rule}: {row.reason}\n    {row.reproduce}")
    return _FAILED if failures else _SUITE_FAILED if status else 0


if __name__ == "__main__":
    sys.exit(main())
