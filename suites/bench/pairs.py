"""The timed pairs: all baselines, and for each case the kernel of ours that dispatch takes.

--kernel names other kernels of ours. All kernels of a user's file are timed.
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
    """Return the pairs that the options select, case by case.

    Args:
        options: the options.
        kernels: the kernels to select from.
        device: the device.
        sm: the GPU generation, for example 90.
        refusal: returns the sentence by which a kernel's domain rejects a case, or None.

    Raises:
        UsageError: if no pair is left.
    """
    with_cases = {
        op: listed_as_served(
            OPS[op].workloads.timed(device.type)[:: 4 if options.quick else 1],
            [kernel for kernel in kernels if kernel.op.name == op],
            refusal,
            options.dtype,
        )
        for op in dict.fromkeys(kernel.op.name for kernel in kernels)
    }
    named = options.kernel or options.kernels or options.op or options.case or options.cases
    timed = [
        kernel
        for kernel in (kernels if named else of_ops_of_ours(kernels))
        if options.cases or with_cases[kernel.op.name]
    ]
    if not timed:
        raise pytest.UsageError(
            f"bench: no case of {', '.join(with_cases)} is timed by default here; give your own "
            "cases with --cases=FILE"
        )
    planned = [
        (kernel, case)
        for case in selected_cases(options, device, timed, with_cases.__getitem__)
        for kernel in alike_together(_listed(case, kernels, options.kernel, device.type, sm))
        if kernel.origin != "baseline" or not options.no_baselines
    ]
    if not planned:
        raise pytest.UsageError(
            "bench: no kernel is left to time: a CPU times PyTorch's own kernels, and ours "
            "only by name"
        )
    return planned


def _listed(
    case: Case, kernels: Sequence[Kernel], named: Sequence[str], device: str, sm: int
) -> list[Kernel]:
    """Return a case's kernels, ours first."""
    mine = [kernel for kernel in kernels if kernel.op.name == case.op]
    ours = [kernel for kernel in mine if kernel.origin == "ours"]
    peers = [kernel for kernel in mine if kernel.origin != "ours"]
    if named:
        return [*ours, *peers]
    # Leave out a kernel for another kind of device instead of refusing every case.
    peers = [
        kernel for kernel in peers if kernel.origin == "user" or device in kernel.domain.devices
    ]
    if device == "cpu":
        return peers
    try:
        first = [choose(OPS[case.op], case, sm, among=ours)]
    except NoKernelError:
        first = ours[:1]  # its row shows the refusal
    return [*first, *peers]
