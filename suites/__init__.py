"""The suites that users run."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if sys.flags.optimize:
    sys.exit("Python's -O and PYTHONOPTIMIZE leave out asserts, which kernels rely on; run without")
