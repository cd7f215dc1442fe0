"""One worker as the judge holds it: asked, watched while it works, and ended.

A worker may end itself, be killed, hang, take all memory, or answer what it wasn't asked: each is
an `EndedError` with a sentence, and the judge goes on.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Literal

import torch

from kernel_workbench.root import start_folder
from kernel_workbench.suites.sandbox.judge_side.detached import Keeper
from kernel_workbench.suites.sandbox.orphans import adopt_orphans
from kernel_workbench.suites.sandbox.parcels import Arena
from kernel_workbench.suites.sandbox.wire import ClosedError, LateError, Line, Message

_LOOK_EVERY_S = 0.2  # at the memory that a worker takes
_START_S = 120.0  # torch from a cold disk
_END_S = 10.0
_TAIL = 2**12
_TRACEBACK = "Traceback (most recent call last):"
_MOST_LINES, _MOST_COLUMNS = 10, 200  # of what a kernel prints in a call


class WorkersError(RuntimeError):
    """No worker can be started; the message says why."""


class EndedError(RuntimeError):
    """The worker is gone. rule: which of the rules that breaks; the message is a sentence."""

    def __init__(self, rule: Literal["process ended", "time limit"], reason: str) -> None:
        super().__init__(reason)
        self.rule = rule


class LimitError(EndedError):
    """The judge ended the worker, because it reached a limit of time or of memory."""


@dataclass(slots=True)
class ForkServer:
    """The server that workers are forked by, and what it says of those that have ended."""

    process: subprocess.Popen[bytes]
    line: Line
    output: int  # a file in memory that holds what it prints
    ready: bool = False
    _ended: dict[int, int] = field(default_factory=dict)  # worker: its exit status

    @classmethod
    def start(
        cls, device: torch.device, *, strict: bool | None, tasks: tuple[str, ...] = ()
    ) -> ForkServer:
        """Start it; it loads what workers need while the judge goes on.

        strict: whether the interpreter is; None: its workers compile, and interpret nothing.
        """
        adopt_orphans()
        ours, theirs = socket.socketpair()
        output = os.memfd_create("printed")
        kind = "none" if strict is None else "strict" if strict else "stock"
        module = "kernel_workbench.suites.sandbox.worker_side.fork_server"
        command = [sys.executable, "-m", module, str(theirs.fileno()), device.type, kind, *tasks]
        process = subprocess.Popen(
            command,
            cwd=start_folder(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # Ctrl-C comes to the judge
        )
        theirs.close()
        return cls(process, Line(ours), output)

    def wait(self) -> None:
        """Until it can fork. Raises WorkersError."""
        if self.ready:
            return
        try:
            self.line.receive(_START_S)
        except (ClosedError, LateError) as error:
            self.process.kill()
            self.process.wait()
            raise WorkersError(f"no worker can be started: {_printed(self.output)}") from error
        self.ready = True

    def fork(self, message: Message) -> WorkerProcess:
        """Another worker, told `message`, which it answers first. Raises WorkersError."""
        self.wait()
        ours, theirs = socket.socketpair()
        output = os.memfd_create("printed")
        try:
            self.line.send(message, (theirs.fileno(), output))
            while "forked" not in (said := self.line.receive(_START_S)):
                self._ended[said["ended"]] = said["status"]
        except (ClosedError, LateError, KeyError) as error:
            raise WorkersError("the server that starts workers is gone") from error
        finally:
            theirs.close()
        return WorkerProcess(self, said["forked"], Line(ours), output)

    def status_of(self, pid: int, wait_s: float) -> int | None:
        """The exit status of a worker that has ended; None after `wait_s`. Raises ClosedError."""
        deadline = time.monotonic() + wait_s
        while pid not in self._ended:
            try:
                said = self.line.receive(max(0.0, deadline - time.monotonic()))
            except LateError:
                return None
            self._ended[said["ended"]] = said["status"]
        return self._ended.pop(pid)

    def kill(self) -> None:
        """End it at once; the workers' next call starts another one."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it, and with it all that its workers left."""
        self.line.close()
        os.close(self.output)
        if not self.ready:  # it has forked none, and would go on with what it loads
            self.process.kill()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(slots=True)
class WorkerProcess:
    """A worker; output: a file in memory that holds what it prints, of which the end is kept."""

    server: ForkServer | Keeper
    pid: int
    line: Line
    output: int
    arenas: dict[str, Arena] = field(default_factory=dict)  # by the kind of their device
    ended: bool = False
    printed: str = ""
    said: tuple[str, ...] = ()  # the first lines that it printed since it was last sent something
    _last_id: int = 0
    _said_from: int = 0

    def exchange(
        self,
        message: Message,
        limit_s: float,
        memory_limit: int,
        descriptors: Iterable[int] = (),
    ) -> Message:
        """Send and wait for the answer. Raises EndedError where there is none."""
        self.ask(message, descriptors)
        said = self.answer(limit_s, memory_limit)
        if not self.ended:
            self.said = _first_lines(self.output, self._said_from)
        return said

    def ask(self, message: Message, descriptors: Iterable[int] = ()) -> None:
        """Send; whoever waits for the answer finds out whether the worker is gone."""
        self._last_id += 1
        self.said, self._said_from = (), os.fstat(self.output).st_size
        with suppress(ClosedError):
            self.line.send(message | {"id": self._last_id}, tuple(descriptors))

    def answer(self, limit_s: float, memory_limit: int) -> Message:
        """Wait for the answer to what was sent last. Raises EndedError where there is none."""
        deadline = time.monotonic() + limit_s
        while True:
            said = self.look(deadline, limit_s, memory_limit)
            if said is not None:
                return said

    def look(
        self, deadline: float, limit_s: float, memory_limit: int, wait_s: float = _LOOK_EVERY_S
    ) -> Message | None:
        """The answer to what was sent last; None: not yet. Raises EndedError: there won't be one.

        deadline: of the clock time.monotonic, `limit_s` after the question.
        """
        try:
            said = self.line.receive(wait_s)
        except LateError:
            late = self._beyond(deadline, limit_s, memory_limit)
            if late is None:
                return None
            self.end()
            raise late from None
        except ClosedError:
            raise EndedError("process ended", self._how_it_ended()) from None
        except BaseException:  # Ctrl-C too: what it answers now would be taken for the next answer
            self.end()
            raise
        if said.pop("id", None) != self._last_id:
            self.end()
            raise EndedError("process ended", "its process answered what it wasn't asked")
        return said

    def end(self) -> int | None:
        """End it; the status that it had ended with by itself, None where it hadn't."""
        if self.ended:
            return None
        self.ended = True
        self.line.close()
        try:
            # Its socket may be closed and the process live on.
            status = self.server.status_of(self.pid, _LOOK_EVERY_S)
            if status is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
                if self.server.status_of(self.pid, _END_S) is None:
                    self.server.kill()  # it was stopped
        except (ClosedError, KeyError):
            self.server.kill()
            status = None
        self.printed = _printed(self.output, self._said_from)
        # From where Python tells how the worker itself broke it isn't the kernel that speaks.
        said = _first_lines(self.output, self._said_from)
        self.said = tuple(takewhile(lambda line: line != _TRACEBACK, said))
        os.close(self.output)
        for each in self.arenas.values():
            each.close()
        return status

    def _beyond(self, deadline: float, limit_s: float, memory_limit: int) -> LimitError | None:
        if time.monotonic() > deadline:
            return LimitError("time limit", f"it didn't return within {limit_s:g} s")
        resident = _resident(self.pid)
        if resident <= memory_limit:
            return None
        taken, most = resident / 2**30, memory_limit / 2**30
        reason = f"its process took {taken:.1f} GiB of memory, past {most:.1f} GiB"
        return LimitError("process ended", reason)

    def _how_it_ended(self) -> str:
        """In a sentence, with the last line that it printed."""
        status = self.end()
        also = f"; it printed: {self.printed}" if self.printed else ""
        if status is None:
            return f"its process hung up{also}"
        if status < 0:
            name = signal.Signals(-status).name
            hint = " (out of memory?)" if name == "SIGKILL" else ""
            return f"its process was killed by {name}{hint}{also}"
        return f"it ended its process, with status {status}{also}"


def _printed(descriptor: int, start: int = 0) -> str:
    """Return the last line that a process printed from byte `start` on.

    Return the first line of an exception that it ended with. Another kernel printed what is before
    `start`.
    """
    size = os.fstat(descriptor).st_size
    text = os.pread(descriptor, _TAIL, max(start, size - _TAIL)).decode(errors="replace")
    lines = [each for each in text.splitlines() if each.strip()]
    traced = [at for at, each in enumerate(lines) if each == _TRACEBACK]
    if traced:  # CUDA's errors have lines of general advice below what went wrong
        raised = (each for each in lines[traced[-1] + 1 :] if not each.startswith(" "))
        return next(raised, lines[-1]).strip()[:300]
    return lines[-1].strip()[:300] if lines else ""


def _first_lines(descriptor: int, start: int) -> tuple[str, ...]:
    """The first lines of what a process printed from byte `start` on, each cut where it is long."""
    text = os.pread(descriptor, _MOST_LINES * _MOST_COLUMNS, start).decode(errors="replace")
    lines = [each.rstrip()[:_MOST_COLUMNS] for each in text.splitlines() if each.strip()]
    more = os.fstat(descriptor).st_size - start > _MOST_LINES * _MOST_COLUMNS
    return (*lines[:_MOST_LINES], *["..."] * (more or len(lines) > _MOST_LINES))


def _resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def free_memory() -> int:
    """Bytes that processes can take, of the whole machine."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 2**10
    return 2**34
