"""Commands that work where a reader pastes them: by the program that the reader called.

The same suites run through nox, from a checkout, and by the command `kernel-workbench`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

NOX = "WORKBENCH_NOX"  # noxfile.py sets it: the words before `-s`, quoted for a shell
PROGRAM = "WORKBENCH_PROGRAM"  # the command sets it: the words before the suite's name


@dataclass(frozen=True, slots=True)
class Program:
    """A program that runs suites; words: how its user calls it, quoted for a shell."""

    words: str
    is_nox: bool = False

    def command(self, suite: str, arguments: Iterable[str] = ()) -> str:
        """Return the command that runs a suite.

        Example:
            >>> Program("kernel-workbench").command("bench", ["--op", "a b"])
            "kernel-workbench bench --op 'a b'"
            >>> Program(".venv/bin/nox", is_nox=True).command("bench", ["--quick"])
            '.venv/bin/nox -s bench -- --quick'
        """
        options = shlex.join(arguments)
        return " ".join([self.prefix(suite), options]) if options else self._begin(suite)

    def prefix(self, suite: str) -> str:
        """Return the words before a suite's options."""
        return f"{self._begin(suite)} --" if self.is_nox else self._begin(suite)

    def _begin(self, suite: str) -> str:
        return f"{self.words} -s {suite}" if self.is_nox else f"{self.words} {suite}"


def this_program() -> Program:
    """Return the program that the user of this process called."""
    nox = os.environ.get(NOX)
    if nox is not None:
        return Program(nox, is_nox=True)
    return Program(os.environ.get(PROGRAM, "kernel-workbench"))


def program_of(command: str, suite: str) -> Program:
    """Return the program of a command that ran a suite; `this_program()` where it isn't ours.

    Example:
        >>> program_of("python -m nox -s bench -- --quick", "bench")
        Program(words='python -m nox', is_nox=True)
    """
    words, separator, _ = command.partition(" -s ")
    if separator and any(word.rstrip("'").endswith("nox") for word in words.split(" ")):
        return Program(words, is_nox=True)
    words, separator, _ = command.partition(f" {suite}")
    if separator and words.endswith(("kernel-workbench", "-m kernel_workbench")):
        return Program(words)
    return this_program()
