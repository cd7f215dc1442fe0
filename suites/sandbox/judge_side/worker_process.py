"""One worker process: the judge asks it, watches it while it works, and ends it.

A worker may end itself, be killed, hang, take all memory, or answer another question than the
judge's. Each of these raises an `EndedError` with a sentence, and the judge goes on.
"""

from __future__ import annotations

import os
import signal
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
from kernel_workbench.suites.sandbox.judge_side import waiting
from kernel_workbench.suites.sandbox.judge_side.detached import Keeper
from kernel_workbench.suites.sandbox.orphans import adopt_orphans, family
from kernel_workbench.suites.sandbox.parcels import Arena
from kernel_workbench.suites.sandbox.wire import (
    Channel,
    ClosedError,
    LateError,
    Message,
    new_line,
)

_LOOK_EVERY_S = 0.2  # how often the judge reads a worker's memory
_START_S = 120.0  # enough to load torch from a cold disk
_END_S = 10.0
_TAIL = 2**12
_TRACEBACK = "Traceback (most recent call last):"
_MOST_LINES, _MOST_COLUMNS = 10, 200  # of the text that a kernel prints in a call
_SIGNALS = {number.value: number.name for number in signal.Signals}  # most real-time ones lack it


class WorkersError(RuntimeError):
    """No worker can be started; the message gives the reason."""


class EndedError(RuntimeError):
    """The worker is gone; the message is a sentence, and `rule` is the rule that this breaks."""

    def __init__(self, rule: Literal["process ended", "time limit"], reason: str) -> None:
        super().__init__(reason)
        self.rule = rule


class LimitError(EndedError):
    """The judge ended the worker, because it reached a limit of time or of memory."""


@dataclass(slots=True)
class ForkServer:
    """The server that forks workers and reports the exit status of workers that have ended.

    output     a file in memory that contains all printed text
    _ended     exit statuses by process id
    _prepared  a worker that waits for its first message
    """

    process: subprocess.Popen[bytes]
    line: Channel
    output: int
    ready: bool = False
    _ended: dict[int, int] = field(default_factory=dict)
    _prepared: WorkerProcess | None = None

    @classmethod
    def start(
        cls, device: torch.device, *, strict: bool | None, tasks: tuple[str, ...] = ()
    ) -> ForkServer:
        """Start a server, or take one that waits; it loads modules while the judge goes on.

        Args:
            device: the device of the workers.
            strict: use the strict interpreter; None: the workers compile, and interpret nothing.
            tasks: modules that the workers import before a user's files.
        """
        adopt_orphans()
        key = cls.key(device, strict=strict, tasks=tasks)
        ready = waiting.take(key)
        if isinstance(ready, ForkServer):
            return ready
        _, _, kind, _ = key
        module = "kernel_workbench.suites.sandbox.worker_side.fork_server"
        with new_line() as (ours, theirs, output):
            process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), device.type, kind, *tasks],
                cwd=start_folder(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # so that Ctrl-C reaches the judge only
            )
        return cls(process, Channel(ours), output)

    @staticmethod
    def key(
        device: torch.device, *, strict: bool | None, tasks: tuple[str, ...] = ()
    ) -> tuple[str, str, str, tuple[str, ...]]:
        """Return what a server that waits has to have been started with.

        On a GPU nothing is interpreted, strictly or not.
        """
        kind = (
            "none" if strict is None else "strict" if strict and device.type == "cpu" else "stock"
        )
        return "server", device.type, kind, tasks

    def wait(self) -> None:
        """Wait until the server can fork.

        Raises:
            WorkersError: if the server ends or doesn't answer.
        """
        if self.ready:
            return
        try:
            self.line.receive(_START_S)
        except (ClosedError, LateError) as error:
            self.process.kill()
            self.process.wait()
            raise WorkersError(f"no worker can be started: {_printed(self.output)}") from error
        self.ready = True

    def prepare(self) -> None:
        """Start the next worker ahead. On a GPU the worker creates its context of CUDA meanwhile.

        Raises:
            WorkersError: if the server ends or doesn't answer.
        """
        self._prepared = self._forked({"waits": True})

    def prepare_if_ready(self) -> bool:
        """Start the next worker ahead if the server has loaded its modules; don't wait for it.

        Returns:
            True if the worker has been started, now or before.

        Raises:
            WorkersError: if the server has ended.
        """
        if self._prepared is None and (self.ready or self.line.is_readable()):
            self.prepare()
        return self._prepared is not None

    def fork(self, message: Message) -> WorkerProcess:
        """Start a worker, or take the prepared one, which answers `message` first.

        Raises:
            WorkersError: if the server ends or doesn't answer.
        """
        worker, self._prepared = self._prepared, None
        if worker is None:
            return self._forked(message)
        try:
            worker.line.send(message)
        except ClosedError:  # the worker has ended, and no candidate is to blame
            worker.end()
            return self._forked(message)
        return worker

    def _forked(self, message: Message) -> WorkerProcess:
        self.wait()
        with new_line() as (ours, theirs, output):
            try:
                self.line.send(message, (theirs.fileno(), output))
                while "forked" not in (reply := self.line.receive(_START_S)):
                    self._ended[reply["ended"]] = reply["status"]
            except (ClosedError, LateError, KeyError) as error:
                raise WorkersError("the server that starts workers is gone") from error
        return WorkerProcess(self, reply["forked"], Channel(ours), output)

    def status_of(self, pid: int, wait_s: float) -> int | None:
        """Return the exit status of a worker, or None if it still runs after `wait_s` seconds.

        Raises:
            ClosedError: if the server is gone.
        """
        deadline = time.monotonic() + wait_s
        while pid not in self._ended:
            try:
                report = self.line.receive(max(0.0, deadline - time.monotonic()))
            except LateError:
                return None
            self._ended[report["ended"]] = report["status"]
        return self._ended.pop(pid)

    def kill(self) -> None:
        """Kill the server at once; the next call of the workers starts another one."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End the server, and with it every process that its workers left."""
        if self._prepared is not None:
            self._prepared.end()
        self.line.close()
        os.close(self.output)
        if not self.ready:  # no worker was forked, and the server would go on loading
            self.process.kill()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(slots=True)
class WorkerProcess:
    """A worker process.

    output   a file in memory that contains all printed text
    arenas   the worker's open arenas, by name
    printed  the last line of the text, once the worker has ended
    lines    the first lines that it printed since the last message
    """

    server: ForkServer | Keeper
    pid: int
    line: Channel
    output: int
    arenas: dict[str, Arena] = field(default_factory=dict)
    ended: bool = False
    printed: str = ""
    lines: tuple[str, ...] = ()
    _last_id: int = 0
    _lines_from: int = 0

    def exchange(
        self,
        message: Message,
        limit_s: float,
        memory_limit: int,
        descriptors: Iterable[int] = (),
    ) -> Message:
        """Send a message and return the reply.

        Args:
            message: the message, in JSON.
            limit_s: the time limit, in seconds.
            memory_limit: the most resident bytes of the worker.
            descriptors: file descriptors that go with the message.

        Raises:
            EndedError: if the worker ends or is ended.
        """
        self.ask(message, descriptors)
        reply = self.answer(limit_s, memory_limit)
        if not self.ended:
            self.lines = _first_lines(self.output, self._lines_from)
        return reply

    def ask(self, message: Message, descriptors: Iterable[int] = ()) -> None:
        """Send a message. If the worker is gone, `answer` raises."""
        self._last_id += 1
        self.lines, self._lines_from = (), os.fstat(self.output).st_size
        with suppress(ClosedError):
            self.line.send(message | {"id": self._last_id}, tuple(descriptors))

    def answer(self, limit_s: float, memory_limit: int) -> Message:
        """Return the reply to the last message.

        Raises:
            EndedError: if the worker ends or is ended.
        """
        deadline = time.monotonic() + limit_s
        while True:
            reply = self.look(deadline, limit_s, memory_limit)
            if reply is not None:
                return reply

    def look(
        self, deadline: float, limit_s: float, memory_limit: int, wait_s: float = _LOOK_EVERY_S
    ) -> Message | None:
        """Return the reply to the last message, or None if it hasn't come within `wait_s` seconds.

        Args:
            deadline: of the clock time.monotonic, `limit_s` after the message.
            limit_s: the time limit, in seconds.
            memory_limit: the most resident bytes of the worker.
            wait_s: how long to wait, in seconds.

        Raises:
            EndedError: if the worker ends or is ended.
        """
        try:
            reply = self.line.receive(wait_s)
        except LateError:
            late = self._beyond(deadline, limit_s, memory_limit)
            if late is None:
                return None
            self.end()
            raise late from None
        except ClosedError:
            raise EndedError("process ended", self._how_it_ended()) from None
        except BaseException:  # Ctrl-C too: a late reply would be used for the next one
            self.end()
            raise
        if reply.pop("id", None) != self._last_id:
            self.end()
            raise EndedError("process ended", "its process answered what it wasn't asked")
        return reply

    def end(self) -> int | None:
        """End the worker.

        Returns:
            The exit status if the worker had ended by itself, else None.
        """
        if self.ended:
            return None
        self.ended = True
        self.line.close()
        try:
            # The process may live on after it closed its socket.
            status = self.server.status_of(self.pid, _LOOK_EVERY_S)
            if status is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
                if self.server.status_of(self.pid, _END_S) is None:
                    self.server.kill()  # the process doesn't end, because it was stopped
        except (ClosedError, KeyError):
            self.server.kill()
            status = None
        self.printed = _printed(self.output, self._lines_from)
        # From a traceback of the worker on, the text isn't the kernel's.
        lines = _first_lines(self.output, self._lines_from)
        self.lines = tuple(takewhile(lambda line: line != _TRACEBACK, lines))
        os.close(self.output)
        for arena in self.arenas.values():
            arena.close()
        return status

    def _beyond(self, deadline: float, limit_s: float, memory_limit: int) -> LimitError | None:
        if time.monotonic() > deadline:
            return LimitError("time limit", f"it didn't return within {limit_s:g} s")
        # A keeper takes no memory itself: the processes that it keeps do.
        pids = family(self.pid) if isinstance(self.server, Keeper) else {self.pid}
        resident = max(map(resident_bytes, pids))
        if resident <= memory_limit:
            return None
        used, most = resident / 2**30, memory_limit / 2**30
        reason = f"its process took {used:.1f} GiB of memory, past {most:.1f} GiB"
        return LimitError("process ended", reason)

    def _how_it_ended(self) -> str:
        """Return a sentence about the end, with the last printed line."""
        status = self.end()
        also = f"; it printed: {self.printed}" if self.printed else ""
        if status is None:
            return f"its process hung up{also}"
        if status < 0:
            name = _SIGNALS.get(-status, f"signal {-status}")
            hint = " (out of memory?)" if name == "SIGKILL" else ""
            return f"its process was killed by {name}{hint}{also}"
        return f"it ended its process, with status {status}{also}"


def _printed(descriptor: int, start: int = 0) -> str:
    """Return the last line that a process printed from byte `start` on.

    If an exception ended the process, return the first line of that exception. Text before `start`
    is another kernel's.
    """
    size = os.fstat(descriptor).st_size
    text = os.pread(descriptor, _TAIL, max(start, size - _TAIL)).decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    tracebacks = [at for at, line in enumerate(lines) if line == _TRACEBACK]
    if tracebacks:  # CUDA's errors have lines of general advice below their first line
        raised = (line for line in lines[tracebacks[-1] + 1 :] if not line.startswith(" "))
        return next(raised, lines[-1]).strip()[:300]
    return lines[-1].strip()[:300] if lines else ""


def _first_lines(descriptor: int, start: int) -> tuple[str, ...]:
    """Return the first lines that a process printed from byte `start` on, each shortened."""
    text = os.pread(descriptor, _MOST_LINES * _MOST_COLUMNS, start).decode(errors="replace")
    lines = [line.rstrip()[:_MOST_COLUMNS] for line in text.splitlines() if line.strip()]
    more = os.fstat(descriptor).st_size - start > _MOST_LINES * _MOST_COLUMNS
    return (*lines[:_MOST_LINES], *["..."] * (more or len(lines) > _MOST_LINES))


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes, or 0 if it can't be read."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def default_memory_limit() -> int:
    """Return the bytes that a worker may take: half of the machine's free memory, at least 1 GiB.

    A process that has imported torch and a kernel takes about a third of a GiB.
    """
    return max(_free_memory() // 2, 2**30)


def _free_memory() -> int:
    """Return the bytes of memory that are available on the machine; 16 GiB if unknown."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 2**10
    return 2**34
