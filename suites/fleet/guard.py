"""`python -m kernel_workbench.suites.fleet.guard BEAT COMMAND ...`.

The parent process holds the other end of stdin. When that end closes, the guard kills the command
and all of its descendants. The file BEAT grows by a byte in each second in which the command lives
and isn't stopped. The exit status is the command's, or 128 plus the number of the signal.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kernel_workbench.suites.sandbox.orphans import adopt_orphans, die_with_parent, end_children

_BEAT_S = 1.0
_POLL_S = 0.1


def guard(beat: Path, command: Sequence[str]) -> int:
    """Run the command while stdin is open, and return its exit status."""
    adopt_orphans()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        # If the guard itself is killed, no other process ends the command.
        preexec_fn=die_with_parent,  # noqa: PLW1509 (this process has one thread)
    )
    stopped, polls = False, 0
    try:
        with beat.open("ab", buffering=0) as file:
            while not select.select([0], [], [], _POLL_S)[0]:
                flags = os.WNOHANG | os.WUNTRACED | os.WCONTINUED
                process_id, status = os.waitpid(process.pid, flags)
                if process_id:
                    stopped = os.WIFSTOPPED(status)
                    if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                        code = os.waitstatus_to_exitcode(status)
                        process.returncode = code
                        return code if code >= 0 else 128 - code
                polls += 1
                if not stopped and polls % round(_BEAT_S / _POLL_S) == 0:
                    file.write(b".")
        return 128 + signal.SIGKILL
    finally:
        end_children()


if __name__ == "__main__":
    sys.exit(guard(Path(sys.argv[1]), sys.argv[2:]))
