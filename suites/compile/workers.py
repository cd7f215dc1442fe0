"""The judge's side: send tasks to the sandbox's workers, a few at a time, and yield answers.

A worker serves one generation. A worker that ends or hangs in a task is replaced, and the answer
says how it ended; if the task was a batch, each part is tried alone.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import TypeAdapter

from kernel_workbench.kernels.expectation import Claim
from kernel_workbench.kernels.registry import KernelError
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.compile.compiler import Measured
from kernel_workbench.suites.sandbox.judge_side.worker_process import (
    EndedError,
    ForkServer,
    LimitError,
    WorkerProcess,
    default_memory_limit,
)
from kernel_workbench.suites.sandbox.wire import Message, spelled

_TASK = "kernel_workbench.suites.compile.task"
_START_S = 120.0
_CALL_S = 120.0  # for a call, which computes nothing
_COMPILE_S = 600.0  # for a launch
_LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class NamedCall:
    """A kernel on a case, by names that are valid in any process."""

    op: str
    kernel: str
    case: Case

    @property
    def name(self) -> str:
        """The kernel and case, for a line of progress."""
        return f"{self.kernel} on {self.case.id()}"

    @property
    def message(self) -> Message:
        """The call as a JSON object."""
        return {"op": self.op, "kernel": self.kernel, "case": spelled(self.case)}


@dataclass(frozen=True, slots=True)
class Noted:
    """A launch of a call, with only the fields that can be sent to another process."""

    key: str
    function: str
    tile: dict[str, int]
    fp_fusion: bool | None


_MEASURED: TypeAdapter[list[Measured]] = TypeAdapter(list[Measured])


@dataclass(frozen=True, slots=True)
class _OfCall:
    """A task about one call.

    do       the task's name for a worker
    limit_s  the seconds that it may take
    answers  the form of a worker's answer
    """

    call: NamedCall

    do: ClassVar[str]
    limit_s: ClassVar[float]
    answers: ClassVar[TypeAdapter[Any]] = TypeAdapter(str | None)

    @property
    def name(self) -> str:
        """The kernel and case, for a line of progress."""
        return self.call.name

    @property
    def message(self) -> Message:
        """The task as a JSON object."""
        return {"do": self.do, "call": self.call.message}

    def read(self, answer: object) -> object:
        """Parse a worker's answer. Raises ValidationError."""
        return self.answers.validate_python(answer)

    def lost(self, how: str) -> str | None:
        """Return the answer for a worker that ended; `how` it did: the end of a sentence."""
        del how
        return None


class Take(_OfCall):
    """Capture the launches of a call; the answer is a tuple of `Noted`, or a sentence."""

    do = "take"
    limit_s = _CALL_S
    answers = TypeAdapter(tuple[Noted, ...] | str)

    def lost(self, how: str) -> str:
        """Return the answer for a worker that ended."""
        return f"{self.call.kernel}: called on {self.call.case.id()}, {how}"


class Hash(_OfCall):
    """Hash what a call runs on the GPU; the answer is a text, or None where that can't be told."""

    do = "hash"
    limit_s = _CALL_S + _COMPILE_S


@dataclass(frozen=True, slots=True)
class Locate(_OfCall):
    """Find an instruction that breaks a claim; the answer is its text and source line, or None."""

    do = "locate"
    limit_s = _COMPILE_S
    key: str
    claim: Claim

    @property
    def message(self) -> Message:
        """The task as a JSON object."""
        claim = type(self.claim).__name__, asdict(self.claim)
        return {"do": self.do, "key": self.key, "call": self.call.message, "claim": claim}


@dataclass(frozen=True, slots=True)
class Compile:
    """Compile launches, named by key and call; the answer is a list of `Measured`."""

    wanted: tuple[tuple[str, NamedCall], ...]

    @property
    def name(self) -> str:
        """The kernel and case, for a line of progress."""
        _, call = self.wanted[0]
        more = f" and {len(self.wanted) - 1} more" if len(self.wanted) > 1 else ""
        return f"{call.name}{more}"

    @property
    def limit_s(self) -> float:
        """Seconds that it may take."""
        return _COMPILE_S * len(self.wanted)

    @property
    def message(self) -> Message:
        """The task as a JSON object."""
        return {"do": "compile", "wanted": [(key, call.message) for key, call in self.wanted]}

    def read(self, answer: object) -> list[Measured]:
        """Parse a worker's answer. Raises ValueError."""
        measured = _MEASURED.validate_python(answer)
        if len(measured) != len(self.wanted):
            raise ValueError
        return measured

    def lost(self, how: str) -> list[Measured]:
        """Return the answer for a worker that ended."""
        return [Measured(0.0, problem=f"while it was compiled, {how}")]


Task = Take | Compile | Locate | Hash


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The answer where a worker reached a limit while it compiled a launch; how: a sentence."""

    how: str


@dataclass(slots=True)
class _CompileWorker:
    sm: int
    process: WorkerProcess
    task: Task | None = None
    started: float = 0.0
    deadline: float = 0.0


@dataclass(slots=True)
class CompileWorkers:
    """Workers for the tasks of a run; at most `jobs` of them work at a time; `close` ends them.

    files    the user's files, which each worker loads
    scratch  a folder for the workers' temporary files
    """

    jobs: int
    files: tuple[Path, ...]
    scratch: Path
    server: ForkServer | None = None
    _idle: list[_CompileWorker] = field(default_factory=list)
    _busy: list[_CompileWorker] = field(default_factory=list)
    _memory_limit: int = field(default_factory=default_memory_limit)

    def prepare(self) -> ForkServer:
        """Start the server that forks workers; it imports torch and triton in the background."""
        if self.server is None:
            self.server = ForkServer.start(torch.device("cpu"), strict=None, tasks=(_TASK,))
        return self.server

    def check_files(self) -> None:
        """Import each file in its own worker. Raises KernelError if the import ends the worker.

        Other errors of an import are reported later, when `run` loads the files.
        """
        for file in self.files:
            try:
                process, _ = self._started((file,))
            except EndedError as ended:
                raise KernelError(f"--kernels {file}: while it was imported, {ended}") from ended
            process.end()

    def run(
        self,
        tasks: Mapping[int, Sequence[Task]],
        waiting_for: Callable[[str], None] = lambda _: None,
    ) -> Iterator[tuple[int, Task, object]]:
        """Do the tasks of each sm; yield sm, task and answer as answers arrive.

        Several times a second, `waiting_for` is called with a text about the longest running task.
        Raises KernelError or WorkersError if a worker can't be started.
        """
        waiting = {sm: deque(queue) for sm, queue in tasks.items() if queue}
        while waiting or self._busy:
            while waiting and len(self._busy) < self.jobs:
                sm = self._next(waiting)
                self._begin(sm, waiting[sm].popleft())
                if not waiting[sm]:
                    del waiting[sm]
            waiting_for(self._longest())
            select.select([one.process.line.socket for one in self._busy], [], [], _LOOK_EVERY_S)
            for worker in list(self._busy):
                task = worker.task
                assert task is not None
                limits = worker.deadline, task.limit_s, self._memory_limit
                try:
                    message = worker.process.look(*limits, wait_s=0.0)
                    if message is None:
                        continue
                    answer: object = task.read(message.get("answer"))
                except (EndedError, ValueError) as error:
                    worker.process.end()
                    how = "its worker sent no answer" if isinstance(error, ValueError) else error
                    self._busy.remove(worker)
                    if isinstance(task, Compile) and len(task.wanted) > 1:
                        alone = [Compile((pair,)) for pair in task.wanted]
                        waiting.setdefault(worker.sm, deque()).extend(alone)
                        continue
                    # The machine's limits say nothing about the kernel's code.
                    unfinished = isinstance(task, Compile) and isinstance(error, LimitError)
                    answer = Unfinished(str(how)) if unfinished else task.lost(str(how))
                else:
                    self._busy.remove(worker)
                    self._idle.append(worker)
                yield worker.sm, task, answer

    def _longest(self) -> str:
        """Describe the longest running task, for example "at k on CASE for sm 90 since 8 s"."""
        now = time.monotonic()
        first = min(self._busy, key=lambda worker: worker.started)
        assert first.task is not None
        return f"at {first.task.name} for sm {first.sm} since {now - first.started:.0f} s"

    def _next(self, waiting: dict[int, deque[Task]]) -> int:
        """Return the sm with the most tasks; an sm with an idle worker comes first."""
        idle = {worker.sm for worker in self._idle}
        return max(waiting, key=lambda sm: (sm in idle, len(waiting[sm])))

    def _begin(self, sm: int, task: Task) -> None:
        worker = next((worker for worker in self._idle if worker.sm == sm), None)
        if worker is None:
            try:
                process, problem = self._started(self.files)
            except EndedError as ended:
                files = "".join(f"--kernels {file}: " for file in self.files)
                raise KernelError(f"{files}a worker for sm {sm} didn't begin: {ended}") from ended
            if problem is not None:
                process.end()
                raise KernelError(problem)
            worker = _CompileWorker(sm, process)
        else:
            self._idle.remove(worker)
        worker.task, worker.started = task, time.monotonic()
        worker.deadline = worker.started + task.limit_s
        self._busy.append(worker)
        settings = task.message | {"sm": sm, "scratch": str(self.scratch)}
        worker.process.ask({"do": "work", "module": _TASK, "settings": settings})

    def _started(self, files: Sequence[Path]) -> tuple[WorkerProcess, str | None]:
        """Return a worker that has loaded the files, and their problem. Raises EndedError."""
        message = {"overlay": None, "files": list(map(str, files)), "tasks": [_TASK], "sm": 90}
        process = self.prepare().fork(message | {"watched": False})
        answer = process.answer(_START_S, self._memory_limit)
        return process, answer.get("error")

    def close(self) -> None:
        """End all workers, and the server."""
        for worker in (*self._idle, *self._busy):
            worker.process.end()
        self._idle.clear()
        self._busy.clear()
        if self.server is not None:
            self.server.close()
            self.server = None
