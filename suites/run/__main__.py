"""`python -m kernel_workbench.suites.run SUITE [FILE ...] [OPTION ...]`: run a suite in pytest.

A FILE is a file of kernels, as after --kernels. The process ends with an exit status of ours. Under
--json stdout has one JSON object and nothing else, whatever becomes of the run.
"""

from __future__ import annotations

import sys

from kernel_workbench.reports.exit_status import ExitStatus, status_of
from kernel_workbench.reports.output import outlast_readers
from kernel_workbench.root import ignore_start_folder
from kernel_workbench.suites import PACKAGE, SUITES
from kernel_workbench.suites.run.exit_status import end_at_interrupt, of_pytest
from kernel_workbench.suites.run.json_output import JsonOutput


def _with_kernels(options: list[str]) -> list[str]:
    """Return the options with files that stand before the first of them as --kernels."""
    first = next((at for at, word in enumerate(options) if word.startswith("-")), len(options))
    return [*(f"--kernels={file}" for file in options[:first]), *options[first:]]


if __name__ == "__main__":
    ignore_start_folder()
    suite, *typed = sys.argv[1:] or [""]
    if suite not in SUITES:
        print(f"name one of the suites {', '.join(SUITES)} first", file=sys.stderr)
        sys.exit(ExitStatus.USAGE)
    words = [str(PACKAGE / "suites" / suite), *_with_kernels(typed)]
    output = JsonOutput.begin(suite) if "--json" in typed else None
    end_at_interrupt()
    import pytest

    outlast_readers()
    status = status_of(lambda: of_pytest(pytest.main(words)))
    sys.exit(status if output is None else output.end(status))
