"""The command: `python -m kernel_workbench SUITE [OPTION ...]`."""

from __future__ import annotations

import os
import runpy
import sys

from kernel_workbench.reports.exit_status import ExitStatus

# Each suite's module, the words that come before its options, and one line for the help.
_PYTEST = "kernel_workbench.suites.run"
_SUITES = {
    "accuracy": (_PYTEST, ["accuracy"], "Verify kernels against float64."),
    "search": (_PYTEST, ["search"], "Draw cases until one breaks a kernel, and shrink it."),
    "profile": (_PYTEST, ["profile"], "Measure energy, power and clocks of kernels on a GPU."),
    "bench": (_PYTEST, ["bench"], "Time kernels beside their peers on a GPU."),
    "fleet": ("kernel_workbench.suites.fleet", [], "Run a suite on nodes of a cluster."),
    "report": ("kernel_workbench.reports", [], "Show records, by default the latest."),
    "compare": ("kernel_workbench.reports.comparison", [], "Compare records."),
    "history": ("kernel_workbench.reports.history", [], "Follow a folder's records over time."),
    "compile": ("kernel_workbench.suites.compile", [], "Compile kernels for GPUs, without a GPU."),
    "sanitize": (
        "kernel_workbench.suites.accuracy.sanitizer",
        [],
        "Run a few cases under NVIDIA's compute-sanitizer.",
    ),
}
# A suite shows its own progress and report. The options come by a variable, so that the command
# line which a record keeps is what the user typed.
_QUIET = "--no-header --no-summary --tb=short -qq -p no:cacheprovider -p no:logging"


def main() -> None:
    """Run the suite that the first argument names, or list the suites."""
    name, *options = sys.argv[1:] or ["--help"]
    if name in {"-h", "--help"}:
        print("usage: python -m kernel_workbench SUITE [OPTION ...]\n")
        for suite, (_, _, line) in _SUITES.items():
            print(f"  {suite:<9} {line}")
        return
    if name not in _SUITES:
        print(f"no suite is named {name!r}; name one of {', '.join(_SUITES)}", file=sys.stderr)
        sys.exit(ExitStatus.USAGE)
    module, words, _ = _SUITES[name]
    os.environ.setdefault("PYTEST_ADDOPTS", _QUIET)
    sys.argv[1:] = [*words, *options]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
