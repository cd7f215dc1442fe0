"""The default pairs of `profile`: our kernels and their peers, on cases of their op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import pytest
import torch

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.run.option_table import ProfileOptions
from kernel_workbench.suites.run.selection import listed_as_served, of_ops_of_ours, selected_cases

Distribution = Literal["normal", "zeros"]
DISTRIBUTIONS: tuple[Distribution, ...] = ("normal", "zeros")
# Above this ratio arithmetic draws most power, and values change it; below, memory does.
_FLOPS_A_BYTE = 50.0


def profiled_cases(
    options: ProfileOptions,
    device: torch.device,
    kernels: Sequence[Kernel],
    refusal: Callable[[Kernel, Case], str | None],
) -> tuple[Case, ...]:
    """Return the profiled cases of the kernels' ops; --case also selects bench's and the op's own.

    `refusal` returns why a kernel's domain rejects a case, or None. The files of --cases replace
    all of these cases.
    """

    def of_op(op: str) -> tuple[Case, ...]:
        of_kernels = [kernel for kernel in kernels if kernel.op.name == op]
        profiled = OPS[op].workloads.profiled
        mine = listed_as_served(profiled, of_kernels, refusal, options.dtype)
        return (*mine, *OPS[op].workloads.timed("cuda"), *OPS[op].cases()) if options.case else mine

    named = options.kernel or options.kernels or options.op or options.cases
    with_cases = [
        kernel
        for kernel in (kernels if named else of_ops_of_ours(kernels))
        if options.cases or of_op(kernel.op.name)
    ]
    if not with_cases:
        ops = ", ".join(sorted({kernel.op.name for kernel in kernels}))
        raise pytest.UsageError(f"no case of {ops} is profiled by default; name one by --case")
    return selected_cases(options, device, with_cases, of_op)


def profiled_kernels(
    options: ProfileOptions, kernels: Sequence[Kernel], cases: Sequence[Case], sm: int
) -> dict[str, tuple[Kernel, ...]]:
    """Return the kernels by case id: the named ones, else our kernel for the case and its peers.

    Our kernel is the one that dispatch takes: the first that doesn't leave the case to others.
    """
    if options.kernel or options.kernels:
        return {
            case.id(): tuple(one for one in kernels if one.op.name == case.op) for case in cases
        }
    chosen = {}
    for case in cases:
        of_op = [kernel for kernel in kernels if kernel.op.name == case.op]
        ours = [
            kernel
            for kernel in of_op
            if kernel.origin == "ours"
            and not kernel.op.left_out
            and kernel.left_to_others(case, sm) is None
        ]
        peers = [kernel for kernel in of_op if kernel.profiled]
        chosen[case.id()] = (*ours[:1], *peers)
    return chosen


def distributions_of(chosen: Sequence[str], case: Case) -> tuple[Distribution, ...]:
    """Return the chosen distributions; by default normal, and zeros where arithmetic dominates."""
    if chosen:
        return tuple(name for name in DISTRIBUTIONS if name in chosen)
    op = OPS[case.op]
    return DISTRIBUTIONS if op.flops(case) > _FLOPS_A_BYTE * op.bytes(case) else ("normal",)
