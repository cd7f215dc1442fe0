"""The exit statuses of a suite, and those by which pytest says the same.

pytest has statuses of its own: 2 is an interrupted run and 4 a wrong option. A suite runs in pytest
and ends by pytest's; `python -m kernel_workbench.suites.run` ends by ours.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

from kernel_workbench.reports.exit_status import ExitStatus

_OF_PYTEST = {
    0: ExitStatus.RIGHT,
    1: ExitStatus.WRONG,
    2: ExitStatus.INCOMPLETE,  # interrupted
    3: ExitStatus.SUITE_FAILED,  # an internal error
    4: ExitStatus.USAGE,
    5: ExitStatus.INCOMPLETE,  # no tests
}
_IN_PYTEST = {ours: theirs for theirs, ours in _OF_PYTEST.items()}


def of_pytest(status: int) -> ExitStatus:
    """Return our status for pytest's; a process that a signal ended is incomplete."""
    if status < 0:
        return ExitStatus.INCOMPLETE
    return _OF_PYTEST.get(status, ExitStatus.SUITE_FAILED)


def in_pytest(status: ExitStatus) -> int:
    """Return pytest's status for ours; an incomplete run is one without tests."""
    return _IN_PYTEST[status]


def end_at_interrupt() -> None:
    """Let Ctrl-C end this process with one sentence, until `keep_what_ran` is called.

    Before a run has a record there is nothing to close, and an exception among imports would be
    pages of a traceback.
    """
    stderr = os.dup(2)  # pytest lays a file of its own over 2 while it loads conftests

    def end(_number: int, _frame: FrameType | None) -> None:
        os.write(stderr, b"interrupted before anything was run\n")
        os._exit(ExitStatus.INCOMPLETE)  # Python would end as from a signal, or print a traceback

    signal.signal(signal.SIGINT, end)


def keep_what_ran() -> None:
    """Let Ctrl-C raise KeyboardInterrupt: from now on there is a record to close."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
