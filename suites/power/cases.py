"""What `nox -s profile` runs where nobody says: eight kernels, each on a case of its op.

The cases are larger than any L2, and long enough that a loop of them is nothing but them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest
import torch

from kernels.registry import Kernel
from oracles import ATTENTION_BACKWARD, ATTENTION_FORWARD, LAYER_NORM_BACKWARD, OPS
from oracles.op import Case
from suites.selection import selected_cases
from suites.throughput.cases import bench_cases

Distribution = Literal["normal", "zeros"]
DISTRIBUTIONS: tuple[Distribution, ...] = ("normal", "zeros")
# Above it arithmetic draws the power, which the values then change; below, memory does.
_FLOPS_A_BYTE = 50.0

_HALF = torch.bfloat16
_HEADS = {"b": 4, "h_q": 16, "h_kv": 16, "s_q": 4096, "s_kv": 4096, "d": 128, "d_v": 128}
CASES: tuple[Case, ...] = (
    Case(
        op=LAYER_NORM_BACKWARD.name,
        sizes=(("m", 8192), ("n", 8192)),
        dtype=_HALF,
        weight_dtype=_HALF,
        tier="full",
    ),
    *(
        Case(op=op.name, sizes=tuple(_HEADS.items()), dtype=_HALF, weight_dtype=_HALF, tier="full")
        for op in (ATTENTION_FORWARD, ATTENTION_BACKWARD)
    ),
)
_PEERS = {
    LAYER_NORM_BACKWARD.name: ("torch_native",),
    ATTENTION_FORWARD.name: ("torch_cudnn", "torch_flash"),
    ATTENTION_BACKWARD.name: ("torch_cudnn", "torch_flash"),
}


def profiled_cases(config: pytest.Config, kernels: Sequence[Kernel]) -> tuple[Case, ...]:
    """This list's, of the kernels' ops; with --case any of bench's and of the op's own too.

    --cases' files take the place of all of these.
    """
    named, theirs = bool(config.getoption("--case")), bool(config.getoption("--cases"))

    def of_op(op: str) -> tuple[Case, ...]:
        mine = tuple(case for case in CASES if case.op == op)
        return (*mine, *bench_cases(op, "cuda"), *OPS[op].cases()) if named else mine

    with_cases = [each for each in kernels if theirs or of_op(each.op.name)]
    if not with_cases:
        ops = ", ".join(sorted({each.op.name for each in kernels}))
        raise pytest.UsageError(f"no case of {ops} is profiled by default; name one by --case")
    return selected_cases(config, with_cases, of_op)


def profiled_kernels(
    config: pytest.Config, kernels: Sequence[Kernel], cases: Sequence[Case], sm: int
) -> dict[str, tuple[Kernel, ...]]:
    """By a case's id: all of the kernels where they were named, else ours that serves it and peers.

    Ours is the one that dispatch takes: the first, in priority order, that doesn't refuse.
    """
    if config.getoption("--kernel") or config.getoption("--kernels"):
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
            and each.domain.reject(case, sm, "cuda") is None
        ]
        peers = [each for each in of_op if each.name in _PEERS.get(case.op, ())]
        chosen[case.id()] = (*ours[:1], *peers)
    return chosen


def distributions_of(asked: Sequence[str], case: Case) -> tuple[Distribution, ...]:
    """What a case is looped on: those asked for; by default zeros too where arithmetic is most."""
    if asked:
        return tuple(each for each in DISTRIBUTIONS if each in asked)
    op = OPS[case.op]
    return DISTRIBUTIONS if op.flops(case) > _FLOPS_A_BYTE * op.bytes(case) else ("normal",)
