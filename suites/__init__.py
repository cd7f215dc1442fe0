"""The suites that users run."""

import os
import sys
from pathlib import Path

import kernel_workbench
from kernel_workbench.bare_names import check_name
from kernel_workbench.root import ROOT as ROOT

check_name(__name__)

PACKAGE = Path(kernel_workbench.__file__).parent
SUITES = ("accuracy", "bench", "profile", "search")  # those that run in pytest
MOST_JOBS = max(64, 4 * (os.cpu_count() or 1))  # of --jobs: more would only fill the memory

if sys.flags.optimize:
    print(
        "Python's -O and PYTHONOPTIMIZE leave out asserts, which kernels rely on; run without",
        file=sys.stderr,
    )
    sys.exit(2)
