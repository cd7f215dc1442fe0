"""Calls as a user makes them, in a process without the suites: the judge's side.

A candidate may be right only where the suite is imported. So one case of each dtype and kernel is
called once more by a program of a few lines (`user_script.py`), in a process that the run starts
anew and ends. The ancestors of that process reveal nothing of the suite either (`detached.py`).
"""

from __future__ import annotations

import base64
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from kernel_workbench.kernels.causes import is_fatal, with_cause
from kernel_workbench.kernels.registry import Kernel, home_of
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case, Inputs, OutputForm, dtype_name
from kernel_workbench.suites.sandbox.call import Call
from kernel_workbench.suites.sandbox.judge_side import waiting
from kernel_workbench.suites.sandbox.judge_side.detached import DetachedError, start_detached
from kernel_workbench.suites.sandbox.judge_side.worker_process import (
    EndedError,
    WorkerProcess,
    WorkersError,
)
from kernel_workbench.suites.sandbox.wire import Channel, ClosedError, Message

MOST_BYTES = 2**20  # of a case: this much travels as text within some tens of milliseconds
_START_S = 120.0
_NO_OUTPUTS = "what it sent are no outputs"


class _Sent(BaseModel):
    """An output in a reply."""

    model_config = ConfigDict(extra="forbid", strict=True)

    dtype: str
    shape: list[int]
    data: str

    def read(self, form: OutputForm) -> Tensor:
        """Return the tensor.

        Raises:
            ValueError: if dtype, shape or size differ from the form's.
        """
        data = base64.b64decode(self.data, validate=True)
        if (self.dtype, tuple(self.shape)) != (dtype_name(form.dtype), form.shape):
            raise ValueError
        if len(data) != form.nbytes:
            raise ValueError
        if not data:
            return torch.empty(form.shape, dtype=form.dtype)
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return content.view(form.dtype).view(form.shape)


class _Reply(BaseModel):
    """The result of a call: one of the three fields."""

    model_config = ConfigDict(extra="forbid", strict=True)

    outputs: list[_Sent | None] | None = None
    raised: str | None = None
    ended: int | None = None


class _PendingCall(NamedTuple):
    """A call that was sent, and when, by time.perf_counter."""

    kernel: Kernel
    case: Case
    inputs: Inputs
    at: float


@dataclass(slots=True)
class UsersProcess:
    """The process of a run's plain calls, if it is started.

    _pending: the call that was sent, while its answer is still to come
    """

    device: torch.device
    overlay: str | None = None
    files: tuple[str, ...] = ()
    _process: WorkerProcess | None = None
    _is_ready: bool = False
    _pending: _PendingCall | None = None

    def key(self) -> tuple[object, ...]:
        """Return what a process that waits has to have been started with."""
        return "users process", self.device.type, self.overlay

    def begin(self) -> None:
        """Start the process, or take one that waits; it imports modules while the judge goes on.

        Raises:
            WorkersError: if no process can be started.
        """
        self._take_waiting()
        if self._process is None or self._process.ended:
            try:
                keeper = start_detached("user_script.py")
            except DetachedError as error:
                raise WorkersError(str(error)) from error
            line = Channel(keeper.line)
            self._process = WorkerProcess(keeper, keeper.pid, line, keeper.output)
            self._is_ready = False
            first = {"id": 0, "device": self.device.type, "overlay": self.overlay}
            with suppress(ClosedError):  # the process has ended; the wait for its answer raises
                self._process.line.send(first)

    def _take_waiting(self) -> None:
        """Take the process that a warm judge started ahead, if this run has none."""
        if self._process is None:
            ready = waiting.take(self.key())
            if isinstance(ready, UsersProcess):
                self._process, ready._process = ready._process, None  # noqa: SLF001  (its own class)
                self._is_ready = False

    def end(self) -> None:
        """End the process, if one runs."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _files_of(self, kernel: Kernel) -> list[str]:
        """Return the kernel's file, and before it those of the run that define ops.

        A kernel of `backward()` of such an op needs the op's file, too. Return all files if another
        module defines the kernel.
        """
        if kernel.origin != "user":
            return []
        if kernel.path not in self.files:
            return list(self.files)
        homes = {str(home_of(name)) for name in OPS}
        before = self.files[: self.files.index(kernel.path)]
        return [*(file for file in before if file in homes), kernel.path]

    def ask(self, kernel: Kernel, case: Case, inputs: Inputs, memory_limit: int) -> bool:
        """Begin a call if the process can take one at once: it then runs beside a worker's call.

        The arguments are those of `call`.

        Returns:
            True if the call has begun; `answer` then has to follow.
        """
        self._take_waiting()
        process = self._process
        if process is None or process.ended or self._pending is not None:
            return False
        if not self._is_ready and not process.line.is_readable():
            return False
        try:
            self._send(kernel, case, inputs, memory_limit)
        except EndedError:
            return False  # `call` starts another process
        return True

    def call(
        self,
        kernel: Kernel,
        case: Case,
        inputs: Inputs,
        limit_s: float,
        memory_limit: int,
    ) -> Call:
        """Call the kernel on packed copies of the inputs.

        Args:
            kernel: the kernel.
            case: the case of the inputs.
            inputs: the arguments by name.
            limit_s: the call's time limit, in seconds.
            memory_limit: the most resident bytes of the process.

        Returns:
            The call, with its outputs on the device of the inputs.
        """
        started = time.perf_counter()
        if self._pending is not None:  # an interrupted call, whose reply would be taken for this
            self.end()
        try:
            self.begin()
            self._send(kernel, case, inputs, memory_limit)
        except EndedError as ended:
            return Call({}, time.perf_counter() - started, ended.rule, str(ended))
        return self.answer(limit_s, memory_limit)

    def _send(self, kernel: Kernel, case: Case, inputs: Inputs, memory_limit: int) -> None:
        """Wait until the process is ready, and send it the call. Raises EndedError."""
        assert self._process is not None
        if not self._is_ready:
            self._process.answer(_START_S, memory_limit)
            self._is_ready = True
        message: Message = {
            "op": kernel.op.name,
            "kernel": kernel.name,
            "files": self._files_of(kernel),
            "inputs": {name: _spelled(value) for name, value in inputs.items()},
        }
        self._process.ask(message)
        self._pending = _PendingCall(kernel, case, inputs, time.perf_counter())

    def answer(self, limit_s: float, memory_limit: int) -> Call:
        """Return the call that `ask` has begun; if the process was ended since, make it anew."""
        assert self._pending is not None
        (kernel, case, inputs, started), self._pending = self._pending, None
        if self._process is None:
            return self.call(kernel, case, inputs, limit_s, memory_limit)
        home = next(value.device for value in inputs.values() if isinstance(value, Tensor))
        try:
            reply = _Reply.model_validate(self._process.answer(limit_s, memory_limit))
            outputs = _outputs(kernel, case, reply, home)
        except EndedError as ended:
            return Call({}, time.perf_counter() - started, ended.rule, str(ended))
        except (ValidationError, ValueError):
            return Call({}, time.perf_counter() - started, "wrong outputs", _NO_OUTPUTS)
        seconds = time.perf_counter() - started
        if reply.raised is not None:
            if is_fatal(reply.raised):
                self.end()
            return Call(
                {}, seconds, "raised", with_cause(f"it raised {reply.raised}", reply.raised)
            )
        if reply.ended is not None:
            how = f"it ended its process, with status {reply.ended}"
            return Call({}, seconds, "process ended", how)
        return Call(outputs, seconds)


def _spelled(value: object) -> object:
    """Return an argument in JSON."""
    if isinstance(value, tuple):
        return {"tuple": value}
    if not isinstance(value, Tensor):
        return value
    packed = value.detach().cpu().contiguous().view(-1)
    data = packed.view(torch.uint8).numpy().tobytes() if packed.numel() else b""
    return {
        "dtype": dtype_name(value.dtype),
        "shape": tuple(value.shape),
        "data": base64.b64encode(data).decode(),
    }


def _outputs(kernel: Kernel, case: Case, reply: _Reply, home: torch.device) -> dict[str, Tensor]:
    """Return the outputs by name; none if the call failed.

    Raises:
        ValueError: if they aren't the op's outputs.
    """
    if reply.raised is not None or reply.ended is not None:
        return {}
    forms, outputs = kernel.op.forms(case), {}
    for name, sent in zip(kernel.op.outputs, reply.outputs or (), strict=True):
        if (sent is None) != (name not in forms):
            raise ValueError
        if sent is not None:
            outputs[name] = sent.read(forms[name]).to(home)
    return outputs
