"""The suites as Python functions: `accuracy`, `search`, `bench` and `compare`.

    from kernel_workbench import accuracy

    report = accuracy("mine.py", quick=True)
    for failure in report.failures:
        print(failure.case, failure.sentence)

A suite runs in processes of its own, as the command of the same name runs it: a candidate that
crashes, hangs or changes its process leaves the caller as it was. The functions return a `Report`,
also where the candidate can't be imported: `report.verdict` says which.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.run_report import Failure, Report

if TYPE_CHECKING:
    from kernel_workbench.oracles.op import Case, Op
    from kernel_workbench.reports.comparison.report import Comparison

__all__ = ["Failure", "Report", "accuracy", "bench", "compare", "search"]

Kernels = str | os.PathLike[str] | Callable[..., object] | Sequence[str | os.PathLike[str]]
Cases = str | os.PathLike[str] | Iterable["str | Case"]
Device = Literal["cpu", "cuda"]

_MOST_SAID = 2_000  # characters of what a run printed before it failed


def accuracy(  # noqa: PLR0913  (the options of a command, each by its name)
    kernel_or_file: Kernels,
    *,
    op: Op | str | None = None,
    device: Device | None = None,
    tier: Literal["ci", "full"] = "ci",
    cases: Cases | None = None,
    quick: bool = False,
    fail_fast: bool = False,
    max_seconds: float | None = None,
    accepted: str | os.PathLike[str] | None = None,
    results: str | os.PathLike[str] | None = None,
    options: Sequence[str] = (),
    show_progress: bool = False,
) -> Report:
    """Judge kernels on cases, as the command `accuracy` does, and return the report.

    Args:
        kernel_or_file: a Python file that registers kernels, several files, a registered function
            of such a file, or the name of one of the workbench's kernels, as "flash".
        op: only kernels of this op.
        device: "cuda", or "cpu" under Triton's interpreter; by default the GPU where there is one.
        tier: "ci" has small cases, "full" adds the sizes of models.
        cases: a file of cases, or ids of cases; by default those of the tier.
        quick: a dozen small cases of each op, as different as they can be.
        fail_fast: end at the first case that fails.
        max_seconds: end before the next case once the run has taken so long.
        accepted: a file of failures that don't count: a kernel and a case a line, or a report.
        results: the folder for the record; by default the command's.
        options: further options of the command, as ["--every-configuration"].
        show_progress: let the run print its progress to stderr.

    Returns:
        The report. `report.passed` is True where the run is whole and nothing is wrong,
        `report.failures` has the wrong cases, and `report.error` says why there is no verdict.

    Raises:
        TypeError: `kernel_or_file` or `cases` is of another type.

    Example:
        >>> report = accuracy("no_such_file.py", device="cpu")
        >>> report.passed, report.verdict, report.error
        (False, 'usage', '--kernels ...no_such_file.py: there is no such file')
    """
    words = [*_kernel_words(kernel_or_file), *_common_words(op, device, results)]
    words += ["--tier", tier] * (tier != "ci")
    words += _case_words(cases)
    words += ["--quick"] * quick + ["--fail-fast"] * fail_fast
    words += [] if accepted is None else [f"--accepted={Path(accepted).expanduser().absolute()}"]
    words += [] if max_seconds is None else [f"--max-seconds={max_seconds:g}"]
    return _run("accuracy", [*words, *options], show_progress)


def search(
    kernel_or_file: Kernels,
    *,
    minutes: float = 5.0,
    finds: int | None = None,
    seed: int = 0,
    op: Op | str | None = None,
    device: Device | None = None,
    results: str | os.PathLike[str] | None = None,
    options: Sequence[str] = (),
    show_progress: bool = False,
) -> Report:
    """Draw cases until one breaks a kernel, shrink it, and return the report.

    Args:
        kernel_or_file: as in `accuracy`.
        minutes: how long to search.
        finds: end when so many were found.
        seed: the number that cases are drawn from.
        op: as in `accuracy`.
        device: as in `accuracy`.
        results: as in `accuracy`.
        options: further options of the command.
        show_progress: as in `accuracy`.

    Returns:
        The report, whose failures are the finds: shrunk cases, each with the command that tries it.
    """
    words = [*_kernel_words(kernel_or_file), *_common_words(op, device, results)]
    words += ["--minutes", f"{minutes:g}", "--seed", str(seed)]
    words += ["--finds", str(finds)] if finds is not None else []
    return _run("search", [*words, *options], show_progress)


def bench(
    kernel_or_file: Kernels,
    *,
    quick: bool = False,
    cases: Cases | None = None,
    op: Op | str | None = None,
    device: Device | None = None,
    results: str | os.PathLike[str] | None = None,
    options: Sequence[str] = (),
    show_progress: bool = False,
) -> Report:
    """Time kernels beside their peers, and return the report.

    Args:
        kernel_or_file: as in `accuracy`.
        quick: one case in four, a fifth as long.
        cases: as in `accuracy`.
        op: as in `accuracy`.
        device: as in `accuracy`; times are worth something on a GPU alone.
        results: as in `accuracy`.
        options: further options of the command, as ["--against", "old.py"].
        show_progress: as in `accuracy`.

    Returns:
        The report. The times are in `report.read_record().benches`, a row for each kernel and case;
        a row that isn't right has none.
    """
    words = [*_kernel_words(kernel_or_file), *_common_words(op, device, results)]
    words += _case_words(cases)
    words += ["--quick"] * quick
    return _run("bench", [*words, *options], show_progress)


def compare(*records: str | os.PathLike[str] | Report) -> Comparison:
    """Lay records beside one another, the first as the base of the others.

    Args:
        *records: paths of records, or reports of runs, at least one.

    Returns:
        The comparison: `broken` is a sentence where a row is slower or less accurate than the
        base's and None where none is, `compared` whether any row was compared.

    Raises:
        RecordError: a file isn't a record, or there is nothing to compare.
    """
    from kernel_workbench.reports.comparison.report import compare as compare_sides  # noqa: PLC0415
    from kernel_workbench.reports.comparison.side import read_sides  # noqa: PLC0415
    from kernel_workbench.reports.record import RecordError  # noqa: PLC0415

    paths = []
    for record in records:
        path = record.record if isinstance(record, Report) else os.fspath(record)
        if path is None:
            raise RecordError("a report has no record: its run ended before one began")
        paths.append(Path(path))
    return compare_sides([side for path in paths for side in read_sides(path)])


def _kernel_words(kernels: Kernels) -> list[str]:
    """Return the options that name kernels. Raises TypeError."""
    if callable(kernels):
        try:
            file = inspect.getsourcefile(inspect.unwrap(kernels))
        except TypeError:
            file = None
        if file is None or not Path(file).is_file():
            raise TypeError(f"{kernels!r} isn't written in a file; name the file that registers it")
        return [f"--kernels={Path(file).resolve()}", f"--kernel={_name(kernels)}"]
    if isinstance(kernels, str | os.PathLike):
        kernels = [kernels]
    if not isinstance(kernels, Iterable):
        raise TypeError(f"got a {type(kernels).__name__}; name a file of kernels, or a kernel")
    words = []
    for item in kernels:
        if not isinstance(item, str | os.PathLike):
            raise TypeError(f"got a {type(item).__name__}; name a file of kernels, or a kernel")
        text = os.fspath(item)
        is_name = isinstance(item, str) and text.isidentifier() and not Path(text).exists()
        path = str(Path(text).expanduser().absolute())
        words.append(f"--kernel={text}" if is_name else f"--kernels={path}")
    return words


def _name(function: Callable[..., object]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _common_words(
    op: Op | str | None, device: Device | None, results: str | os.PathLike[str] | None
) -> list[str]:
    name = op if isinstance(op, str) or op is None else op.name
    words = [] if name is None else [f"--op={name}"]
    words += [] if device is None else [f"--device={device}"]
    return words + ([] if results is None else [f"--results={Path(results).absolute()}"])


def _case_words(cases: Cases | None) -> list[str]:
    """Return the options that name cases. Raises TypeError."""
    if cases is None:
        return []
    if isinstance(cases, str | os.PathLike):
        return [f"--cases={Path(cases).expanduser().absolute()}"]
    ids = [case if isinstance(case, str) else _id(case) for case in cases]
    return [f"--case={name}" for name in ids]


def _id(case: Any) -> str:  # noqa: ANN401  (whatever a caller has passed)
    if not callable(getattr(case, "id", None)):
        raise TypeError(f"got a {type(case).__name__} as a case; give a case, or its id")
    return str(case.id())


def command_variables() -> dict[str, str]:
    """Return the environment of a command that this process starts."""
    # The package may lie in a folder that Python finds through the caller's own sys.path alone.
    package = Path(__file__).resolve().parent
    paths = [str(package.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    variables["PYTHONSAFEPATH"] = "1"  # the caller's folder may hold a `profile.py`
    # The run itself decides if Triton interprets; a run that the caller is part of is another one.
    for name in ("TRITON_INTERPRET", "PYTEST_ADDOPTS", "WORKBENCH_RECORD_NOTE"):
        variables.pop(name, None)
    return variables


def _run(suite: str, words: Sequence[str], show_progress: bool) -> Report:  # noqa: FBT001
    """Run a suite's command and return the report that it prints."""
    done = subprocess.run(  # noqa: S603  (this Python, and options of the caller's own)
        [sys.executable, "-m", "kernel_workbench", suite, *words, "--json"],
        env=command_variables(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if show_progress else subprocess.PIPE,
        check=False,
    )
    try:
        return Report.from_json(done.stdout)
    except ValueError:
        printed = (done.stderr or b"").decode(errors="replace").strip()[-_MOST_SAID:]
        status = done.returncode if done.returncode > 0 else ExitStatus.INCOMPLETE
        return Report.of_no_run(suite, status, printed or "the run ended and printed nothing")
