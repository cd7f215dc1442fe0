"""`python -m suites.compile`: compile every kernel for every GPU generation, with no GPU.

A command line of its own and no pytest (docs/decisions/0028): nothing here is a test of a pair, and
what is compiled is found out by calling kernels.

Exit status: 0 where all compiles and every expectation holds; 1 where not; 2 where what was asked
for doesn't exist or the record can't be written.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from reports.output import outlast_readers
from suites.run.nox_command import nox_command
from suites.run.options import SuiteOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

# Triton looks for it when it is imported: nothing compiles under the interpreter.
_INTERPRETER = "TRITON_INTERPRET"
# Whether products and sums are fused: its default changes between versions of Triton.
_FUSION = "TRITON_DEFAULT_FP_FUSION"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    os.environ.pop(_INTERPRETER, None)
    os.environ.setdefault(_FUSION, "1")
    try:
        options = SuiteOptions("compile").read(typed)
        from suites.compile.session import run  # noqa: PLC0415  (imports triton)

        return run(options, nox_command("compile", ["--", *typed] if typed else []))
    except pytest.UsageError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted before anything was compiled", file=sys.stderr)
        return 130


if __name__ == "__main__":
    outlast_readers()
    sys.exit(main())
