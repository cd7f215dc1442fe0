"""Judge and compile the same kernels under several versions of Triton, side by side.

`nox -s versions -- --triton 3.6,3.7.1,3.8,3.9` installs each version beside the environment, into a
folder that is kept. With each it runs the interpreter's tests, judges kernels on some cases, and
compiles them for one GPU generation. The first table has the verdicts, the second registers and
spilled bytes of each compiled function. On a GPU kernels are judged there, and a third table has
their times: each version is timed twice, in the order of versions and in the reverse order, so that
a clock that drifts changes all of them alike. Only Triton is replaced.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from kernel_workbench.kernels.declarations import hint
from kernel_workbench.kernels.registry import KernelError, all_kernels, resolved
from kernel_workbench.oracles import OPS
from kernel_workbench.profiles.peaks import LIMITS, peaks_of_sm
from kernel_workbench.reports.arguments import CommandLine, quoted, whole_number
from kernel_workbench.reports.record import BenchRow, CompileRow, Record, read
from kernel_workbench.suites import ROOT
from kernel_workbench.suites.compile.cases import GENERATIONS

VERSIONS = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")
_CASES_OF_EACH = 6
_KERNELS = ("row_persistent", "row_sharing", "column_owning", "flash", "flash_fp32", "split_keys")
_CHECKS = (
    "import triton; print(triton.__version__); "
    "from kernel_workbench.suites.interpreter import repairs, strict; repairs.install(); "
    "print(', '.join(strict.install()))"
)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The kernels that are judged and compiled, where, and for which generation."""

    kernels: tuple[str, ...]
    files: tuple[Path, ...]
    sm: int
    device: str = "cpu"

    def words(self) -> list[str]:
        """Return the options that choose kernels."""
        files = [f"--kernels={file.resolve()}" for file in self.files]
        return [*files, *(f"--kernel={name}" for name in self.kernels)]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The results of one version; `right` if nothing failed and every check is in force."""

    version: str
    tests: str
    cases: str
    missing: str
    compiled: tuple[CompileRow, ...]
    right: bool


def _installed(version: str, folder: Path) -> Path | None:
    """Install the version if needed; return its folder, or None if the environment has it."""
    if installed_version("triton") == version:
        return None
    target = folder / f"triton-{version}"
    if not (target / f"triton-{version}.dist-info").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*command, "--target", str(target), f"triton=={version}"], check=True)
    return target


def _run(
    where: Path | None, *command: str, interpreted: bool = True
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRITON_INTERPRET": "1" if interpreted else "0"}
    environment.pop("PYTEST_ADDOPTS", None)
    if where is not None:
        before = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([str(where), *([before] if before else [])])
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _record_of(
    where: Path | None, folder: Path, suite: str, *options: str, interpreted: bool = True
) -> Record | str:
    """Run a suite of the command; return its record, or the end of what it printed."""
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.glob("*.jsonl"))
    command = "-m", "kernel_workbench", suite, f"--results={folder}", *options
    done = _run(where, *command, interpreted=interpreted)
    added = set(folder.glob("*.jsonl")) - before
    if not added:
        return (done.stdout + done.stderr).strip()[-200:]
    return read(added.pop())


def _tests(where: Path | None) -> tuple[str, bool]:
    """Run the interpreter's tests; return pytest's last line, and True if all passed."""
    done = _run(
        where,
        "-m",
        "pytest",
        "--device=cpu",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/suites/interpreter",
    )
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()
    return re.sub(r" in [\d.]+s.*", "", lines[-1] if lines else "no output"), not done.returncode


def _cases_of(kernels: Sequence[str]) -> list[str]:
    """Return some cases of `ci`, evenly spaced, for each op of these kernels."""
    ops = sorted({kernel.op.name for kernel in all_kernels() if kernel.name in kernels})
    wanted: list[str] = []
    for name in ops:
        cases = [case for case in OPS[name].cases() if case.tier == "ci"]
        step = max(1, len(cases) // _CASES_OF_EACH)
        wanted += (case.id() for case in cases[step // 2 :: step][:_CASES_OF_EACH])
    return wanted


def _cases(where: Path | None, folder: Path, choice: _Chosen) -> tuple[str, bool]:
    """Judge the kernels on some cases; return the passed rows as text, and True if none failed."""
    # A user's kernels have an op that only the suite knows.
    wanted = [] if choice.files else _cases_of(choice.kernels)
    chosen = [f"--case={case}" for case in wanted] or ["--quick"]
    options = "--jobs=2", f"--device={choice.device}", *chosen, *choice.words()
    on_cpu = choice.device == "cpu"
    record = _record_of(where, folder, "accuracy", *options, interpreted=on_cpu)
    if isinstance(record, str):
        return record, False
    rows = [row for row in record.rows if row.status != "refused"]
    passed = sum(row.status == "passed" for row in rows)
    failed = sum(row.status == "failed" for row in rows)
    whole = record.problem is None
    return f"{passed} of {len(rows)} rows passed", bool(rows) and not failed and whole


def _compiled(where: Path | None, folder: Path, choice: _Chosen) -> tuple[CompileRow, ...]:
    """Compile the kernels for one generation; return the rows, none where the suite failed."""
    options = "--jobs=2", f"--sm={choice.sm}", *choice.words()
    record = _record_of(where, folder, "compile", *options, interpreted=False)
    if isinstance(record, str):
        print(record, file=sys.stderr)
        return ()
    return record.compiled


def _timed(where: Path | None, folder: Path, choice: _Chosen) -> tuple[BenchRow, ...]:
    """Time the kernels on some cases; return the rows, none where the suite failed."""
    options = "--no-baselines", "--quick", *choice.words()
    record = _record_of(where, folder, "bench", *options, interpreted=False)
    if isinstance(record, str):
        print(record, file=sys.stderr)
        return ()
    return record.benches


def _checks(where: Path | None, version: str) -> tuple[str, bool]:
    """Return the checks that aren't in force, or an error, and True if all are in force."""
    done = _run(where, "-c", _CHECKS)
    if done.returncode:
        return done.stderr.strip().rpartition("\n")[2], False
    running, _, missing = done.stdout.strip().partition("\n")
    if running != version:
        return f"this is triton {running}", False
    return missing or "none", not missing


def _outcome(version: str, where: Path | None, folder: Path, choice: _Chosen) -> _Outcome:
    missing, strict = _checks(where, version)
    tests, passed = _tests(where)
    cases, right = _cases(where, folder / version, choice)
    compiled = _compiled(where, folder / version, choice)
    all_compiled = bool(compiled) and all(row.status == "compiled" for row in compiled)
    return _Outcome(
        version, tests, cases, missing, compiled, strict and passed and right and all_compiled
    )


def verdicts(outcomes: Iterable[_Outcome]) -> Table:
    """Return the table of a row for each version."""
    table = Table("triton", "the interpreter's tests", "cases", "checks not in force", "compiled")
    for outcome in outcomes:
        done = sum(row.status == "compiled" for row in outcome.compiled)
        compiled = f"{done} of {len(outcome.compiled)}"
        table.add_row(outcome.version, outcome.tests, outcome.cases, outcome.missing, compiled)
    return table


def figures(outcomes: Sequence[_Outcome]) -> Table:
    """Return the table of registers and spilled bytes, a row for each compiled function."""
    table = Table("kernel", "function", "case", *(outcome.version for outcome in outcomes))
    cells: dict[tuple[str, str, str], dict[str, str]] = {}
    for outcome in outcomes:
        for row in outcome.compiled:
            key = f"{row.op} {row.kernel}", row.function, row.label
            cells.setdefault(key, {})[outcome.version] = _figures_of(row)
    for key, by_version in cells.items():
        table.add_row(*key, *(by_version.get(outcome.version, "-") for outcome in outcomes))
    return table


def times(timed: Mapping[str, Sequence[BenchRow]]) -> Table:
    """Return the table of median times, a row for each kernel and case.

    Args:
        timed: rows of bench by version. If a case was timed several times, the table has the
            median, and the smallest and the largest.
    """
    table = Table("kernel", "case", *(f"{version}, us" for version in timed))
    cells: dict[tuple[str, str], dict[str, list[float]]] = {}
    for version, rows in timed.items():
        for row in rows:
            by_version = cells.setdefault((f"{row.op} {row.kernel}", row.case.id), {})
            if row.median_us is not None:
                by_version.setdefault(version, []).append(row.median_us)
    for key, by_version in cells.items():
        table.add_row(*key, *(_time_of(by_version.get(version, ())) for version in timed))
    return table


def _time_of(medians_us: Sequence[float]) -> str:
    if not medians_us:
        return "-"
    text = f"{statistics.median(medians_us):.4g}"
    if len(medians_us) == 1:
        return text
    return f"{text} ({min(medians_us):.4g} to {max(medians_us):.4g})"


def _figures_of(row: CompileRow) -> str:
    if row.status == "failed":
        return "failed"
    registers = "?" if row.registers is None else str(row.registers)
    return f"{registers}, {row.spill_store_bytes} B" if row.spill_store_bytes else registers


def _versions(text: str) -> tuple[str, ...]:
    """Return the versions of a list like `3.6,3.7.1`; 3.6 is 3.6.0."""
    versions = []
    for word in text.split(","):
        if not re.fullmatch(r"\d+\.\d+(\.\d+)?", word.strip()):
            raise argparse.ArgumentTypeError(
                f"{quoted(text)!r}: give versions like {','.join(VERSIONS)}"
            )
        versions.append(word.strip() if word.count(".") > 1 else f"{word.strip()}.0")
    return tuple(dict.fromkeys(versions))


def parser() -> CommandLine:
    """Return what reads the options."""
    line = CommandLine(prog="nox -s versions --", description=__doc__)
    line.add_argument(
        "--triton",
        type=_versions,
        default=VERSIONS,
        metavar="VERSIONS",
        help=f"versions with commas between them (default: {','.join(VERSIONS)})",
    )
    line.add_argument(
        "--kernel",
        action="append",
        default=[],
        metavar="NAME",
        help="judge and compile only this kernel; may be repeated (default: six of ours)",
    )
    line.add_argument(
        "--kernels",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="judge and compile the kernels of this file by --quick; may be repeated",
    )
    line.add_argument(
        "--sm",
        type=whole_number(1, 999),
        default=90,
        metavar="N",
        help="compile for this generation (default: 90)",
    )
    line.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="judge, and on cuda also time, the kernels there (default: the GPU if there is one)",
    )
    line.add_argument(
        "--cache",
        type=Path,
        default=ROOT / ".nox" / "triton",
        metavar="DIR",
        help="the folder of installed versions (default: .nox/triton)",
    )
    line.add_argument(
        "--results", type=Path, metavar="DIR", help="keep each version's records in this folder"
    )
    return line


def _problem(options: argparse.Namespace) -> str | None:
    """Return why the options name nothing to try, before a version of 1 GB is installed."""
    try:
        for file in options.kernels:
            resolved(file)
    except KernelError as error:
        return str(error)
    if options.sm not in LIMITS or not peaks_of_sm(options.sm):
        generations = ", ".join(map(str, GENERATIONS))
        return f"--sm {options.sm}: there is no such generation; there are {generations}"
    names = {kernel.name for kernel in all_kernels()}
    unknown = [name for name in options.kernel if name not in names and not options.kernels]
    if unknown:
        return f"--kernel {quoted(unknown[0])}: there is no such kernel; {hint(unknown[0], names)}"
    return None


def main() -> int:
    """Run every version and print the tables; return 1 if one isn't right."""
    line = parser()
    options = line.read()
    problem = _problem(options)
    if problem is not None:
        line.error(problem)
    kernels = options.kernel or (() if options.kernels else _KERNELS)
    choice = _Chosen(tuple(kernels), tuple(options.kernels), options.sm, options.device)
    outcomes, timed = [], dict[str, list[BenchRow]]()
    places = dict[str, Path | None]()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if options.results is None else options.results
        for version in options.triton:
            print(f"triton {version}", flush=True)
            places[version] = _installed(version, options.cache)
            outcomes.append(_outcome(version, places[version], folder, choice))
        in_order = options.triton if choice.device == "cuda" else ()
        for version in (*in_order, *reversed(in_order)):
            print(f"triton {version}: times", flush=True)
            rows = _timed(places[version], folder / version, choice)
            timed.setdefault(version, []).extend(rows)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(verdicts(outcomes))
    console.print(f"Registers of a thread, and spilled bytes where there are any, sm {choice.sm}")
    console.print(figures(outcomes))
    if timed:
        console.print("Medians of two runs, and the time of each")
        console.print(times(timed))
    return 0 if all(outcome.right for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
