"""`python -m kernel_workbench.serve`: keep judges warm for `accuracy`, until nobody asks."""

from __future__ import annotations

import os
import subprocess
import sys

from kernel_workbench.reports.arguments import CommandLine, number, whole_number
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.serve.client import socket_path

_MOST_SPARES = 16


def main() -> int:
    """Read the options, load everything and serve."""
    parser = CommandLine(
        prog="kernel-workbench serve",
        description="Keep judges warm, so that accuracy answers without imports. They are reached "
        "by a socket that this user alone may open; the command accuracy and the Python function "
        "use them by themselves.",
    )
    parser.add_argument(
        "--device",
        default="auto",
        choices=("auto", "cpu", "cuda"),
        help="where kernels run; by default the GPU where there is one",
    )
    parser.add_argument(
        "--idle-minutes",
        metavar="M",
        type=number(0.01, 10_000),
        default=15.0,
        help="end when nobody has asked for so long (default 15)",
    )
    parser.add_argument(
        "--spares",
        metavar="N",
        type=whole_number(1, _MOST_SPARES),
        default=2,
        help="judges that wait at one time (default 2)",
    )
    options = parser.read()
    if options.device == "cpu" or (options.device == "auto" and not _has_gpu()):
        device = "cpu"
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        device = "cuda"
        os.environ.pop("TRITON_INTERPRET", None)
    from kernel_workbench.serve.server import ServeError, Server  # noqa: PLC0415 (imports triton)

    try:
        server = Server.begin(socket_path(), device, options.spares, 60 * options.idle_minutes)
    except ServeError as error:
        sys.stderr.write(f"{error}\n")
        return ExitStatus.USAGE
    sys.stdout.write(f"serving at {server.path} on {device}; Ctrl-C ends it\n")
    sys.stdout.flush()
    server.run()
    return ExitStatus.RIGHT


def _has_gpu() -> bool:
    """Ask a child: a process that has asked CUDA can't be forked from any more."""
    program = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    done = subprocess.run(  # noqa: S603  (this Python, and the text above)
        [sys.executable, "-P", "-c", program], check=False
    )
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
