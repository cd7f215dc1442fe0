"""Calls of a kernel on inputs made by hand, and what relations and invariance say of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.registry import Kernel
from oracles.op import Bound, Case, Inputs
from reports.schema import Tried
from suites.accuracy import invariance, relations
from suites.accuracy.candidate import Call, call_candidate
from suites.accuracy.originals import Given, Originals


@dataclass(slots=True)
class OnCase:
    """A kernel and a case: the kernel's first call, and the means to call it again."""

    kernel: Kernel
    case: Case
    device: torch.device
    serves: Callable[[Case], bool] = lambda _: True
    called: list[Case] = field(default_factory=list)

    def call(self, case: Case, inputs: Inputs) -> Call:
        """A call on copies of the inputs."""
        self.called.append(case)
        arguments: Inputs = {
            name: each.clone() if isinstance(each, Tensor) else each
            for name, each in inputs.items()
        }
        updates = {}
        for name in self.kernel.op.updates:
            each = arguments.get(name)
            if isinstance(each, Tensor):
                updates[name] = each.view(each.shape), each.clone()
        given = Given(arguments, self.device, updates, ())
        return call_candidate(self.kernel, case, given, fill=math.nan)

    def call_told(self, case: Case, inputs: Inputs, count: int) -> tuple[Call, bool]:
        """Likewise, told of so many SMs; and whether it asked."""
        with invariance.told(count) as answer:
            return self.call(case, inputs), answer.asked

    def bounds(self, case: Case, inputs: Inputs) -> dict[str, Bound]:
        """The kernel's bounds."""
        op = self.kernel.op
        return op.bound(case, inputs, op.oracle(case, inputs), self.kernel.numerics)

    def _first(self) -> tuple[Inputs, dict[str, Tensor]]:
        originals = Originals(self.kernel.op, self.case, self.device)
        first = call_candidate(self.kernel, self.case, originals.give(), fill=math.nan)
        assert first.rule is None, first.reason
        return originals.read(), first.outputs

    def related(self) -> tuple[Tried, ...]:
        """What the case's relations say."""
        inputs, outputs = self._first()
        return relations.examine(
            self.kernel, self.case, inputs, outputs, self.call, self.bounds, serves=self.serves
        )

    def invariance(self) -> invariance.Invariance:
        """What the case says of the kernel's properties."""
        inputs, outputs = self._first()
        return invariance.examine(
            self.kernel,
            self.case,
            inputs,
            outputs,
            self.call,
            self.call_told,
            serves=self.serves,
        )
