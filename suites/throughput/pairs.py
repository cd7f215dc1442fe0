"""Which kernels meet which cases: all baselines, and of ours the one that dispatch takes.

The others of ours are timed when --kernel names them. Of a user's file every kernel is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from kernels.registry import Kernel, NoKernelError, choose
from oracles import OPS
from oracles.op import Case
from suites.selection import alike_together, selected_cases
from suites.throughput.cases import bench_cases
from suites.throughput.rows import INTERPRETED


@dataclass(slots=True)
class Pairs:
    """The kernels and cases of a run, and the pairs of them that are planned."""

    kernels: tuple[Kernel, ...]
    planned: tuple[tuple[Kernel, Case], ...]
    device: str
    _kernels: dict[str, Kernel] = field(default_factory=dict)
    _cases: dict[str, Case] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._kernels = {_name(each): each for each in self.kernels}
        self._cases = {case.id(): case for _, case in self.planned}

    @classmethod
    def selected(
        cls, config: pytest.Config, kernels: Sequence[Kernel], device: torch.device, sm: int
    ) -> Pairs:
        """What the options mean. Raises UsageError where that is nothing."""
        quick, named = config.getoption("--quick"), config.getoption("--kernel") or ()
        with_cases = {
            op: bench_cases(op, device.type, quick=quick)
            for op in dict.fromkeys(each.op.name for each in kernels)
        }
        theirs = bool(config.getoption("--cases"))
        timed = [each for each in kernels if theirs or with_cases[each.op.name]]
        if not timed:
            raise pytest.UsageError(
                f"bench: no case of {', '.join(with_cases)} is timed by default here; bring your "
                "own by --cases=FILE"
            )
        cases = selected_cases(config, timed, with_cases.__getitem__)
        planned = [
            (kernel, case)
            for case in cases
            for kernel in alike_together(_listed(case, kernels, named, device.type, sm))
            if kernel.origin != "baseline" or not config.getoption("--no-baselines")
        ]
        if not planned:
            raise pytest.UsageError(
                "bench: nothing is left to time: on a CPU PyTorch's own kernels are, and ours "
                "only by name"
            )
        chosen = dict.fromkeys(_name(kernel) for kernel, _ in planned)
        return cls(
            tuple(each for each in kernels if _name(each) in chosen), tuple(planned), device.type
        )

    def named(self, kernel: str, case: str) -> tuple[Kernel, Case]:
        """The pair that a test's parameters spell."""
        found = self._cases[case]
        return self._kernels[f"{found.op} {kernel}"], found

    def refusal(self, kernel: Kernel) -> str | None:
        """Why a kernel isn't timed on this device, whatever its domain says."""
        if self.device == "cpu" and kernel.origin == "ours":
            return INTERPRETED
        return None


def _name(kernel: Kernel) -> str:
    return f"{kernel.op.name} {kernel.name}"


def _listed(
    case: Case, kernels: Sequence[Kernel], named: Sequence[str], device: str, sm: int
) -> list[Kernel]:
    """A case's kernels, ours first."""
    mine = [each for each in kernels if each.op.name == case.op]
    ours = [each for each in mine if each.origin == "ours"]
    others = [each for each in mine if each.origin != "ours"]
    if named:
        return [*ours, *others]
    # A kernel for another kind of device has nothing to be refused for, case by case.
    others = [each for each in others if each.origin == "user" or device in each.domain.devices]
    if device == "cpu":
        return others
    try:
        first = [choose(OPS[case.op], case, sm, among=ours)]
    except NoKernelError:
        first = ours[:1]  # whose refusal is told
    return [*first, *others]
