"""`python -m kernel_workbench.suites.compile`: compile for every GPU generation.

No GPU is needed.

The command doesn't use pytest (docs/decisions/0028): compiling isn't a test of a pair, and only
calls of kernels show what to compile.

Exit status: 0 if all compiles and every expectation holds; 1 if a kernel doesn't compile or breaks
an expectation; 2 if an option is wrong; 3 if the suite itself fails; 4 if the run was interrupted,
a compilation reached its limit of time or memory, or nothing was compiled.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from kernel_workbench.suites.run.exit_status import end_at_interrupt

if __name__ == "__main__":
    end_at_interrupt()  # the imports below take time

import pytest

from kernel_workbench.reports.commands import this_program
from kernel_workbench.reports.exit_status import ExitStatus, status_of
from kernel_workbench.reports.output import outlast_readers
from kernel_workbench.suites.run.option_table import CompileOptions, options_from
from kernel_workbench.suites.run.options import SuiteOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

# Triton reads this variable when it is imported: nothing compiles under the interpreter.
_INTERPRETER = "TRITON_INTERPRET"
# "1" fuses products and sums; the default differs between versions of Triton.
_FUSION = "TRITON_DEFAULT_FP_FUSION"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    os.environ.pop(_INTERPRETER, None)
    os.environ.setdefault(_FUSION, "1")
    try:
        parser = SuiteOptions("compile")
        parsed = parser.read(typed)
        parser.hold(parsed)
        from kernel_workbench.suites.compile.session import run  # noqa: PLC0415  (imports triton)

        return run(
            options_from(CompileOptions, parsed),
            this_program().command("compile", typed),
        )
    except pytest.UsageError as error:
        print(error, file=sys.stderr)
        return ExitStatus.USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return ExitStatus.INCOMPLETE


if __name__ == "__main__":
    outlast_readers()
    sys.exit(status_of(main))
