"""`python -m suites.run SUITE [OPTION ...]`: a suite in pytest, with our exit statuses."""

from __future__ import annotations

import sys

from reports.exit_status import ExitStatus, status_of
from reports.output import outlast_readers
from suites import SUITES
from suites.run.exit_status import end_at_interrupt, of_pytest

if __name__ == "__main__":
    end_at_interrupt()
    import pytest

    suite, *options = sys.argv[1:] or [""]
    if suite not in SUITES:
        print(f"name one of the suites {', '.join(SUITES)} first", file=sys.stderr)
        sys.exit(ExitStatus.USAGE)
    outlast_readers()
    sys.exit(status_of(lambda: of_pytest(pytest.main([f"suites/{suite}", *options]))))
