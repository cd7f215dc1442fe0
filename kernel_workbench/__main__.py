"""The command: `kernel-workbench SUITE [OPTION ...]`, or `python -m kernel_workbench`."""

from __future__ import annotations

import importlib.util
import os
import runpy
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernel_workbench.reports.commands import NOX, PROGRAM
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.root import IS_CHECKOUT, ignore_start_folder


@dataclass(frozen=True, slots=True)
class _Suite:
    """A suite of the command.

    Attributes:
        module: the module that runs the suite.
        line: what the suite does, for --help.
        needs: packages that the suite needs beside those of a report.
        extra: the extra of the installed package that has those packages.
    """

    module: str
    line: str
    needs: tuple[str, ...] = ()
    extra: str = ""


_IN_PYTEST = "kernel_workbench.suites.run"  # its first argument is the suite's name
_CALLING = ("torch", "triton", "pytest")
_STATISTICS = ("scipy",)
_SUITES = {
    "accuracy": _Suite(_IN_PYTEST, "Verify kernels against float64.", _CALLING),
    "search": _Suite(_IN_PYTEST, "Draw cases until one breaks a kernel, and shrink it.", _CALLING),
    "profile": _Suite(
        _IN_PYTEST,
        "Measure energy, power and clocks of kernels on a GPU.",
        needs=(*_CALLING, *_STATISTICS),
        extra="bench",
    ),
    "bench": _Suite(
        _IN_PYTEST,
        "Time kernels beside their peers on a GPU.",
        needs=(*_CALLING, *_STATISTICS, "pytest_benchmark"),
        extra="bench",
    ),
    "fleet": _Suite(
        "kernel_workbench.suites.fleet",
        "Run a suite on nodes of a cluster.",
        needs=_CALLING,
    ),
    "report": _Suite("kernel_workbench.reports", "Show records, by default the latest."),
    "compare": _Suite(
        "kernel_workbench.reports.comparison", "Compare records.", needs=_STATISTICS, extra="report"
    ),
    "history": _Suite(
        "kernel_workbench.reports.history",
        "Follow a folder's records over time.",
        needs=(*_STATISTICS, "ruptures"),
        extra="report",
    ),
    "compile": _Suite(
        "kernel_workbench.suites.compile",
        "Compile kernels for GPUs, without a GPU.",
        needs=_CALLING,
    ),
    "record": _Suite(
        "kernel_workbench.recording",
        "Record the calls that a Python program makes, as cases.",
        needs=("torch",),
    ),
    "serve": _Suite(
        "kernel_workbench.serve",
        "Keep judges warm, so that accuracy answers quickly.",
        needs=_CALLING,
    ),
    "mcp": _Suite(
        "kernel_workbench.mcp",
        "Serve the workbench's tools by the Model Context Protocol.",
        needs=(*_CALLING, "mcp"),
        extra="mcp",
    ),
    "sanitize": _Suite(
        "kernel_workbench.suites.accuracy.sanitizer",
        "Run a few cases under NVIDIA's compute-sanitizer and Triton's consan.",
        needs=_CALLING,
    ),
}
# A suite shows its own progress and report. pytest takes these options from a variable, so that
# the command line which a record keeps is what the user typed. Plugins that a user installed for
# other tests would change the order of rows, or print between them.
_QUIET = "--no-header --no-summary --tb=short -qq -p no:cacheprovider -p no:logging"
_BENCHMARK = "-p pytest_benchmark.plugin"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the suite that the first argument names, or list the suites."""
    name, *options = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    program = _program()
    if name in {"-h", "--help"}:
        print(_help(program))
        return
    if name == "--version":
        print(f"kernel-workbench {_version()}")
        return
    if name not in _SUITES:
        _refuse(f"no suite is named {name!r}; name one of {', '.join(_SUITES)}", ExitStatus.USAGE)
    suite = _SUITES[name]
    absent = [package for package in suite.needs if importlib.util.find_spec(package) is None]
    if absent:
        extra = f"[{suite.extra}]" if suite.extra else ""
        advice = f"install them: pip install 'kernel-workbench{extra}'"
        _refuse(f"{name} needs {', '.join(absent)}; {advice}", ExitStatus.SUITE_FAILED)
    if NOX not in os.environ:
        os.environ[PROGRAM] = program
    ignore_start_folder()
    os.environ["PYTEST_ADDOPTS"] = f"{_QUIET} {_BENCHMARK}" if name == "bench" else _QUIET
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.argv[1:] = [name, *options] if suite.module == _IN_PYTEST else options
    runpy.run_module(suite.module, run_name="__main__", alter_sys=True)


def _program() -> str:
    """Return how the user calls this command, quoted for a shell."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.orig_argv[0])} -m kernel_workbench"
    on_path = shutil.which("kernel-workbench")
    if not called.is_file() or (on_path is not None and called.samefile(on_path)):
        return "kernel-workbench"
    return shlex.quote(sys.argv[0])


def _help(program: str) -> str:
    lines = [f"usage: {program} SUITE [OPTION ...]", ""]
    lines += [f"  {name:<9} {suite.line}" for name, suite in _SUITES.items()]
    lines += ["", f"{program} SUITE --help lists a suite's options; --version prints the version."]
    lines += ["Exit status: 0 right, 1 wrong, 2 bad usage, 3 the suite failed, 4 incomplete."]
    return "\n".join(lines)


def _version() -> str:
    """Return the version of the installed package, or the one that a checkout's files state."""
    if not IS_CHECKOUT:
        from importlib.metadata import version  # noqa: PLC0415 (--version alone needs it)

        return version("kernel-workbench")
    import tomllib  # noqa: PLC0415 (likewise)

    from kernel_workbench.root import ROOT  # noqa: PLC0415 (likewise)

    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def _refuse(message: str, status: ExitStatus) -> None:
    print(message, file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
