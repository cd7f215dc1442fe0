"""Calls of a kernel on given inputs, and the findings of relations and invariance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.op import Bound, Case, Inputs
from kernel_workbench.reports.record import Tried
from kernel_workbench.suites.accuracy import invariance, relations
from kernel_workbench.suites.run.option_table import DEFAULT_SM
from kernel_workbench.suites.sandbox.call import PLAIN, Call, How
from kernel_workbench.suites.sandbox.parcels import Parcel
from kernel_workbench.suites.sandbox.worker_side.in_process import InProcess


@dataclass(slots=True)
class OnCase:
    """A kernel and a case: the kernel's first call, and the means to call it again."""

    kernel: Kernel
    case: Case
    device: torch.device
    serves: Callable[[Case], bool] = lambda _: True
    called: list[Case] = field(default_factory=list)

    def call(self, case: Case, inputs: Inputs, how: How = PLAIN) -> Call:
        """Call the kernel on copies of the inputs."""
        self.called.append(case)
        parcel = Parcel.of(inputs, self.device)
        return InProcess(self.device, DEFAULT_SM).call(self.kernel, case, parcel, "nan", how)

    def bounds(self, case: Case, inputs: Inputs) -> dict[str, Bound]:
        """Return the kernel's bounds."""
        op = self.kernel.op
        return op.bound(case, inputs, op.oracle(case, inputs), self.kernel.numerics)

    def _first(self) -> tuple[Inputs, dict[str, Tensor]]:
        inputs = self.kernel.op.inputs(self.case, self.device)
        first = self.call(self.case, inputs)
        self.called.clear()
        assert first.rule is None, first.reason
        return inputs, first.outputs

    def related(self) -> tuple[Tried, ...]:
        """Return the findings of the case's relations."""
        inputs, outputs = self._first()
        return relations.examine(
            self.kernel, self.case, inputs, outputs, self.call, self.bounds, serves=self.serves
        )

    def invariance(self) -> invariance.Invariance:
        """Return the findings about the kernel's properties."""
        inputs, outputs = self._first()
        return invariance.examine(
            self.kernel, self.case, inputs, outputs, self.call, serves=self.serves
        )
