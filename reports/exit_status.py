"""The exit statuses of every command: what a program reads of a run without its report."""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """How a run ended. docs/reference/verdicts.md says when; noxfile.py passes them on."""

    RIGHT = 0
    WRONG = 1  # a kernel that gates is wrong, or a gate shows a regression
    USAGE = 2  # an option, a name or a file is wrong, and nothing ran
    SUITE_FAILED = 3  # the suite itself failed, which says nothing of a kernel
    INCOMPLETE = 4  # cut off, interrupted, or nothing ran
