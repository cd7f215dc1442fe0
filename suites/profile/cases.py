"""What `nox -s profile` runs where nobody says: ours and its peers, each on a case of its op."""

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
# Above it arithmetic draws the power, which the values then change; below, memory does.
_FLOPS_A_BYTE = 50.0


def profiled_cases(
    options: ProfileOptions,
    device: torch.device,
    kernels: Sequence[Kernel],
    refusal: Callable[[Kernel, Case], str | None],
) -> tuple[Case, ...]:
    """This list's, of the kernels' ops; with --case any of bench's and of the op's own too.

    refusal: why a kernel's domain doesn't hold a case; None where it does.
    --cases' files take the place of all of these.
    """

    def of_op(op: str) -> tuple[Case, ...]:
        of_kernels = [each for each in kernels if each.op.name == op]
        profiled = OPS[op].workloads.profiled
        mine = listed_as_served(profiled, of_kernels, refusal, options.dtype)
        return (*mine, *OPS[op].workloads.timed("cuda"), *OPS[op].cases()) if options.case else mine

    named = options.kernel or options.kernels or options.op or options.cases
    with_cases = [
        each
        for each in (kernels if named else of_ops_of_ours(kernels))
        if options.cases or of_op(each.op.name)
    ]
    if not with_cases:
        ops = ", ".join(sorted({each.op.name for each in kernels}))
        raise pytest.UsageError(f"no case of {ops} is profiled by default; name one by --case")
    return selected_cases(options, device, with_cases, of_op)


def profiled_kernels(
    options: ProfileOptions, kernels: Sequence[Kernel], cases: Sequence[Case], sm: int
) -> dict[str, tuple[Kernel, ...]]:
    """By a case's id: all of the kernels where they were named, else ours that serves it and peers.

    Ours is the one that dispatch takes: the first in order that doesn't leave it to others.
    """
    if options.kernel or options.kernels:
        return {
            case.id(): tuple(each for each in kernels if each.op.name == case.op) for case in cases
        }
    chosen = {}
    for case in cases:
        of_op = [each for each in kernels if each.op.name == case.op]
        ours = [
            each
            for each in of_op
            if each.origin == "ours"
            and not each.op.left_out
            and each.left_to_others(case, sm) is None
        ]
        peers = [each for each in of_op if each.profiled]
        chosen[case.id()] = (*ours[:1], *peers)
    return chosen


def distributions_of(asked: Sequence[str], case: Case) -> tuple[Distribution, ...]:
    """What a case is looped on: those asked for; by default zeros too where arithmetic is most."""
    if asked:
        return tuple(each for each in DISTRIBUTIONS if each in asked)
    op = OPS[case.op]
    return DISTRIBUTIONS if op.flops(case) > _FLOPS_A_BYTE * op.bytes(case) else ("normal",)
