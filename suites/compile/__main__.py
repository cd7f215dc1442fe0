"""`python -m suites.compile`: compile every kernel for every GPU generation, with no GPU.

A command line of its own and no pytest: nothing here is a test of a pair, what is compiled is found
out by calling kernels, and the compiler's processes must not inherit pytest's interpreter.

Exit status: 0 where all compiles and every expectation holds; 1 where not; 2 where what was asked
for doesn't exist or the record can't be written.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from reports.arguments import CommandLine, whole_number
from suites import MOST_JOBS, ROOT
from suites.run.nox_command import nox_command

if TYPE_CHECKING:
    from collections.abc import Sequence

# Triton looks for it when it is imported: nothing compiles under the interpreter.
_INTERPRETER = "TRITON_INTERPRET"
# Whether products and sums are fused: its default changes between versions of Triton.
_FUSION = "TRITON_DEFAULT_FP_FUSION"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().read(typed)
    os.environ.pop(_INTERPRETER, None)
    os.environ.setdefault(_FUSION, "1")
    command = nox_command("compile", ["--", *typed] if typed else [])
    try:
        from suites.compile.workers import start_server  # noqa: PLC0415  (not before the above)

        start_server()
        from suites.compile.command import run  # noqa: PLC0415  (imports torch, as it does too)

        return run(options, command)
    except KeyboardInterrupt:
        print("interrupted before anything was compiled", file=sys.stderr)
        return 130


def _parser() -> CommandLine:
    parser = CommandLine(
        prog="nox -s compile --",
        description="Compile every kernel for every GPU generation, with no GPU.",
    )
    for name in ("op", "kernel"):
        parser.add_argument(
            f"--{name}",
            action="append",
            default=[],
            metavar="NAME",
            help=f"only this {name}; may be repeated",
        )
    parser.add_argument(
        "--kernels",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="a Python file that registers kernels, and may hold EXPECTATIONS of them",
    )
    parser.add_argument(
        "--sm",
        action="append",
        default=[],
        type=whole_number(1, 999),
        metavar="N",
        help="only this generation; may be repeated (75, 80, 86, 89, 90, 100, 120)",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="every variant of every kernel, not only those that stand for the rest",
    )
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="also show what changed since this record"
    )
    parser.add_argument(
        "--jobs",
        type=whole_number(1, MOST_JOBS),
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes that compile; by default one for each core",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=ROOT / "results",
        metavar="DIR",
        help="where records are written",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="where measurements are kept (default: ~/.cache/kernel-workbench/compile)",
    )
    parser.add_argument(
        "--details",
        action="store_true",
        help="at the end print all of the report, not what fits a screen",
    )
    parser.add_argument(
        "--check-driver",
        action="store_true",
        help="on a machine with a GPU: compare with what its driver says of each kernel",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
