"""Call candidates in another process, which may die without the judge: the judge's side.

A server (`fork_server.py`) forks a worker, which imports the user's files and calls their kernels.
If the worker ends, hangs or takes too much memory, the call fails with that reason, and the next
call gets another worker. The judge checks every reply: replies contain only names, numbers and
sentences, and outputs are copies of exactly as many bytes as the op's outputs have, out of memory
that the judge owns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, NoReturn, ParamSpec, TypeVar, get_args

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from kernel_workbench.kernels.builds import old_locks
from kernel_workbench.kernels.causes import kernels_named_in
from kernel_workbench.kernels.registry import Domain, Kernel, KernelError, load_ops, wrong_promise
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case, Inputs
from kernel_workbench.reports.record import Rule
from kernel_workbench.suites.sandbox.call import (
    NOT_CAPTURED,
    NOT_INTERPRETED,
    PLAIN,
    Call,
    Declared,
    Fill,
    How,
    declared,
)
from kernel_workbench.suites.sandbox.judge_side.plain_calls import UsersProcess
from kernel_workbench.suites.sandbox.judge_side.shared_calls import SharedCalls
from kernel_workbench.suites.sandbox.judge_side.worker_process import (
    EndedError,
    ForkServer,
    LimitError,
    WorkerProcess,
    WorkersError,
    default_memory_limit,
)
from kernel_workbench.suites.sandbox.parcels import Arena, Parcel, aligned, fitting
from kernel_workbench.suites.sandbox.shared_sets import SetLayout
from kernel_workbench.suites.sandbox.wire import Message, spelled

_ASK_S = 60.0
_BUILD_S = 600.0
_OTHER_OUTPUTS = "its process returned other outputs than the op's"
_NO_WORKER = "its process sent what no worker sends"
_MOST_RENEWED = 3  # the most workers for one call
_MOST_ASKED = 256  # the most cases of one question
_NOTHING_YET = 255  # repeated, this byte is NaN in every floating-point type
_RULES = frozenset({None, NOT_INTERPRETED, *get_args(Rule)})  # of a worker's call
# Errors after which a worker isn't used again: it may still occupy the memory.
SPENT = ("OutOfMemoryError", "MemoryError", "out of memory")


_P = ParamSpec("_P")
_T = TypeVar("_T")
_CALL, _ANSWERS = TypeAdapter(Call), TypeAdapter(list[Declared])  # check a worker's replies


class _NoArenaError(Exception):
    """The worker can't open memory of the judge's GPU."""


class NoSharedMemoryError(RuntimeError):
    """The GPU's driver shares no memory between processes."""


class _StaleError(Exception):
    """The worker made no call: code that an earlier call left has changed the worker."""


class TaskError(RuntimeError):
    """A task failed; the message is a sentence about the kernel, and `rule` is the broken rule."""

    def __init__(self, rule: Rule, reason: str) -> None:
        super().__init__(reason)
        self.rule = rule


class TaskReply(BaseModel):
    """A worker's reply to a task.

    result   the result of the task, in JSON
    outputs  names of the outputs in the arena
    raised   a sentence if the kernel failed, and `rule`: the broken rule
    fatal    the process can't use the device any more
    spent    the process must not call another kernel
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    result: Message = {}
    outputs: list[str] = []
    raised: str | None = None
    rule: Rule = "raised"
    fatal: bool = False
    spent: bool = False


class KernelDescription(BaseModel):
    """A kernel that a worker has registered, in JSON."""

    model_config = ConfigDict(extra="forbid")

    op: str
    name: str
    returns: tuple[str, ...]
    origin: Literal["ours", "baseline", "user"]
    path: str
    priority: int
    numerics: dict[str, bool | int | float | str | None]
    wraps: str | None
    variants: tuple[str, ...]
    build: bool
    problem: str | None


class BuildReply(BaseModel):
    """A worker's reply about the build of a kernel."""

    model_config = ConfigDict(extra="forbid", strict=True)

    built: bool
    problem: str | None = None


def _elsewhere(*_: object, **__: object) -> object:
    raise RuntimeError("this kernel is called in a worker")


# Refuses every case: the worker knows the kernel's domain and answers questions about it.
_ELSEWHERE = Domain(dtypes=(torch.float32,), also=lambda _: "its domain is in a worker")


def kernel_of(description: KernelDescription, *, user: bool) -> Kernel:
    """Return the judge's kernel of a description; function and domain stay in the workers.

    Args:
        description: the kernel in JSON.
        user: mark the kernel as a user's, whatever the description says.

    Raises:
        LookupError: if there is no such op.
        ValueError: if the op has no such part.
    """
    return Kernel(
        op=OPS[description.op].part(description.returns),
        name=description.name,
        domain=_ELSEWHERE,
        numerics=OPS[description.op].numerics(**description.numerics),  # type: ignore[arg-type]
        priority=description.priority,
        function=_elsewhere,
        origin="user" if user else description.origin,
        path=description.path,
        variants=lambda _: description.variants,
        wraps=description.wraps,
        build=_elsewhere if description.build else None,
    )


@dataclass(slots=True)
class Workers:
    """The workers of a run, one at a time; `close` ends them.

    device     the device of the calls
    sm         the GPU generation, for example 90
    strict     use the strict interpreter on a CPU
    files      a user's files, which only workers import
    tasks      modules of the suites that `task` may name; workers import them before a user's files
    overlay    a folder with a changed copy of `kernels/`, which replaces the checkout's
    time_limit_s    the time limit of one call, in seconds
    memory_limit    the most resident bytes of a worker; None: `default_memory_limit` at the start
    builds     build what kernels need; else leave a kernel out whose build the cache lacks
    build_limit_s   the time limit of one build, in seconds; None: ten calls', at least 600
    left_out   sentences about files and kernels that can't be tried here, after `kernels`
    arena_device    the device of inputs and outputs on their way: the GPU, if its driver lets two
                    processes share memory
    """

    device: torch.device
    sm: int
    strict: bool = True
    files: tuple[Path, ...] = ()
    tasks: tuple[str, ...] = ()
    overlay: Path | None = None
    time_limit_s: float = 300.0
    memory_limit: int | None = None
    builds: bool = True
    build_limit_s: float | None = None
    left_out: tuple[str, ...] = ()
    arena_device: torch.device = field(init=False)
    server: ForkServer | None = None
    script: UsersProcess = field(init=False)
    _worker: WorkerProcess | None = None
    _killed: bool = False
    _remote: dict[tuple[str, str], Kernel] = field(default_factory=dict)
    _answers: dict[tuple[str, str, Case], Declared] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arena_device = self.device
        overlay = None if self.overlay is None else str(self.overlay)
        files = tuple(str(file.resolve()) for file in self.files)
        self.script = UsersProcess(self.device, overlay, files)
        if self.build_limit_s is None:
            self.build_limit_s = max(_BUILD_S, 10 * self.time_limit_s)

    def kernels(self) -> tuple[Kernel, ...]:
        """Return the kernels that the files, or the changed copy, register, each of them built.

        A file whose import fails beside others, and a kernel whose build fails, are left out.

        Their functions and domains stay in the workers: `call`, `declared` and `refusal` ask there.

        Raises:
            KernelError: if a file is refused, or nothing is left.
            WorkersError: if no worker can be started.
        """
        if not self._remote:
            self._ready()
        return tuple(self._remote.values())

    def refusal(self, kernel: Kernel, case: Case) -> str | None:
        """Return the sentence by which the kernel's domain rejects the case, or None."""
        if not self._is_remote(kernel):
            return kernel.domain.reject(case, self.sm, self.device.type)
        return self._answer(kernel, case).refusal

    def declared(self, kernel: Kernel, case: Case) -> Declared:
        """Return the kernel's declarations about a case that its domain accepts."""
        if not self._is_remote(kernel):
            return declared(kernel, case, self.sm)
        return self._answer(kernel, case)

    def call(
        self,
        kernel: Kernel,
        case: Case,
        parcel: Parcel,
        fill: Fill,
        how: How = PLAIN,
        then: Parcel | None = None,
    ) -> Call:
        """Call the kernel on the parcel's inputs.

        Args:
            kernel: the kernel.
            case: the case of the inputs.
            parcel: the inputs.
            fill: the value that fresh memory contains.
            how: special conditions.
            then: other values that follow in the same memory (`How.then`), or None.

        Returns:
            The call, of the values that followed if there are some. Its outputs are copies on the
            run's device.
        """
        started = time.perf_counter()
        parcels = [parcel] if then is None else [parcel, then]
        if self.arena_device.type == "cpu":
            parcels = self._moved(parcels)
        try:
            try:
                call, arena, at = self._renewed(self._called, kernel, case, parcels, fill, how)
            except _NoArenaError:
                # The driver doesn't let two processes share memory: go through the host.
                self.arena_device = torch.device("cpu")
                parcels = self._moved(parcels)
                call, arena, at = self._renewed(self._called, kernel, case, parcels, fill, how)
        except EndedError as ended:
            lines = () if self._worker is None else self._worker.lines
            lines = lines if len(lines) > 1 else ()  # the reason contains the last line
            return Call({}, time.perf_counter() - started, ended.rule, str(ended), printed=lines)
        call = replace(call, printed=() if self._worker is None else self._worker.lines)
        if call.rule is None:
            outputs = self._outputs(kernel, case, arena, at, parcel.home)
            changed = parcels[0].changed(arena, kernel.op) if then is None else None
            rule = None if changed is None else "changed input"
            call = replace(call, outputs=outputs, rule=rule, reason=changed)
        if call.fatal or call.spent or any(word in (call.reason or "") for word in SPENT):
            self._end()
        return call

    def ask_plainly(self, kernel: Kernel, case: Case, inputs: Inputs) -> bool:
        """Begin a plain call beside the worker's calls, if the process is ready for one.

        Returns:
            True if the call has begun; `answer_plainly` then has to follow.
        """
        if self.memory_limit is None:
            return False
        return self.script.ask(kernel, case, inputs, self.memory_limit)

    def answer_plainly(self) -> Call:
        """Return the plain call that `ask_plainly` has begun."""
        assert self.memory_limit is not None
        return self.script.answer(self.time_limit_s, self.memory_limit)

    def call_plainly(self, kernel: Kernel, case: Case, inputs: Inputs) -> Call:
        """Call the kernel as a user does, in a process without the suites (plain_calls.py)."""
        try:
            self._ready()
        except EndedError as ended:
            return Call({}, 0.0, ended.rule, str(ended))
        assert self.memory_limit is not None
        limits = self.time_limit_s, self.memory_limit
        return self.script.call(kernel, case, inputs, *limits)

    def task(
        self,
        kernel: Kernel,
        case: Case,
        parcels: Sequence[Parcel],
        module: str,
        settings: Message,
        limit_s: float,
    ) -> tuple[Message, dict[str, Tensor]]:
        """Call a module's `run_task(kernel, case, inputs, device, settings)` in a worker.

        Args:
            kernel: the kernel.
            case: the case of the parcels.
            parcels: inputs; each place of the sequence gets memory of its own.
            module: one of `tasks`.
            settings: settings of the module, in JSON.
            limit_s: the time limit, in seconds.

        Returns:
            The result in JSON, which the caller must check, and outputs of the kernel by name, or
            none.

        Raises:
            TaskError: if the kernel or its process fails; the message is one sentence.
        """
        try:
            try:
                if self.arena_device.type == "cpu":
                    parcels = self._moved(parcels)
                return self._renewed(self._task, kernel, case, parcels, module, settings, limit_s)
            except _NoArenaError:
                self.arena_device = torch.device("cpu")
                moved = self._moved(parcels)
                return self._renewed(self._task, kernel, case, moved, module, settings, limit_s)
        except EndedError as ended:
            raise TaskError(ended.rule, str(ended)) from ended

    @contextmanager
    def shared_calls(
        self,
        kernel: Kernel,
        layout: SetLayout,
        count: int,
        module: str,
        settings: Message,
        limit_s: float,
    ) -> Iterator[SharedCalls]:
        """Call the kernel on sets of inputs in the judge's memory within the context.

        The module's `run_passes` makes the calls.

        Raises:
            TaskError: if the kernel or its process fails; the message is one sentence.
            torch.OutOfMemoryError: if the GPU has no memory for the sets.
            NoSharedMemoryError: if the GPU's driver shares no memory between processes.
        """
        if self.arena_device != self.device:
            raise NoSharedMemoryError
        message: Message = {
            "do": "passes",
            "op": kernel.op.name,
            "kernel": kernel.name,
            "is_baseline": kernel.origin == "baseline",
            "module": module,
            "settings": settings,
            "sets": layout.message(count),
        }

        def ask(question: Message, descriptors: tuple[int, ...] = ()) -> Message:
            reply = self._exchange(question, limit_s, descriptors)
            if "ready" not in reply:
                self._raise_for(reply)
            return reply

        def begin() -> Arena:
            _, arena = self._arena(count * layout.nbytes, self.arena_device, "sets")
            ask(message | {"arena": arena.spec}, arena.descriptors)
            return arena

        arena: Arena | None = None
        try:
            arena = self._renewed(begin)
            yield SharedCalls(arena, layout, count, self._ready().pid, ask)
            self._check(self._done(self._exchange({"order": None}, limit_s)))
        except EndedError as ended:
            raise TaskError(ended.rule, str(ended)) from ended
        except BaseException:
            self._end()  # it still waits for the next order
            raise
        finally:
            # The next truth needs these gigabytes; the worker has closed its view.
            if arena is not None:
                arena.close()
            if self._worker is not None:
                self._worker.arenas.pop("sets", None)
            if self.device.type == "cuda":
                torch.cuda.ipc_collect()
                torch.cuda.empty_cache()

    def _raise_for(self, reply: Message) -> NoReturn:
        """Raise the error of a reply that isn't ready for more passes."""
        if reply.keys() == {"no_memory"}:
            raise torch.OutOfMemoryError(f"in the kernel's process: {reply['no_memory']}")
        if reply.keys() == {"no_arena"}:
            raise NoSharedMemoryError
        self._check(self._done(reply))
        raise TaskError("process ended", _NO_WORKER)

    def _check(self, done: TaskReply) -> None:
        """End a worker that can't be used again. Raises TaskError if the kernel failed."""
        reason = done.raised or ""
        if done.fatal or done.spent or any(word in reason for word in SPENT):
            self._end()
        if done.raised is not None:
            raise TaskError(done.rule, done.raised)

    def _done(self, reply: Message) -> TaskReply:
        """Validate a worker's reply to a task. Raises EndedError."""
        try:
            return TaskReply.model_validate(reply)
        except ValidationError as error:
            self._end()
            raise EndedError("process ended", _NO_WORKER) from error

    def _moved(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        """Return the parcels on the arena's device; a parcel that occurs twice stays one parcel."""
        moved = {id(parcel): parcel.to(self.arena_device) for parcel in parcels}
        return [moved[id(parcel)] for parcel in parcels]

    def prepare(self) -> None:
        """Start the server early, so that the first worker starts sooner. Raises WorkersError."""
        if self.server is None:
            self.server = ForkServer.start(self.device, strict=self.strict, tasks=self.tasks)
        if self._killed:  # asked after the start: `kill` sees the server, or is seen here
            raise WorkersError("the workers were killed")

    def prepare_worker(self) -> bool:
        """Start the first worker ahead if the server has loaded; return soon. Raises WorkersError.

        On a GPU the worker then creates its context of CUDA, which takes seconds where many
        processes create theirs.

        Returns:
            True if the worker has been started, now or before.
        """
        self.prepare()
        assert self.server is not None
        return self._worker is not None or self.server.prepare_if_ready()

    def renew(self) -> None:
        """End the worker; the next call gets another one."""
        self.script.end()
        self._end()

    def close(self) -> None:
        """End the worker, the server and every process that they left."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None
        self.script.end()
        if self.server is not None:
            self.server.close()
            self.server = None

    def kill(self) -> None:
        """Kill all processes at once, from any thread.

        A thread that waits for a reply, or asks for another one, then raises, and has to call
        `close`.
        """
        self._killed = True
        server = self.server
        if server is not None:
            server.kill()

    def _is_remote(self, kernel: Kernel) -> bool:
        return (kernel.op.name, kernel.name) in self._remote

    def learn(self, kernel: Kernel, cases: Iterable[Case]) -> None:
        """Ask about many cases in few messages, ahead of `refusal` and `declared`."""
        if not self._is_remote(kernel):
            return
        new = [
            case for case in dict.fromkeys(cases) if self._key(kernel, case) not in self._answers
        ]
        for start in range(0, len(new), _MOST_ASKED):
            self._ask(kernel, new[start : start + _MOST_ASKED])

    def _answer(self, kernel: Kernel, case: Case) -> Declared:
        if self._key(kernel, case) not in self._answers:
            self._ask(kernel, [case])
        return self._answers[self._key(kernel, case)]

    def _key(self, kernel: Kernel, case: Case) -> tuple[str, str, Case]:
        return kernel.op.name, kernel.name, case

    def _ask(self, kernel: Kernel, cases: Sequence[Case]) -> None:
        """Store the kernel's answers about the cases; ask about a case with a problem alone."""
        question = {"do": "ask", "op": kernel.op.name, "kernel": kernel.name, "sm": self.sm}
        question |= {"cases": [spelled(case) for case in cases]}
        answers, problem = [], "its reply about the case isn't an answer"
        try:
            reply = self._renewed(self._exchange, question, _ASK_S)
            answers = _ANSWERS.validate_python(reply.get("answers"))
        except EndedError as ended:
            problem = f"asked about the case, {ended}"
        except ValidationError:
            pass
        if any(answer.rule == "replaced code" for answer in answers):
            self._end()
        if len(answers) != len(cases):
            answers = [Declared(problem=problem)] * len(cases)
        for case, answer in zip(cases, answers, strict=True):
            if answer.problem is not None and len(cases) > 1:
                self._ask(kernel, [case])
            else:
                self._answers[self._key(kernel, case)] = answer

    def _renewed(self, do: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call `do`, and again in a new worker if an earlier call left changes in this worker.

        Raises EndedError if this happens again and again, as with a process that a kernel left
        elsewhere.
        """
        for _ in range(_MOST_RENEWED):
            with suppress(_StaleError):
                return do(*args, **kwargs)
        raise EndedError("process ended", "its process was changed before it was called")

    def _called(
        self, kernel: Kernel, case: Case, parcels: Sequence[Parcel], fill: Fill, how: How
    ) -> tuple[Call, Arena, int]:
        """Return the call, the arena that still contains its outputs, and where they are in it."""
        message: Message = {"do": "call", "fill": fill, "how": asdict(how)}
        reply, arena, at = self._sent(kernel, case, parcels, message, self.time_limit_s)
        names = reply.get("outputs")
        try:
            call = _CALL.validate_python(reply | {"outputs": {}})
        except ValidationError as error:
            self._end()
            raise EndedError("process ended", _NO_WORKER) from error
        if call.rule not in (_RULES | {NOT_CAPTURED} if how.then == "replay" else _RULES):
            self._end()
            raise EndedError("process ended", _NO_WORKER)
        if call.rule is None and names != list(_sizes(kernel, case)):
            self._end()
            raise EndedError("process ended", _OTHER_OUTPUTS)
        return call, arena, at

    def _task(
        self,
        kernel: Kernel,
        case: Case,
        parcels: Sequence[Parcel],
        module: str,
        settings: Message,
        limit_s: float,
    ) -> tuple[Message, dict[str, Tensor]]:
        if module not in self.tasks:
            raise ValueError(f"{module} isn't among the modules that the workers import")
        message: Message = {
            "do": "task",
            "module": module,
            "settings": settings,
            "signs": kernel.op.found_signs(),
        }
        reply, arena, at = self._sent(kernel, case, parcels, message, limit_s)
        done = self._done(reply)
        if done.raised is not None:
            self._check(done)
        if done.outputs and done.outputs != list(_sizes(kernel, case)):
            self._end()
            raise EndedError("process ended", _OTHER_OUTPUTS)
        has_outputs = bool(done.outputs)
        outputs = self._outputs(kernel, case, arena, at, parcels[0].home) if has_outputs else {}
        if done.spent:
            self._end()
        return done.result, outputs

    def _sent(
        self,
        kernel: Kernel,
        case: Case,
        parcels: Sequence[Parcel],
        message: Message,
        limit_s: float,
    ) -> tuple[Message, Arena, int]:
        """Send a message about a kernel and inputs.

        Returns:
            The reply, the arena, and the position of the outputs in the arena.
        """
        room = sum(map(aligned, _sizes(kernel, case).values()))
        through = parcels[0].device.type
        apart = {
            id(parcel): parcel for parcel in parcels
        }  # a parcel that occurs twice is sent once
        outputs_at = sum(parcel.nbytes for parcel in apart.values())
        before, arena = self._arena(outputs_at + room, parcels[0].device)
        sent, at = {}, 0
        for number, parcel in apart.items():
            sent[number] = parcel.put(arena, at)
            at += parcel.nbytes
        message |= {
            "op": kernel.op.name,
            "kernel": kernel.name,
            "is_baseline": kernel.origin == "baseline",
            "configuration": kernel.configuration,
            "case": spelled(case),
            "through": through,
            "inputs": [sent[id(parcel)] for parcel in parcels],
            "outputs_at": outputs_at,
        }
        arena.at(outputs_at, room).fill_(_NOTHING_YET)
        descriptors: tuple[int, ...] = ()
        if arena is not before:
            message["arena"], descriptors = arena.spec, arena.descriptors
        if arena.device.type == "cuda":
            torch.cuda.synchronize(arena.device)
        reply = self._exchange(message, limit_s, descriptors)
        if reply.keys() == {"no_memory"}:
            self._end()
            raise torch.OutOfMemoryError(f"in the kernel's process: {reply['no_memory']}")
        if reply.keys() == {"no_arena"} and through != "cpu":
            self._end()  # the worker hasn't opened the judge's arena
            raise _NoArenaError
        return reply, arena, outputs_at

    def _arena(
        self, nbytes: int, device: torch.device, name: str | None = None
    ) -> tuple[Arena | None, Arena]:
        """Return the worker's previous arena, and an arena with room for so many bytes.

        If memory runs out, the worker's memory is freed first. Raises torch.OutOfMemoryError.
        """
        name = name or device.type
        arenas = self._ready().arenas
        before = arenas.get(name)
        try:
            return before, fitting(arenas, nbytes, device, name)
        except torch.OutOfMemoryError:
            self.give_back()
        return None, fitting(self._ready().arenas, nbytes, device, name)

    def give_back(self) -> None:
        """Free the GPU memory of the workers and their arenas."""
        self.renew()
        if self.device.type == "cuda":
            torch.cuda.ipc_collect()
            torch.cuda.empty_cache()

    def _outputs(
        self, kernel: Kernel, case: Case, arena: Arena, offset: int, home: torch.device
    ) -> dict[str, Tensor]:
        outputs, forms = {}, kernel.op.forms(case)
        for name, nbytes in _sizes(kernel, case).items():
            form = forms[name]
            output = arena.at(offset, nbytes).clone().view(form.dtype).view(form.shape)
            outputs[name] = output.to(home)
            offset += aligned(nbytes)
        return outputs

    def _exchange(
        self, message: Message, limit_s: float, descriptors: tuple[int, ...] = ()
    ) -> Message:
        worker = self._ready()
        assert self.memory_limit is not None
        reply = worker.exchange(message, limit_s, self.memory_limit, descriptors)
        if reply.keys() == {"stale"}:
            self._end()
            raise _StaleError
        return reply

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.end()

    def _ready(self) -> WorkerProcess:
        """Return a worker that has imported the files: the last one, or a new one.

        Raises KernelError, or EndedError if the files were imported before.
        """
        if self._worker is not None and not self._worker.ended:
            return self._worker
        if self.memory_limit is None:
            self.memory_limit = default_memory_limit()
        if self.server is not None and self.server.process.poll() is not None:
            self.script.end()
            self.server.close()  # a candidate has killed the server
            self.server = None
        self.prepare()
        assert self.server is not None
        try:
            worker, loaded = self._imported()
        except KernelError as error:
            if not self._remote:
                raise
            reason = f"its file was imported, and can't be imported again: {error}"
            raise EndedError("process ended", reason) from error
        self._worker = worker
        if not self._remote:
            self._leave_out(loaded)
            self._remember(loaded)
            self._build()
        return self._worker

    def _forked(self, files: Sequence[Path]) -> tuple[WorkerProcess, Message]:
        """Return a new worker and its reply to the import of the files. Raises EndedError."""
        assert self.server is not None and self.memory_limit is not None
        message: Message = {
            "overlay": None if self.overlay is None else str(self.overlay),
            "files": [str(file) for file in files],
            "tasks": self.tasks,
            "sm": self.sm,
            "watched": True,
        }
        started = time.time()
        worker = self.server.fork(message)
        try:
            loaded = worker.answer(max(self.time_limit_s, _ASK_S), self.memory_limit)
        except LimitError as ended:
            locks = old_locks(started)
            if ended.rule != "time limit" or not locks:
                raise
            raise LimitError(
                ended.rule,
                f"{ended}; a build may wait for the lock {locks[0]}, which an interrupted build "
                "leaves: delete that file",
            ) from ended
        return worker, loaded

    def _loaded(self) -> tuple[WorkerProcess, Message]:
        """Return a worker that has imported the files, less those whose import ends a worker.

        Raises KernelError if none is left, or if a file was imported before.
        """
        try:
            return self._forked(self.files)
        except EndedError as ended:
            if self._remote or len(self.files) < 2:
                reason = f"{self._named()}: while it was imported, {ended}"
                raise KernelError(reason) from ended
        ending: dict[Path, str] = {}
        for file in self.files:
            try:
                worker, _ = self._forked([file])
            except EndedError as ended:
                names = ", ".join(kernels_named_in(file))
                ending[file] = (
                    f"--kernels {file}: while it was imported, {ended} (its kernels: {names})"
                )
            else:
                worker.end()
        self._drop(ending)
        try:
            return self._forked(self.files)
        except EndedError as ended:
            raise KernelError(f"{self._named()}: while it was imported, {ended}") from ended

    def _imported(self) -> tuple[WorkerProcess, Message]:
        """Return a worker that has imported the files, and its reply. Raises KernelError."""
        worker, loaded = self._loaded()
        if "error" in loaded or (self._remote and loaded.get("left_out")):
            worker.end()
            raise KernelError(str(loaded.get("error", f"{self._named()}: one raised an error")))
        return worker, loaded

    def _leave_out(self, loaded: Message) -> None:
        """Leave files out whose import raised an error in the worker. Raises KernelError."""
        try:
            raised = TypeAdapter(dict[str, str]).validate_python(loaded.get("left_out", {}))
        except ValidationError as error:
            raise KernelError(f"{self._named()}: {_NO_WORKER}") from error
        self._drop({Path(file): sentence for file, sentence in raised.items()})

    def _drop(self, problems: Mapping[Path, str]) -> None:
        """Leave files out, with a sentence about each. Raises KernelError if none is left."""
        kept = tuple(file for file in self.files if file not in problems)
        if problems and not kept:
            raise KernelError("; ".join(problems.values()))
        self.files = kept
        self.script.files = tuple(str(file.resolve()) for file in kept)
        self.left_out += tuple(problems.values())

    def _build(self) -> None:
        """Build what the kernels need, and leave kernels out whose build fails.

        The worker that builds ends afterwards: a build may leave anything in its process. Raises
        KernelError if no kernel is left.
        """
        problems: list[str] = []
        for key, kernel in list(self._remote.items()):
            if kernel.build is None:
                continue
            try:
                reply = self._asked_to_build(kernel, None)
                if not reply.built and reply.problem is None and self.builds:
                    text = f"building what {kernel.name} needs ({kernel.path})"
                    print(text, file=sys.stderr, flush=True)
                    reply = self._asked_to_build(kernel, self.build_limit_s)
                    self._end()
                problem = reply.problem
            except LimitError as ended:
                limit = f"it didn't end within {self.build_limit_s:g} s"
                problem = limit if ended.rule == "time limit" else str(ended)
            except EndedError as ended:
                problem = str(ended)
            else:
                if problem is None and not reply.built:
                    problem = "the cache has no result of it"
            if problem is not None:
                self._end()
                del self._remote[key]
                problems.append(
                    f"kernel {kernel.name} in {kernel.path}: its build failed: {problem}"
                )
        if problems and not self._remote:
            raise KernelError("; ".join(problems))
        self.left_out += tuple(problems)
        if self._worker is None or self._worker.ended:
            self._worker, _ = self._loaded()

    def _asked_to_build(self, kernel: Kernel, wait_s: float | None) -> BuildReply:
        """Return the answer of a worker about a kernel's build. Raises EndedError."""
        assert self.memory_limit is not None
        if self._worker is None or self._worker.ended:
            self._worker, _ = self._loaded()
        message: Message = {"do": "build", "op": kernel.op.name, "kernel": kernel.name}
        # The worker gives up its wait for a lock first, and can say so.
        message |= {"wait_s": None if wait_s is None else 0.9 * wait_s}
        reply = self._worker.exchange(message, wait_s or _ASK_S, self.memory_limit)
        try:
            return BuildReply.model_validate(reply)
        except ValidationError as error:
            raise EndedError("process ended", _NO_WORKER) from error

    def _named(self) -> str:
        return "--kernels " + " ".join(map(str, self.files)) if self.files else "the kernels"

    def _remember(self, loaded: Message) -> None:
        """Store the kernels that a worker has registered."""
        try:
            descriptions = [
                KernelDescription.model_validate(description) for description in loaded["kernels"]
            ]
            self._know_ops(descriptions)
            # A user's file doesn't choose the origin: failures of baselines don't count.
            kernels = [
                kernel_of(description, user=self.overlay is None) for description in descriptions
            ]
        except (ValueError, LookupError, TypeError) as error:
            raise KernelError(f"{self._named()}: its registered kernels can't be read") from error
        for description in descriptions:
            if description.problem is not None:
                raise KernelError(
                    f"kernel {description.name} in {description.path}: {description.problem}"
                )
        for kernel in kernels:
            problem = wrong_promise(kernel)
            if problem is not None:
                raise KernelError(problem)
        self._remote = {
            (description.op.name, description.name): description for description in kernels
        }

    def _know_ops(self, descriptions: Sequence[KernelDescription]) -> None:
        """Import the ops that the files define beside their kernels.

        The judge runs a user's file only if all of its kernels are of ops that it defines itself:
        then no other op is judged. Raises KernelError.
        """
        for file in self.files:
            own = [description for description in descriptions if description.path == str(file)]
            if all(description.op in OPS for description in own):
                continue
            shared = sorted({description.op for description in own if description.op in OPS})
            if shared:
                raise KernelError(
                    f"--kernels {file}: it defines an op, and has kernels of {', '.join(shared)} "
                    "too; give those a file of their own"
                )
            load_ops(file, "--kernels")


def _sizes(kernel: Kernel, case: Case) -> dict[str, int]:
    """Return the bytes of each output that the case has, in the op's order."""
    forms = kernel.op.forms(case)
    return {name: forms[name].nbytes for name in kernel.op.outputs if name in forms}
