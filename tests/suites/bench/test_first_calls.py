"""Calls made ahead, in several processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.oracles import LAYER_NORM_BACKWARD, RMS_NORM_BACKWARD, reference
from kernel_workbench.oracles.layer_norm.cases import layer_norm_case
from kernel_workbench.oracles.op import Case
from kernel_workbench.oracles.reference import symmetries
from kernel_workbench.oracles.reference.cases import case_of
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.bench.first_calls import compile_ahead, compiles
from kernel_workbench.suites.bench.judged_pass import TASK
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from kernel_workbench.suites.sandbox.orphans import end_children
from tests import ROOT
from tests.builders.commands import wait_for

pytestmark = pytest.mark.long_run

CHEATS = ROOT / "tests" / "candidates" / "timing_cheats"
CPU = torch.device("cpu")


def _case(m: int) -> Case:
    return layer_norm_case(m, 8, (torch.float32, torch.float32))


def _workers() -> Workers:
    return Workers(CPU, 90, strict=False, files=(CHEATS / "by_content.py",), tasks=(TASK,))


def _children() -> set[str]:
    """Return the children of this process."""
    return set(Path("/proc/thread-self/children").read_text().split())


def test_first_calls_are_told_pair_by_pair() -> None:
    """Seconds of each, whichever process made it; the processes are gone."""
    one = _workers()
    try:
        (kernel,) = one.kernels()
    finally:
        one.close()
    before = _children()  # with the server that the tests' processes are forked from
    pairs = [(kernel, _case(m)) for m in range(1, 7)]
    asked: list[bool] = []

    def meanwhile(goes_on: Callable[[], bool]) -> None:
        asked.append(goes_on())
        wait_for(lambda: not goes_on())

    made = compile_ahead(pairs, CPU, _workers, _workers(), meanwhile=meanwhile, processes=2)
    assert asked == [True]
    assert made.keys() == {(kernel.op.name, kernel.name, case.id()) for _, case in pairs}
    assert all(seconds > 0 for seconds in made.values())
    wait_for(lambda: _children() <= before)  # a test before may have left one of its own


class _Asking:
    """Workers that ask what every task is told of the op, and call nothing."""

    arena_device = CPU

    def task(self, kernel: Kernel, *_: object) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        kernel.op.found_signs()
        return {"seconds": 1.0}, {}

    def close(self) -> None:
        """Nothing was started."""


def test_signs_are_looked_for_before_there_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search sets the default dtype for a while, by which inputs are drawn in other threads."""
    searched = []
    search = symmetries.symmetries

    def told(*given: Any) -> tuple[symmetries.Symmetry, ...]:  # noqa: ANN401
        searched.append(threading.current_thread())
        return search(*given)

    monkeypatch.setattr(symmetries, "symmetries", told)
    reference._symmetries.cache_clear()
    kernels = [each for each in all_kernels() if each.op is RMS_NORM_BACKWARD]
    kernel = next(each for each in kernels if compiles(each))
    cases = [
        case_of(kernel.op.name, {"m": m, "n": 8}, reference._SINGLE, "ci") for m in range(1, 9)
    ]
    pairs = [(kernel, case) for case in cases]
    made = compile_ahead(
        pairs, CPU, cast("Callable[[], Workers]", _Asking), cast("Workers", _Asking()), processes=2
    )
    assert len(made) == len(cases)
    assert searched == [threading.main_thread()]


class _Noting(_Asking):
    """Workers that note the calls of their process, each of which takes 10 ms."""

    def __init__(self, fails: type[Exception] | None = None) -> None:
        self.calls: list[str] = []
        self.fails = fails

    def task(self, kernel: Kernel, *_: object) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        self.calls.append(kernel.name)
        time.sleep(0.01)
        if self.fails is not None:
            raise self.fails("no memory")
        return {"seconds": 1.0}, {}


def _peers(*names: str) -> list[tuple[Kernel, Case]]:
    """Return six cases of each peer."""
    kernel = next(each for each in all_kernels() if each.op is LAYER_NORM_BACKWARD)
    kernels = [replace(kernel, name=name, origin="baseline") for name in names]
    return [(kernel, _case(m)) for kernel in kernels for m in range(1, 7)]


def test_process_that_times_plans_while_others_compile() -> None:
    """Its own plans are in its memory alone; it stops when the others have ended."""
    timing = _Noting()

    def meanwhile(goes_on: Callable[[], bool]) -> None:
        wait_for(lambda: bool(timing.calls) or not goes_on())

    made = compile_ahead(
        _peers("inductor", "torch_cudnn", "cudnn"),
        CPU,
        lambda: cast("Workers", _Noting()),
        cast("Workers", timing),
        meanwhile=meanwhile,
        processes=2,
    )
    every = ["cudnn"] * 6 + ["torch_cudnn"] * 6  # the slower ones first
    assert timing.calls
    assert timing.calls == every[: len(timing.calls)]
    assert sum(name == "inductor" for _, name, _ in made) == 6
    assert len(made) == 6 + len(timing.calls)


def test_call_without_memory_is_left_to_its_row() -> None:
    """It ends neither its process nor the run."""
    timing = _Noting(torch.OutOfMemoryError)
    made = compile_ahead(
        _peers("inductor", "cudnn"),
        CPU,
        lambda: cast("Workers", _Noting(torch.OutOfMemoryError)),
        cast("Workers", timing),
        processes=2,
    )
    assert made == {}


_SLOW = """
import pathlib, time
import torch
from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel

@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))
def slow(dy, x, weight, mean, rstd):
    '''Compiles for ten minutes.'''
    marker = pathlib.Path(__file__).with_suffix(f".{dy.shape[0]}")
    marker.touch()
    time.sleep(600)
    marker.with_name("waited").touch()
"""


@pytest.mark.parametrize("when", ["as they start", "in their calls"])
def test_interrupt_ends_all_processes_at_once(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is waited for until it has started or its call is over."""
    file = tmp_path / "slow.py"
    file.write_text(_SLOW)

    def workers() -> Workers:
        return Workers(CPU, 90, strict=False, files=(file,), tasks=(TASK,))

    one = workers()
    try:
        (kernel,) = one.kernels()
    finally:
        one.close()
    before = _children()

    starting, prepare = threading.Event(), Workers.prepare

    def noted_prepare(workers: Workers) -> None:
        prepare(workers)
        starting.set()

    def interrupt() -> None:
        starting.wait()
        if when == "in their calls":
            wait_for(lambda: len(list(tmp_path.glob("slow.[0-9]*"))) >= 3)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Workers, "prepare", noted_prepare)
    threading.Thread(target=interrupt).start()
    pairs = [(kernel, _case(m)) for m in range(1, 9)]
    with pytest.raises(KeyboardInterrupt):
        compile_ahead(pairs, CPU, workers, workers(), processes=3)
    assert not (tmp_path / "waited").exists()
    end_children(frozenset(map(int, before)))
    assert _children() <= before


def test_truths_are_computed_while_kernels_compile() -> None:
    """Each case's truth is computed once; those of a user's kernel come after its calls."""
    ours = next(each for each in all_kernels() if each.name == "row_sharing")
    users = replace(ours, name="users", origin="user")
    rms_norm = next(each for each in all_kernels() if each.op is RMS_NORM_BACKWARD)
    traced = case_of(RMS_NORM_BACKWARD.name, {"m": 2, "n": 8}, reference._SINGLE, "ci")
    cases = [_case(m) for m in range(1, 6)]
    pairs = [(users, cases[0]), (replace(rms_norm, origin="ours"), traced)]
    pairs = [(ours, case) for case in cases[:3]] + pairs + [(ours, case) for case in cases[3:]]
    run = Run(CPU, 90)
    turns = iter((True, True, True, True, True, True, False))
    run.compute_ahead(pairs, lambda: next(turns), 2**20)
    assert run.ahead == {cases[1], cases[2], cases[3]}
    run.compute_ahead(pairs, lambda: True, 1)  # which is less than those three take
    assert run.ahead == {cases[1], cases[2], cases[3]}
    row = run.try_pair(ours, cases[1])
    assert row.status == "passed"
    assert run.ahead == {cases[2], cases[3]}


def test_nothing_is_made_ahead_on_a_cpu_or_of_what_does_not_compile() -> None:
    """PyTorch's own kernels have been compiled for long."""
    kernels = {each.name: each for each in all_kernels() if each.op is LAYER_NORM_BACKWARD}
    assert compiles(kernels["row_persistent"])
    assert compiles(kernels["inductor"])
    assert not compiles(kernels["torch_native"])
    pairs = [(kernels["row_persistent"], _case(m)) for m in range(1, 9)]
    assert compile_ahead(pairs, CPU, _workers, _workers()) == {}
    native = [(kernels["torch_native"], case) for _, case in pairs]
    assert compile_ahead(native, CPU, _workers, _workers(), processes=2) == {}
