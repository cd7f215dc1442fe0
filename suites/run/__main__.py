"""`python -m kernel_workbench.suites.run SUITE [FILE ...] [OPTION ...]`: run a suite in pytest.

A FILE is a file of kernels, as after --kernels. The process ends with an exit status of ours. Under
--json stdout has one JSON object and nothing else, whatever becomes of the run. Where a warm judge
waits (`kernel_workbench.serve`), it makes the run.
"""

from __future__ import annotations

import sys

from kernel_workbench.root import ignore_start_folder
from kernel_workbench.serve.client import run_warm
from kernel_workbench.suites import SUITES
from kernel_workbench.suites.run.exit_status import end_at_interrupt

if __name__ == "__main__":
    ignore_start_folder()
    suite, *typed = sys.argv[1:] or [""]
    if suite not in SUITES:
        print(f"name one of the suites {', '.join(SUITES)} first", file=sys.stderr)
        sys.exit(2)
    status = run_warm(suite, typed)
    if status is None:
        end_at_interrupt()  # run_suite imports torch
        from kernel_workbench.suites.run.run_suite import run_suite

        status = run_suite(suite, typed)
    sys.exit(status)
