"""The exit statuses of every command: what a program reads of a run without its report."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from enum import IntEnum


class ExitStatus(IntEnum):
    """How a run ended. docs/reference/verdicts.md says when; noxfile.py passes them on."""

    RIGHT = 0
    WRONG = 1  # a kernel that gates is wrong, or a gate shows a regression
    USAGE = 2  # an option, a name or a file of the user's is wrong
    SUITE_FAILED = 3  # the suite itself failed, which says nothing of a kernel
    INCOMPLETE = 4  # cut off, interrupted, or nothing ran


def status_of(main: Callable[[], int]) -> int:
    """Run a command and return its status; an error of our own isn't Python's 1, which is WRONG."""
    try:
        return main()
    except Exception:  # noqa: BLE001 (whatever it is, it is ours)
        traceback.print_exc()
        return ExitStatus.SUITE_FAILED
