"""Start a process that is no descendant of this one.

A candidate can walk from parent to parent and read their command lines, which name pytest, nox or a
suite. So a helper process starts the process of a user's own calls and ends at once; init adopts
the new process. The new process, the keeper (`worker_side/keeper.py`), ends all of its children
when this process hangs up or is gone, because this process can't adopt them any more.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kernel_workbench.root import start_folder
from kernel_workbench.suites.sandbox.orphans import orphans_left_to_init
from kernel_workbench.suites.sandbox.wire import ClosedError, new_line

_PROGRAMS = Path(__file__).parents[1] / "worker_side"
_START_S = 60.0
# Prefixes of variables that name the program which started this process.
_STARTERS = ("PYTEST_", "NOX_", "COV_")


class DetachedError(RuntimeError):
    """The process can't be started; the message gives the reason."""


@dataclass(slots=True)
class Keeper:
    """The keeper of a detached process, with the methods of a `WorkerProcess`'s server.

    pid     process id of the keeper
    line    this process's end of the socket; the other end is descriptor 3 of the keeper
    output  a file in memory that contains all printed text
    _ended  a file descriptor that is readable once the keeper has ended; None: the keeper has ended
    """

    pid: int
    line: socket.socket
    output: int
    _ended: int | None

    def status_of(self, _: int, wait_s: float) -> int | None:
        """Return None if the keeper still runs after `wait_s` seconds.

        Raises:
            ClosedError: if the keeper has ended. Only init knows its status.
        """
        if self._ended is not None:
            poll = select.poll()
            poll.register(self._ended, select.POLLIN)
            if not poll.poll(1e3 * wait_s):
                return None
        raise ClosedError

    def kill(self) -> None:
        """Kill the keeper at once, if it still runs."""
        if self._ended is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._ended, signal.SIGKILL)
            os.close(self._ended)
            self._ended = None


def start_detached(program: str) -> Keeper:
    """Start Python on the text of a file of `worker_side`.

    Args:
        program: the file's name, for example "user_script.py".

    Raises:
        DetachedError: if the process can't be started.
    """
    with (
        new_line() as (ours, theirs, output),
        _text_of("keeper.py") as keeper,
        _text_of(program) as source,
    ):
        passed = theirs.fileno(), source.fileno(), output
        with orphans_left_to_init():
            started = subprocess.Popen(
                [sys.executable, "-", *map(str, passed)],
                cwd=start_folder(),
                stdin=keeper,
                stdout=subprocess.PIPE,
                stderr=output,
                pass_fds=passed,
                env={name: value for name, value in os.environ.items() if _is_plain(name)},
                start_new_session=True,
            )
            assert started.stdout is not None
            with started.stdout as printed:
                first = printed.readline()
            started.wait(_START_S)
        if not first.strip().isdigit():
            raise DetachedError("a process of its own can't be started for a user's calls")
    try:
        ended = os.pidfd_open(int(first))
    except ProcessLookupError:
        ended = None
    return Keeper(int(first), ours, output, ended)


def _is_plain(variable: str) -> bool:
    return not variable.startswith(_STARTERS)


def _text_of(program: str) -> BinaryIO:
    """Return the program's text as a file in memory, whose name reveals nothing."""
    text = os.fdopen(os.memfd_create("script"), "w+b", buffering=0)
    text.write((_PROGRAMS / program).read_bytes())
    text.seek(0)
    return text
