"""Check that the interpreter is right, and strict, on other versions of Triton.

`python -m studies.triton_versions` installs each version beside the environment, into a folder that
is kept, and runs the interpreter's tests and some cases of the suite with it. Only Triton is
replaced: torch doesn't need it on a CPU.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kernel_workbench.oracles import OPS
from kernel_workbench.reports.arguments import CommandLine, quoted
from kernel_workbench.reports.record import read
from kernel_workbench.suites import ROOT

VERSIONS = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")
_CASES_OF_EACH = 6
_KERNELS = ("row_persistent", "row_sharing", "column_owning", "flash", "flash_fp32", "split_keys")
_CHECKS = (
    "import triton; print(triton.__version__); "
    "from kernel_workbench.suites.interpreter import repairs, strict; repairs.install(); "
    "print(', '.join(strict.install()))"
)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The results of one version; `right` if nothing failed and every check is in force."""

    version: str
    tests: str
    cases: str
    missing: str
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


def _run(where: Path | None, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    if where is not None:
        environment["PYTHONPATH"] = str(where)
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


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


def _cases(where: Path | None) -> tuple[str, bool]:
    """Run our kernels on some cases of two ops; return the passed rows as text, and success."""
    wanted: list[str] = []
    for name in ("layer_norm_backward", "attention_forward"):
        cases = [case for case in OPS[name].cases() if case.tier == "ci"]
        step = len(cases) // _CASES_OF_EACH
        wanted += (case.id() for case in cases[step // 2 :: step][:_CASES_OF_EACH])
    options = [*(f"--case={case}" for case in wanted), *(f"--kernel={name}" for name in _KERNELS)]
    with tempfile.TemporaryDirectory() as results:
        suite = (
            "-m",
            "pytest",
            "kernel_workbench/suites/accuracy",
            "--device=cpu",
            "--jobs=1",
            "-q",
        )
        done = _run(where, *suite, "-p", "no:cacheprovider", f"--results={results}", *options)
        records = list(Path(results).glob("*.jsonl"))
        if not records:
            return (done.stdout + done.stderr).strip()[-200:], False
        ran = [row for row in read(records[0]).rows if row.status != "refused"]
    passed = sum(row.status == "passed" for row in ran)
    failed = sum(row.status == "failed" for row in ran)
    return f"{passed} of {len(ran)} rows passed", bool(ran) and not failed and not done.returncode


def _checks(where: Path | None, version: str) -> tuple[str, bool]:
    """Return the checks that aren't in force, or an error, and True if all are in force."""
    done = _run(where, "-c", _CHECKS)
    if done.returncode:
        return done.stderr.strip().rpartition("\n")[2], False
    running, _, missing = done.stdout.strip().partition("\n")
    if running != version:
        return f"this is triton {running}", False
    return missing or "none", not missing


def _outcome(version: str, folder: Path) -> _Outcome:
    where = _installed(version, folder)
    (missing, strict), (tests, passed), (cases, right) = (
        _checks(where, version),
        _tests(where),
        _cases(where),
    )
    return _Outcome(version, tests, cases, missing, strict and passed and right)


def _version(text: str) -> str:
    if not re.fullmatch(r"\d+(\.\d+)+", text):
        raise argparse.ArgumentTypeError(f"{quoted(text)!r}: give a version like {VERSIONS[0]}")
    return text


def main() -> int:
    """Run every version and print a table; return 1 if one isn't right."""
    parser = CommandLine(prog="nox -s triton_versions --", description=__doc__)
    parser.add_argument("versions", nargs="*", type=_version, default=VERSIONS, metavar="VERSION")
    parser.add_argument("--cache", type=Path, default=ROOT / ".nox" / "triton", metavar="DIR")
    options = parser.read()
    table = Table("triton", "the interpreter's tests", "cases", "checks not in force")
    outcomes = []
    for version in options.versions:
        print(f"triton {version}", flush=True)
        outcomes.append(_outcome(version, options.cache))
        outcome = outcomes[-1]
        table.add_row(outcome.version, outcome.tests, outcome.cases, outcome.missing)
    Console(width=100).print(table)
    return 0 if all(outcome.right for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
