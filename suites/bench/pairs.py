"""Which kernels meet which cases: all baselines, and of ours the one that dispatch takes.

The others of ours are timed when --kernel names them. Of a user's file every kernel is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from kernel_workbench.kernels.registry import Kernel, NoKernelError, choose
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.run.option_table import BenchOptions
from kernel_workbench.suites.run.selection import (
    alike_together,
    listed_as_served,
    of_ops_of_ours,
    selected_cases,
)
from kernel_workbench.suites.run.suite import Pair


def planned_pairs(
    options: BenchOptions,
    kernels: Sequence[Kernel],
    device: torch.device,
    sm: int,
    refusal: Callable[[Kernel, Case], str | None],
) -> list[Pair]:
    """What the options mean, case by case. Raises UsageError where that is nothing.

    refusal: why a kernel's domain doesn't hold a case; None where it does.
    """
    with_cases = {
        op: listed_as_served(
            OPS[op].workloads.timed(device.type)[:: 4 if options.quick else 1],
            [each for each in kernels if each.op.name == op],
            refusal,
            options.dtype,
        )
        for op in dict.fromkeys(each.op.name for each in kernels)
    }
    named = options.kernel or options.kernels or options.op or options.case or options.cases
    timed = [
        each
        for each in (kernels if named else of_ops_of_ours(kernels))
        if options.cases or with_cases[each.op.name]
    ]
    if not timed:
        raise pytest.UsageError(
            f"bench: no case of {', '.join(with_cases)} is timed by default here; bring your "
            "own by --cases=FILE"
        )
    planned = [
        (kernel, case)
        for case in selected_cases(options, device, timed, with_cases.__getitem__)
        for kernel in alike_together(_listed(case, kernels, options.kernel, device.type, sm))
        if kernel.origin != "baseline" or not options.no_baselines
    ]
    if not planned:
        raise pytest.UsageError(
            "bench: nothing is left to time: on a CPU PyTorch's own kernels are, and ours "
            "only by name"
        )
    return planned


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
