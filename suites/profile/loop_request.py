"""The judge's side of a loop: its GPU, its inputs, and the worker's report."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import partial

import torch
from pydantic import ValidationError

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case, Inputs, Op
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.profile.figures import Reply
from kernel_workbench.suites.profile.trials import Entry
from kernel_workbench.suites.run.descriptions import pci_bus_id
from kernel_workbench.suites.sandbox.judge_side.workers import TaskError, Workers
from kernel_workbench.suites.sandbox.parcels import Parcel
from kernel_workbench.suites.sandbox.wire import Message

LOOP = "kernel_workbench.suites.profile.loop"
_BATCH_S = 0.05  # short against a window, long against the host's time for a replay
_SETTLING_S = 120.0  # for a worker to compile and tune before it loops
_CONFIRMED_S = 0.1
_L2S = 2  # the bytes of a replay's calls exceed this many L2 caches, up to _MOST_SETS calls
_MOST_SETS = 8  # a small case would need thousands of sets to leave L2


@dataclass(frozen=True, slots=True)
class Card:
    """The profiled GPU."""

    uuid: str
    pci_bus_id: str | None
    sm: int
    l2_bytes: int


def card_of(device: torch.device) -> Card:
    """Return the card of a torch device; CUDA_VISIBLE_DEVICES may be anything."""
    properties = torch.cuda.get_device_properties(device)
    return Card(
        str(properties.uuid),
        pci_bus_id(properties),
        10 * int(properties.major) + int(properties.minor),
        int(properties.L2_cache_size),
    )


@dataclass(frozen=True, slots=True)
class Looping:
    """Loops an entry's kernel in a worker."""

    workers: Workers
    device: torch.device
    l2_bytes: int
    module: str

    def loop(self, entry: Entry, seconds: float) -> Reply:
        """Loop the entry for `seconds`, and return the worker's report. Raises TaskError."""
        parcels = self._parcels(entry)
        return self._looped(entry.kernel, entry.case, parcels, seconds, None)[0]

    def unconfirmed(self, run: Run, kernel: Kernel, case: Case) -> str | None:
        """Return why outputs of a loop are wrong, or None; `run` must have judged the kernel last.

        A secret seed changes signs of the inputs after the loop, and the looped calls run once
        more. Raises TaskError.
        """
        if not kernel.op.geometry(case).keys().isdisjoint(kernel.op.updates):
            return None  # a loop accumulates into its outputs
        seed = secrets.randbits(31)
        parcels = [run.parcel(kernel, case)]
        _, outputs = self._looped(kernel, case, parcels, _CONFIRMED_S, seed)
        if not outputs:
            return "it returned no outputs"
        return run.confirm(kernel, case, kernel.op.signs(case, seed).outputs(outputs))

    def _looped(
        self,
        kernel: Kernel,
        case: Case,
        parcels: list[Parcel],
        seconds: float,
        seed: int | None,
    ) -> tuple[Reply, dict[str, torch.Tensor]]:
        settings: Message = {"seconds": seconds, "batch_s": _BATCH_S, "seed": seed}
        limit_s = seconds + _SETTLING_S
        report, outputs = self.workers.task(kernel, case, parcels, self.module, settings, limit_s)
        try:
            reply = Reply.model_validate(report)
        except ValidationError as error:
            raise TaskError("process ended", "its process sent what no worker sends") from error
        if not reply.batches or any(calls < 1 for _, calls, _ in reply.batches):
            raise TaskError("process ended", "its process says that it made no calls")
        return reply, outputs

    def _parcels(self, entry: Entry) -> list[Parcel]:
        """Return enough copies of the inputs that no call finds its own in L2, at most 8.

        The inputs of a smaller case stay in L2.
        """
        op = OPS[entry.case.op]
        parcel = Parcel.of(op.inputs(entry.case, self.device), self.workers.arena_device)
        if entry.distribution == "zeros":
            parcel.change(partial(zero, op))
        sets = -(-_L2S * self.l2_bytes // max(1, op.bytes(entry.case)))
        return [parcel] * min(_MOST_SETS, sets)


def zero(op: Op, inputs: Inputs) -> None:
    """Set every floating-point operand to zero: the bits in a datapath then never change."""
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor) and name not in op.nonzero and value.is_floating_point():
            value.zero_()
