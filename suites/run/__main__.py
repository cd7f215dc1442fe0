"""`python -m suites.run SUITE [OPTION ...]`: a suite in pytest, with our exit statuses."""

from __future__ import annotations

import os
import sys

from suites.run.exit_status import end_at_interrupt, of_pytest

if __name__ == "__main__":
    end_at_interrupt()
    import pytest

    suite, *options = sys.argv[1:]
    status = of_pytest(pytest.main([f"suites/{suite}", *options]))
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # `| head -1` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)
