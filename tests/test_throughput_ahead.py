"""Calls made ahead, in several processes."""

from __future__ import annotations

from pathlib import Path

import torch

from kernels.registry import all_kernels
from oracles import LAYER_NORM_BACKWARD
from oracles.op import Case
from suites.accuracy.workers import Workers
from suites.throughput.ahead import compile_ahead, compiles
from suites.throughput.rows import TASK

CHEATS = Path(__file__).resolve().parent / "timing_cheats"
CPU = torch.device("cpu")


def _case(m: int) -> Case:
    return Case(
        op=LAYER_NORM_BACKWARD.name,
        sizes=(("m", m), ("n", 8)),
        dtype=torch.float32,
        weight_dtype=torch.float32,
    )


def _workers() -> Workers:
    return Workers(CPU, 90, strict=False, files=(CHEATS / "by_content.py",), tasks=(TASK,))


def _children() -> set[str]:
    """Of this process."""
    return set(Path("/proc/thread-self/children").read_text().split())


def test_first_calls_are_told_pair_by_pair() -> None:
    """Seconds of each, whichever process made it; the processes are gone."""
    before = _children()
    one = _workers()
    try:
        (kernel,) = one.kernels()
    finally:
        one.close()
    pairs = [(kernel, _case(m)) for m in range(1, 7)]
    made = compile_ahead(pairs, CPU, _workers, processes=2)
    assert made.keys() == {(kernel.op.name, kernel.name, case.id()) for _, case in pairs}
    assert all(seconds > 0.003 for seconds in made.values())
    assert _children() <= before  # a test before may have left one of its own


def test_nothing_is_made_ahead_on_a_cpu_or_of_what_does_not_compile() -> None:
    """PyTorch's own kernels have been compiled for long."""
    kernels = {each.name: each for each in all_kernels() if each.op is LAYER_NORM_BACKWARD}
    assert compiles(kernels["row_persistent"])
    assert compiles(kernels["inductor"])
    assert not compiles(kernels["torch_native"])
    pairs = [(kernels["row_persistent"], _case(m)) for m in range(1, 9)]
    assert compile_ahead(pairs, CPU, _workers) == {}
    native = [(kernels["torch_native"], case) for _, case in pairs]
    assert compile_ahead(native, CPU, _workers, processes=2) == {}
