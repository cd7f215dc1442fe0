"""Candidates called in this process, for a debugger and for tests: as `Workers` call them apart.

One that crashes ends the run, and what it finds here is the judge's. So values are the same at each
call, and none of them are secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from kernel_workbench.kernels.registry import Kernel, KernelError, wrong_promise
from kernel_workbench.oracles.op import Case, Inputs
from kernel_workbench.suites.interpreter import repairs, strict
from kernel_workbench.suites.sandbox.call import PLAIN, Call, Declared, Fill, How, declared
from kernel_workbench.suites.sandbox.parcels import Arena, Parcel, Unpacked
from kernel_workbench.suites.sandbox.worker_side import process_state, watch
from kernel_workbench.suites.sandbox.worker_side.allocations import see_compiled_code
from kernel_workbench.suites.sandbox.worker_side.candidate import call_candidate


def mend(device: torch.device, *, strictly: bool) -> tuple[str, ...]:
    """Make this process one that kernels can be called in; the checks that aren't in force.

    Raises InterpreterError where the interpreter is of a version that can't be mended.
    """
    unchecked: tuple[str, ...] = ()
    if device.type == "cpu":
        repairs.install()
        unchecked = strict.install() if strictly else ()
    watch.watch_launches(interpreted=device.type == "cpu")
    see_compiled_code()
    return unchecked


@dataclass(slots=True)
class InProcess:
    """What calls kernels of this process, with the interface of `judge_side.workers.Workers`."""

    device: torch.device
    sm: int
    files: tuple[Path, ...] = ()  # a user's
    _last: Inputs = field(default_factory=dict, init=False)

    @property
    def arena_device(self) -> torch.device:
        """Where inputs are packed."""
        return self.device

    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels that the files register. Raises KernelError."""
        kernels = tuple(own for file in self.files for own in process_state.load_kept(file))
        for problem in filter(None, map(wrong_promise, kernels)):
            raise KernelError(problem)
        return kernels

    def refusal(self, kernel: Kernel, case: Case) -> str | None:
        """Why the kernel's domain doesn't hold the case; None where it does."""
        return kernel.domain.reject(case, self.sm, self.device.type)

    def declared(self, kernel: Kernel, case: Case) -> Declared:
        """What the kernel says of a case that its domain holds."""
        with process_state.kept(kernel.path, process_state.Changes()):
            return declared(kernel, case, self.sm)

    def call(
        self, kernel: Kernel, case: Case, parcel: Parcel, fill: Fill, how: How = PLAIN
    ) -> Call:
        """Call the kernel on the parcel's inputs; outputs are copies."""
        arena = Arena(torch.empty_like(parcel.content), {})
        given = Unpacked(arena, parcel.put(arena), kernel.op.updates, self.device)
        # Kept until the next inputs are made: they must not lie where these do.
        self._last = given.arguments
        call = call_candidate(kernel, case, given, fill, how)
        if call.rule is not None:
            return call
        given.send_back()
        changed = parcel.changed(arena, kernel.op)
        return call if changed is None else replace(call, rule="changed input", reason=changed)

    def renew(self) -> None:
        """Let go of what the last call was given."""
        self._last = {}
