"""The parent's side: tasks go to processes, a few at a time, and each comes back with its answer.

A process serves one generation. One that ends over a task is replaced, and the task is answered
with how it ended; of a batch that a process ended over, each part is tried alone.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from suites.resources.compiler import Measured
from suites.resources.worker import Compile, Locate, Take, Task, serve, try_file

_END_S = 2.0


class WorkerError(Exception):
    """No process can be had; the message is one sentence for the user."""


@dataclass(slots=True)
class _Process:
    sm: int
    process: ForkServerProcess
    connection: Connection
    task: Task | None = None


@dataclass(slots=True)
class Workers:
    """Processes for the tasks of a run; at most `jobs` of them work at a time.

    files    a user's, loaded in each process
    scratch  a folder for what they leave behind
    """

    jobs: int
    files: tuple[Path, ...]
    scratch: Path
    _idle: list[_Process] = field(default_factory=list)
    _busy: list[_Process] = field(default_factory=list)

    def run(self, tasks: Mapping[int, Sequence[Task]]) -> Iterator[tuple[int, Task, object]]:
        """Do the tasks of each sm; yield sm, task and answer as they come.

        A `Take` is answered by launches or a sentence, a `Compile` by a list, a `Locate` by a text
        or None. Raises WorkerError where a process can't be started.
        """
        waiting = {sm: deque(each) for sm, each in tasks.items() if each}
        while waiting or self._busy:
            while waiting and len(self._busy) < self.jobs:
                sm = self._next(waiting)
                worker = self._worker(sm)
                worker.task = waiting[sm].popleft()
                if not waiting[sm]:
                    del waiting[sm]
                self._busy.append(worker)
                worker.connection.send(worker.task)
            ready = wait([each.connection for each in self._busy])
            for worker in [each for each in self._busy if each.connection in ready]:
                self._busy.remove(worker)
                task = worker.task
                assert task is not None
                try:
                    answer = worker.connection.recv()
                except (EOFError, OSError):
                    how = _ended(worker.process)
                    if isinstance(task, Compile) and len(task.wanted) > 1:
                        alone = [Compile((each,)) for each in task.wanted]
                        waiting.setdefault(worker.sm, deque()).extend(alone)
                        continue
                    answer = _lost(task, how)
                else:
                    worker.task = None
                    self._idle.append(worker)
                yield worker.sm, task, answer

    def _next(self, waiting: dict[int, deque[Task]]) -> int:
        """The sm with the most tasks; one with a process that is idle first, to start few."""
        idle = {each.sm for each in self._idle}
        return max(waiting, key=lambda sm: (sm in idle, len(waiting[sm])))

    def _worker(self, sm: int) -> _Process:
        for each in self._idle:
            if each.sm == sm:
                self._idle.remove(each)
                return each
        context = multiprocessing.get_context("forkserver")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=serve, args=(theirs, sm, self.files, self.scratch), daemon=True
        )
        process.start()
        theirs.close()
        try:
            problem = ours.recv()
        except (EOFError, OSError) as error:
            raise WorkerError(
                f"a process for sm {sm} ended before it began ({_ended(process)}); "
                + ("--kernels: a file's import ended it" if self.files else "run again")
            ) from error
        if problem is not None:
            raise WorkerError(problem)
        return _Process(sm, process, ours)

    def close(self) -> None:
        """End all processes."""
        for each in (*self._idle, *self._busy):
            each.connection.close()
            if each in self._busy:
                each.process.terminate()
        for each in (*self._idle, *self._busy):
            each.process.join(_END_S)
            if each.process.is_alive():
                each.process.kill()
        self._idle.clear()
        self._busy.clear()


def check_files(files: Sequence[Path]) -> None:
    """Import each file in a process of its own, which may end over it. Raises WorkerError."""
    context = multiprocessing.get_context("forkserver")
    for file in files:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=try_file, args=(file, theirs), daemon=True)
        process.start()
        process.join()
        if process.exitcode or not ours.poll():
            raise WorkerError(
                f"--kernels {file}: importing it ended the process ({_ended(process)})"
            )


def start_server() -> None:
    """Start the server that forks processes, which imports torch and triton meanwhile."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["suites.resources.preload"])
    from multiprocessing import forkserver  # noqa: PLC0415  (not on every platform)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C comes to the session alone
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)


def _ended(process: ForkServerProcess) -> str:
    process.join(_END_S)
    code = process.exitcode
    if code is None:
        return "its connection was closed"
    if code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit status {code}"


def _lost(task: Task, how: str) -> object:
    match task:
        case Take():
            call = task.call
            return f"{call.kernel}: its call on {call.case.id()} ended the process ({how})"
        case Compile():
            return [Measured(0.0, problem=f"compiling it ended the compiler's process ({how})")]
        case Locate():
            return None
