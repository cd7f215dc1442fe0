"""Calls as a user makes them, in a process that the suites aren't in: the judge's side.

A candidate may be right where the suite is imported, and nowhere else. So of each kernel one case
of each dtype is called once more by a program of a few lines (`user_script.py`), in a process that
was started anew for the run, and ends with it. Its ancestors tell nothing of the suite either
(detached.py).
"""

from __future__ import annotations

import base64
import time
from contextlib import suppress
from dataclasses import dataclass

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from kernel_workbench.kernels.registry import Kernel, home_of
from kernel_workbench.oracles.op import Case, Inputs, OutputForm, dtype_name
from kernel_workbench.suites.sandbox.call import Call, is_fatal
from kernel_workbench.suites.sandbox.judge_side import waiting
from kernel_workbench.suites.sandbox.judge_side.detached import DetachedError, start_detached
from kernel_workbench.suites.sandbox.judge_side.worker_process import (
    EndedError,
    WorkerProcess,
    WorkersError,
)
from kernel_workbench.suites.sandbox.wire import ClosedError, Line, Message

MOST_BYTES = 2**20  # of a case: what goes and comes as text in some tens of milliseconds
_START_S = 120.0
_NO_OUTPUTS = "what it sent are no outputs"


class _Sent(BaseModel):
    """An output."""

    model_config = ConfigDict(extra="forbid", strict=True)

    dtype: str
    shape: list[int]
    data: str

    def read(self, form: OutputForm) -> Tensor:
        """The tensor; raises ValueError where it isn't of that form."""
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
    """What came of a call: one of the three."""

    model_config = ConfigDict(extra="forbid", strict=True)

    outputs: list[_Sent | None] | None = None
    raised: str | None = None
    ended: int | None = None


@dataclass(slots=True)
class UsersProcess:
    """The process of a run, while there is one."""

    device: torch.device
    overlay: str | None = None
    files: tuple[str, ...] = ()
    _process: WorkerProcess | None = None
    _is_ready: bool = False

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return None if self._process is None else self._process.pid

    def key(self) -> tuple[object, ...]:
        """Return what a process that waits has to have been started with."""
        return "users process", self.device.type, self.overlay

    def begin(self) -> None:
        """Start it, or take one that waits; it imports what it needs while the judge goes on.

        Raises WorkersError.
        """
        if self._process is None:
            ready = waiting.take(self.key())
            if isinstance(ready, UsersProcess):
                self._process, ready._process = ready._process, None  # noqa: SLF001  (its own class)
                self._is_ready = False
        if self._process is None or self._process.ended:
            try:
                keeper = start_detached("user_script.py")
            except DetachedError as error:
                raise WorkersError(str(error)) from error
            line = Line(keeper.line)
            self._process = WorkerProcess(keeper, keeper.pid, line, keeper.output)
            self._is_ready = False
            first = {"id": 0, "device": self.device.type, "overlay": self.overlay}
            with suppress(ClosedError):  # it has ended, as the wait for its answer will find
                self._process.line.send(first)

    def end(self) -> None:
        """End it, if there is one."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _files_of(self, kernel: Kernel) -> list[str]:
        """The kernel's own, after the one that defines its op.

        All where it registers what another module defines.
        """
        if kernel.origin != "user":
            return []
        home = home_of(kernel.op.name)
        own = [kernel.path] if home is None else list(dict.fromkeys([str(home), kernel.path]))
        return own if kernel.path in self.files else list(self.files)

    def call(
        self,
        kernel: Kernel,
        case: Case,
        inputs: Inputs,
        limit_s: float,
        memory_limit: int,
    ) -> Call:
        """A call on packed copies of these inputs; its outputs are on their device."""
        started = time.perf_counter()
        message: Message = {
            "op": kernel.op.name,
            "kernel": kernel.name,
            "files": self._files_of(kernel),
            "inputs": {name: _spelled(value) for name, value in inputs.items()},
        }
        home = next(each.device for each in inputs.values() if isinstance(each, Tensor))
        try:
            self.begin()
            assert self._process is not None
            if not self._is_ready:
                self._process.answer(_START_S, memory_limit)
                self._is_ready = True
            reply = _Reply.model_validate(self._process.exchange(message, limit_s, memory_limit))
            outputs = _outputs(kernel, case, reply, home)
        except EndedError as ended:
            return Call({}, time.perf_counter() - started, ended.rule, str(ended))
        except (ValidationError, ValueError):
            return Call({}, time.perf_counter() - started, "wrong outputs", _NO_OUTPUTS)
        seconds = time.perf_counter() - started
        if reply.raised is not None:
            if is_fatal(reply.raised):
                self.end()
            return Call({}, seconds, "raised", f"it raised {reply.raised}")
        if reply.ended is not None:
            how = f"it ended its process, with status {reply.ended}"
            return Call({}, seconds, "process ended", how)
        return Call(outputs, seconds)


def _spelled(value: object) -> object:
    """An argument in JSON."""
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
    """By name. Raises ValueError where they aren't the op's."""
    if reply.outputs is None:
        return {}
    forms, made = kernel.op.forms(case), {}
    for name, sent in zip(kernel.op.outputs, reply.outputs, strict=True):
        if (sent is None) != (name not in forms):
            raise ValueError
        if sent is not None:
            made[name] = sent.read(forms[name]).to(home)
    return made
