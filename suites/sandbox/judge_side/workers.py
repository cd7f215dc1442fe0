"""The judge's side: candidates are called in a process apart, which may die without the judge.

A worker is forked by a server (`fork_server.py`), imports the user's files, and calls what it is
asked to. Where it ends, hangs or takes too much memory, the call fails with that for a reason, and
the next call gets another worker. What it says is checked before it is believed, and nothing that
it says is more than names, numbers and sentences; its outputs are as many bytes as the op's outputs
must have, copied out of memory that the judge owns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, NoReturn, ParamSpec, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from kernel_workbench.kernels.registry import Domain, Kernel, KernelError, load_ops, wrong_promise
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case, Inputs
from kernel_workbench.reports.record import Rule
from kernel_workbench.suites.sandbox.call import PLAIN, Call, Declared, Fill, How, declared
from kernel_workbench.suites.sandbox.judge_side.plain_calls import UsersProcess
from kernel_workbench.suites.sandbox.judge_side.shared_calls import SharedCalls
from kernel_workbench.suites.sandbox.judge_side.worker_process import (
    EndedError,
    ForkServer,
    WorkerProcess,
    free_memory,
)
from kernel_workbench.suites.sandbox.parcels import Arena, Parcel, aligned, fitting
from kernel_workbench.suites.sandbox.shared_sets import SetLayout
from kernel_workbench.suites.sandbox.wire import Message, spelled

_ASK_S = 60.0
_OTHER_OUTPUTS = "its process returned other outputs than the op's"
_NO_WORKER = "its process sent what no worker sends"
_MOST_RENEWED = 3  # workers, for one call
_MOST_ASKED = 256  # cases of which a message asks
_NOTHING_YET = 255  # a byte of which NaN is made in every floating-point type
# Errors after which a worker isn't used again: what is out of memory may still hold it.
SPENT = ("OutOfMemoryError", "MemoryError", "out of memory")


_P = ParamSpec("_P")
_T = TypeVar("_T")
_CALL, _ANSWERS = TypeAdapter(Call), TypeAdapter(list[Declared])  # what a worker may say of them


class _NoArenaError(Exception):
    """The worker can't open memory of the judge's GPU."""


class NoSharedMemoryError(RuntimeError):
    """The GPU's driver shares no memory between processes."""


class _StaleError(Exception):
    """The worker made no call: something that an earlier call left has replaced code in it."""


class TaskError(RuntimeError):
    """A task wasn't done; the message is a sentence about the kernel. rule: as in a verdict."""

    def __init__(self, rule: Rule, reason: str) -> None:
        super().__init__(reason)
        self.rule = rule


class Done(BaseModel):
    """What a worker says of a task."""

    model_config = ConfigDict(extra="forbid", strict=True)

    said: Message = {}
    outputs: list[str] = []
    raised: str | None = None
    rule: Rule = "raised"
    fatal: bool = False
    spent: bool = False


class Told(BaseModel):
    """What a worker says of a kernel that it has registered."""

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
    problem: str | None


def _elsewhere(**_: object) -> object:
    raise RuntimeError("this kernel is called in a worker")


# It refuses every case: the worker has the kernel's domain, and is asked.
_ELSEWHERE = Domain(dtypes=(torch.float32,), also=lambda _: "its domain is in a worker")


def told_kernel(told: Told, *, user: bool) -> Kernel:
    """The kernel as the judge knows it: its function and domain stay in the workers.

    Raises LookupError or ValueError where there is no such op, or part of one.
    """
    return Kernel(
        op=OPS[told.op].part(told.returns),
        name=told.name,
        domain=_ELSEWHERE,
        numerics=OPS[told.op].numerics(**told.numerics),  # type: ignore[arg-type]
        priority=told.priority,
        function=_elsewhere,
        origin="user" if user else told.origin,
        path=told.path,
        variants=lambda _: told.variants,
        wraps=told.wraps,
    )


@dataclass(slots=True)
class Workers:
    """The workers of a run, one at a time; `close` ends them.

    files      a user's, imported in each worker and nowhere else
    tasks      modules of the suites that `task` may name, imported before a user's files are
    overlay    a folder with a changed copy of `kernels/`, which then stands for the checkout's
    time_limit_s    for one call
    memory_limit    bytes that a worker may have resident; None: half of what is free at the start
    replaced   how many workers have ended before the run did
    arena_device    where inputs and outputs are handed over: on the GPU, if its driver lets two
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
    replaced: int = 0
    arena_device: torch.device = field(init=False)
    server: ForkServer | None = None
    script: UsersProcess = field(init=False)
    _worker: WorkerProcess | None = None
    _remote: dict[tuple[str, str], Kernel] = field(default_factory=dict)
    _answers: dict[tuple[str, str, Case], Declared] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arena_device = self.device
        overlay = None if self.overlay is None else str(self.overlay)
        files = tuple(str(each.resolve()) for each in self.files)
        self.script = UsersProcess(self.device, overlay, files)

    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels that the files, or the changed copy, register.

        Their functions and domains are in the workers: `call`, `declared` and `refusal` ask there.
        Raises KernelError where they can't be had, WorkersError where no worker can be.
        """
        if not self._remote:
            self._ready()
        return tuple(self._remote.values())

    def refusal(self, kernel: Kernel, case: Case) -> str | None:
        """Why the kernel's domain doesn't hold the case; None where it does."""
        if not self._is_remote(kernel):
            return kernel.domain.reject(case, self.sm, self.device.type)
        return self._answer(kernel, case).refusal

    def declared(self, kernel: Kernel, case: Case) -> Declared:
        """What the kernel says of a case that its domain holds."""
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
        """Call the kernel on the parcel's inputs; outputs are copies, on the run's device.

        then: the values that follow in the same memory (`How.then`), whose outputs are returned.
        """
        started = time.perf_counter()
        parcels = [parcel] if then is None else [parcel, then]
        if self.arena_device.type == "cpu":
            parcels = self._moved(parcels)
        try:
            try:
                call, arena, at = self._renewed(self._called, kernel, case, parcels, fill, how)
            except _NoArenaError:
                # The driver doesn't let two processes share memory: through the host, then.
                self.arena_device = torch.device("cpu")
                parcels = self._moved(parcels)
                call, arena, at = self._renewed(self._called, kernel, case, parcels, fill, how)
        except EndedError as ended:
            self.replaced += 1
            said = () if self._worker is None else self._worker.said
            said = said if len(said) > 1 else ()  # the last line is in the reason
            return Call({}, time.perf_counter() - started, ended.rule, str(ended), printed=said)
        call = replace(call, printed=() if self._worker is None else self._worker.said)
        if call.rule is None:
            outputs = self._outputs(kernel, case, arena, at, parcel.home)
            changed = parcels[0].changed(arena, kernel.op) if then is None else None
            rule = None if changed is None else "changed input"
            call = replace(call, outputs=outputs, rule=rule, reason=changed)
        if call.fatal or call.spent or any(each in (call.reason or "") for each in SPENT):
            self._end()
        return call

    def call_plainly(self, kernel: Kernel, case: Case, inputs: Inputs) -> Call:
        """Call the kernel as a user does, in a process without the suites: see plain_calls.py."""
        self._ready()
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
        """What a module's `run_task(kernel, case, inputs, device, settings)` returns in a worker.

        That is something in JSON, to be checked by whoever asked, and outputs of the kernel or
        none; inputs: of each parcel, in memory of its own, whether or not it is another parcel.
        Raises TaskError, in one sentence, where the kernel or its process fails.
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
            self.replaced += 1
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
        """Call the kernel on sets of inputs in the judge's memory, as long as the context lasts.

        The module's `run_passes` makes the calls. Raises TaskError, in one sentence, where the
        kernel or its process fails, OutOfMemoryError where the GPU has no memory for the sets, and
        NoSharedMemoryError where its driver shares none between processes.
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
            self.replaced += 1
            raise TaskError(ended.rule, str(ended)) from ended
        except BaseException:
            self._end()  # it waits for the next order
            raise
        finally:
            # Gigabytes, which the next truth needs: the worker has closed its view of them.
            if arena is not None:
                arena.close()
            if self._worker is not None:
                self._worker.arenas.pop("sets", None)
            if self.device.type == "cuda":
                torch.cuda.ipc_collect()
                torch.cuda.empty_cache()

    def _raise_for(self, reply: Message) -> NoReturn:
        """Raise what a reply of passes stands for that isn't ready for more."""
        if reply.keys() == {"no_memory"}:
            raise torch.OutOfMemoryError(f"in the kernel's process: {reply['no_memory']}")
        if reply.keys() == {"no_arena"}:
            raise NoSharedMemoryError
        self._check(self._done(reply))
        raise TaskError("process ended", _NO_WORKER)

    def _check(self, done: Done) -> None:
        """End a worker that isn't to be used again. Raises TaskError where the kernel failed."""
        reason = done.raised or ""
        if done.fatal or done.spent or any(word in reason for word in SPENT):
            self._end()
        if done.raised is not None:
            raise TaskError(done.rule, done.raised)

    def _done(self, reply: Message) -> Done:
        """Check what a worker says at the end of a task. Raises EndedError."""
        try:
            return Done.model_validate(reply)
        except ValidationError as error:
            self._end()
            raise EndedError("process ended", _NO_WORKER) from error

    def _moved(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        """Return the parcels on the arena's device; one that comes twice stays one."""
        moved = {id(parcel): parcel.to(self.arena_device) for parcel in parcels}
        return [moved[id(parcel)] for parcel in parcels]

    def prepare(self) -> None:
        """Start the server; the first worker has to wait less for it."""
        if self.server is None:
            self.server = ForkServer.start(self.device, strict=self.strict, tasks=self.tasks)

    def renew(self) -> None:
        """End the worker; the next call gets another one."""
        self.script.end()
        self._end()

    def close(self) -> None:
        """End the worker, the server and everything that they left."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None
        self.script.end()
        if self.server is not None:
            self.server.close()
            self.server = None

    def kill(self) -> None:
        """End them at once, from any thread: one that waits for an answer is told that none comes.

        That thread closes them.
        """
        server = self.server
        if server is not None:
            server.kill()

    def _is_remote(self, kernel: Kernel) -> bool:
        return (kernel.op.name, kernel.name) in self._remote

    def learn(self, kernel: Kernel, cases: Iterable[Case]) -> None:
        """Ask about cases in a few messages, before `refusal` and `declared` need the answers."""
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
        """Note what the kernel says of the cases; one that it has a problem with is asked alone."""
        question = {"do": "ask", "op": kernel.op.name, "kernel": kernel.name, "sm": self.sm}
        question |= {"cases": [spelled(case) for case in cases]}
        answers, problem = [], "what it says of the case is no answer"
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

    def _renewed(self, do: Callable[_P, _T], /, *given: _P.args, **named: _P.kwargs) -> _T:
        """Call `do`, once more in a new worker where an earlier call has replaced code in this one.

        Raises EndedError where that goes on, as with a process that a kernel has left elsewhere.
        """
        for _ in range(_MOST_RENEWED):
            with suppress(_StaleError):
                return do(*given, **named)
        raise EndedError("process ended", "code of its process was replaced before it was called")

    def _called(
        self, kernel: Kernel, case: Case, parcels: Sequence[Parcel], fill: Fill, how: How
    ) -> tuple[Call, Arena, int]:
        """Return the call, and where in which arena its outputs still are."""
        message: Message = {"do": "call", "fill": fill, "how": asdict(how)}
        said, arena, at = self._sent(kernel, case, parcels, message, self.time_limit_s)
        made = said.get("outputs")
        try:
            call = _CALL.validate_python(said | {"outputs": {}})
        except ValidationError as error:
            self._end()
            raise EndedError("process ended", _NO_WORKER) from error
        if call.rule is None and made != list(_sizes(kernel, case)):
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
            raise ValueError(f"{module} isn't among the modules that the workers were told of")
        message: Message = {
            "do": "task",
            "module": module,
            "settings": settings,
            "signs": kernel.op.found_signs(),
        }
        said, arena, at = self._sent(kernel, case, parcels, message, limit_s)
        done = self._done(said)
        if done.raised is not None:
            self._check(done)
        if done.outputs and done.outputs != list(_sizes(kernel, case)):
            self._end()
            raise EndedError("process ended", _OTHER_OUTPUTS)
        known = bool(done.outputs)
        outputs = self._outputs(kernel, case, arena, at, parcels[0].home) if known else {}
        if done.spent:
            self._end()
        return done.said, outputs

    def _sent(
        self,
        kernel: Kernel,
        case: Case,
        parcels: Sequence[Parcel],
        message: Message,
        limit_s: float,
    ) -> tuple[Message, Arena, int]:
        """The answer to a message about a kernel on these inputs, and where outputs are."""
        room = sum(map(aligned, _sizes(kernel, case).values()))
        through = parcels[0].device.type
        apart = {id(each): each for each in parcels}  # one that comes twice is sent once
        outputs_at = sum(each.nbytes for each in apart.values())
        before, arena = self._arena(outputs_at + room, parcels[0].device)
        sent, at = {}, 0
        for number, each in apart.items():
            sent[number] = each.put(arena, at)
            at += each.nbytes
        message |= {
            "op": kernel.op.name,
            "kernel": kernel.name,
            "is_baseline": kernel.origin == "baseline",
            "configuration": kernel.configuration,
            "case": spelled(case),
            "through": through,
            "inputs": [sent[id(each)] for each in parcels],
            "outputs_at": outputs_at,
        }
        arena.at(outputs_at, room).fill_(_NOTHING_YET)
        descriptors: tuple[int, ...] = ()
        if arena is not before:
            message["arena"], descriptors = arena.spec, arena.descriptors
        if arena.device.type == "cuda":
            torch.cuda.synchronize(arena.device)
        said = self._exchange(message, limit_s, descriptors)
        if said.keys() == {"no_memory"}:
            self._end()
            raise torch.OutOfMemoryError(f"in the kernel's process: {said['no_memory']}")
        if said.keys() == {"no_arena"} and through != "cpu":
            self._end()  # it lacks the arena that the judge has for it
            raise _NoArenaError
        return said, arena, outputs_at

    def _arena(
        self, nbytes: int, device: torch.device, name: str | None = None
    ) -> tuple[Arena | None, Arena]:
        """Return the worker's arena from before, and one with room for so many bytes.

        Where there is no memory, the worker's is given back first. Raises OutOfMemoryError.
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
        """Give back the GPU's memory that the workers and their arenas take."""
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
            held = arena.at(offset, nbytes).clone().view(form.dtype).view(form.shape)
            outputs[name] = held.to(home)
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
        """A worker, the last one or another, with the files imported."""
        if self._worker is not None and not self._worker.ended:
            return self._worker
        if self.memory_limit is None:
            self.memory_limit = free_memory() // 2
        if self.server is not None and self.server.process.poll() is not None:
            self.script.end()
            self.server.close()  # a candidate has killed it
            self.server = None
        self.prepare()
        assert self.server is not None
        message: Message = {
            "overlay": None if self.overlay is None else str(self.overlay),
            "files": [str(each) for each in self.files],
            "tasks": self.tasks,
            "sm": self.sm,
            "watched": True,
        }
        worker = self.server.fork(message)
        try:
            loaded = worker.answer(max(self.time_limit_s, _ASK_S), self.memory_limit)
            if "no_arena" in loaded and self.arena_device.type == "cuda":
                worker.end()
                self.arena_device = torch.device("cpu")
                worker = self.server.fork(message)
                loaded = worker.answer(max(self.time_limit_s, _ASK_S), self.memory_limit)
        except EndedError as ended:
            raise KernelError(f"{self._named()}: while it was imported, {ended}") from ended
        if "error" in loaded:
            worker.end()
            raise KernelError(str(loaded["error"]))
        self._worker = worker
        self._remember(loaded)
        return worker

    def _named(self) -> str:
        return "--kernels " + " ".join(map(str, self.files)) if self.files else "the kernels"

    def _remember(self, loaded: Message) -> None:
        """The kernels that a worker has registered, as the judge knows them from then on."""
        if self._remote:
            return
        try:
            told = [Told.model_validate(each) for each in loaded["kernels"]]
            self._know_ops(told)
            # A user's file doesn't say whose it is: a baseline's failures don't count.
            made = [told_kernel(each, user=self.overlay is None) for each in told]
        except (ValueError, LookupError, TypeError) as error:
            raise KernelError(f"{self._named()}: what it registers can't be read") from error
        for each in told:
            if each.problem is not None:
                raise KernelError(f"kernel {each.name} in {each.path}: {each.problem}")
        for kernel in made:
            problem = wrong_promise(kernel)
            if problem is not None:
                raise KernelError(problem)
        self._remote = {(each.op.name, each.name): each for each in made}

    def _know_ops(self, told: Sequence[Told]) -> None:
        """Import the ops that the files define beside their kernels: what is right, they say.

        Only of a file whose kernels are all of such ops is any code run here, where others' are
        judged. Raises KernelError.
        """
        for file in self.files:
            own = [each for each in told if each.path == str(file)]
            if all(each.op in OPS for each in own):
                continue
            known = sorted({each.op for each in own if each.op in OPS})
            if known:
                raise KernelError(
                    f"--kernels {file}: it defines an op, and has kernels of {', '.join(known)} "
                    "too; give those a file of their own"
                )
            load_ops(file, "--kernels")


def _sizes(kernel: Kernel, case: Case) -> dict[str, int]:
    """The bytes of each output that the case has, in the op's order."""
    forms = kernel.op.forms(case)
    return {name: forms[name].nbytes for name in kernel.op.outputs if name in forms}
