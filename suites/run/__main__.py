"""`python -m kernel_workbench.suites.run SUITE [OPTION ...]`: run a suite in pytest.

The process ends with an exit status of ours.
"""

from __future__ import annotations

import sys

from kernel_workbench.reports.exit_status import ExitStatus, status_of
from kernel_workbench.reports.output import outlast_readers
from kernel_workbench.root import ignore_start_folder
from kernel_workbench.suites import PACKAGE, SUITES
from kernel_workbench.suites.run.exit_status import end_at_interrupt, of_pytest

if __name__ == "__main__":
    end_at_interrupt()
    ignore_start_folder()
    import pytest

    suite, *options = sys.argv[1:] or [""]
    if suite not in SUITES:
        print(f"name one of the suites {', '.join(SUITES)} first", file=sys.stderr)
        sys.exit(ExitStatus.USAGE)
    outlast_readers()
    sys.exit(status_of(lambda: of_pytest(pytest.main([str(PACKAGE / "suites" / suite), *options]))))
