"""Call candidates in this process, for a debugger and for tests, with the interface of `Workers`.

A candidate that crashes ends the run, and it can read the judge's data. So all calls use the same
values, and no value is secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from kernel_workbench.kernels import cache_keys
from kernel_workbench.kernels.registry import Kernel, KernelError, wrong_promise
from kernel_workbench.oracles.op import Case, Inputs
from kernel_workbench.suites.interpreter import repairs, strict
from kernel_workbench.suites.sandbox.call import PLAIN, Call, Declared, Fill, How, declared
from kernel_workbench.suites.sandbox.parcels import Arena, Parcel, Unpacked
from kernel_workbench.suites.sandbox.worker_side import process_state, watch
from kernel_workbench.suites.sandbox.worker_side.allocations import see_compiled_code
from kernel_workbench.suites.sandbox.worker_side.candidate import call_candidate


def mend(device: torch.device, *, strictly: bool) -> tuple[str, ...]:
    """Prepare this process for calls of kernels.

    Args:
        device: the device of the calls.
        strictly: install the strict interpreter's checks on a CPU.

    Returns:
        The names of checks that aren't in force.

    Raises:
        InterpreterError: if this version of the interpreter can't be mended.
    """
    unchecked: tuple[str, ...] = ()
    if device.type == "cpu":
        repairs.install()
        unchecked = strict.install() if strictly else ()
    else:
        cache_keys.settle()
    watch.watch_launches(interpreted=device.type == "cpu")
    see_compiled_code()
    return unchecked


@dataclass(slots=True)
class InProcess:
    """Calls kernels in this process, with the interface of `judge_side.workers.Workers`."""

    device: torch.device
    sm: int
    files: tuple[Path, ...] = ()  # of a user
    _last: Inputs = field(default_factory=dict, init=False)

    @property
    def arena_device(self) -> torch.device:
        """The device on which inputs are packed."""
        return self.device

    def kernels(self) -> tuple[Kernel, ...]:
        """Return the kernels that the files register. Raises KernelError."""
        kernels = tuple(own for file in self.files for own in process_state.load_kept(file))
        for problem in filter(None, map(wrong_promise, kernels)):
            raise KernelError(problem)
        return kernels

    def refusal(self, kernel: Kernel, case: Case) -> str | None:
        """Return the sentence by which the kernel's domain rejects the case, or None."""
        return kernel.domain.reject(case, self.sm, self.device.type)

    def declared(self, kernel: Kernel, case: Case) -> Declared:
        """Return the kernel's declarations about a case that its domain accepts."""
        with process_state.kept(kernel.path, process_state.StateChanges()):
            return declared(kernel, case, self.sm)

    def call(
        self, kernel: Kernel, case: Case, parcel: Parcel, fill: Fill, how: How = PLAIN
    ) -> Call:
        """Call the kernel on the parcel's inputs; outputs are copies."""
        arena = Arena(torch.empty_like(parcel.content), {})
        unpacked = Unpacked(arena, parcel.put(arena), kernel.op.updates, self.device)
        # Kept until the next inputs exist, which must have other addresses.
        self._last = unpacked.arguments
        call = call_candidate(kernel, case, unpacked, fill, how)
        if call.rule is not None:
            return call
        unpacked.send_back()
        changed = parcel.changed(arena, kernel.op)
        return call if changed is None else replace(call, rule="changed input", reason=changed)

    def renew(self) -> None:
        """Free the inputs of the last call."""
        self._last = {}
