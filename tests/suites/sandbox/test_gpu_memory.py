"""A GPU whose memory is full, or that an error of a kernel has closed to the kernel's process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.op import Case, Inputs, Outputs
from kernel_workbench.reports.record import Record, latest, read
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.run import shards
from kernel_workbench.suites.run.suite import DeviceLostError, NoMemoryError
from kernel_workbench.suites.sandbox import parcels
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from kernel_workbench.suites.sandbox.parcels import Arena, Parcel, fitting, make_arena
from tests.builders.by_hand import kernel_of, run_on
from tests.builders.commands import run_python

pytestmark = pytest.mark.long_run

CPU = torch.device("cpu")
GIB = 2**30
_OP = LAYER_NORM_BACKWARD
_EAGER = next(each for each in all_kernels() if each.name == "torch_eager" and each.op is _OP)
_FULL = "CUDA out of memory. Tried to allocate 20.00 GiB"
_ILLEGAL = "CUDA error: an illegal memory access was encountered"
_KERNELS = """
import torch
from kernel_workbench import SOFTMAX_FORWARD, Domain, kernel

SERVED = Domain(dtypes=(torch.float32,), strides="contiguous")

def _softmax(x):
    x = (x - x.amax(-1, keepdim=True)).exp()
    return x / x.sum(-1, keepdim=True)

@kernel(SOFTMAX_FORWARD, SERVED)
def a_right(x):
    return _softmax(x)

@kernel(SOFTMAX_FORWARD, SERVED)
def b_fatal(x):
    if x.shape[0] > 64:
        raise RuntimeError("{illegal}")
    return _softmax(x)

@kernel(SOFTMAX_FORWARD, SERVED)
def c_right(x):
    return _softmax(x)
"""


def _case(n: int) -> Case:
    sizes = ("m", 3), ("n", n)
    return Case(op=_OP.name, sizes=sizes, dtype=torch.float32, weight_dtype=torch.float32)


def _parcel(n: int) -> tuple[Case, Parcel, Inputs]:
    inputs = _OP.inputs(_case(n), CPU)
    return _case(n), Parcel.of(inputs, CPU), inputs


@pytest.fixture
def workers() -> Iterator[Workers]:
    """Workers whose arenas hold 16 MiB at least."""
    made = Workers(CPU, 90)
    yield made
    made.close()


class _Full:
    """Raises as PyTorch's allocator does, at the first `times` arenas of more than `most` bytes."""

    def __init__(self, times: int, most: int = 0) -> None:
        self.left, self.most = times, most

    def __call__(self, nbytes: int, device: torch.device) -> Arena:
        if self.left and nbytes > self.most:
            self.left -= 1
            raise torch.OutOfMemoryError(_FULL)
        return make_arena(nbytes, device)


def test_arena_that_finds_no_memory_leaves_no_closed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call that asked for less took the closed one, of 0 bytes, for its own."""
    arenas: dict[str, Arena] = {}
    first = fitting(arenas, 2**20, CPU, "cpu")
    monkeypatch.setattr(parcels, "make_arena", _Full(1))
    with pytest.raises(torch.OutOfMemoryError):
        fitting(arenas, 2 * first.nbytes, CPU, "cpu")
    assert arenas == {}
    again = fitting(arenas, 2**20, CPU, "cpu")
    assert again.at(0, 2**20).numel() == 2**20
    assert arenas == {"cpu": again}


def test_call_that_finds_no_memory_gets_what_workers_hold(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An arena that a worker has opened is free once the worker has ended."""
    small, parcel, _ = _parcel(5)
    assert workers.call(_EAGER, small, parcel, "nan").rule is None
    large, parcel, inputs = _parcel(2**20)
    full = _Full(1)
    monkeypatch.setattr(parcels, "make_arena", full)
    call = workers.call(_EAGER, large, parcel, "nan")
    assert (call.rule, full.left) == (None, 0)
    expected = _EAGER.function(**inputs)
    assert isinstance(expected, tuple)
    assert all(map(torch.equal, call.outputs.values(), expected))


def test_memory_that_the_suite_lacks_in_a_worker_is_no_failure_of_a_kernel(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker lacks memory to copy inputs and outputs: the judge hears of it, and starts anew."""
    case, parcel, _ = _parcel(5)
    assert workers.call(_EAGER, case, parcel, "nan").rule is None
    with monkeypatch.context() as patch:
        patch.setattr(Workers, "_exchange", lambda *_: {"no_memory": _FULL})
        with pytest.raises(torch.OutOfMemoryError, match="in the kernel's process: CUDA out of"):
            workers.call(_EAGER, case, parcel, "nan")
    assert workers._worker is not None
    assert workers._worker.ended
    assert workers.call(_EAGER, case, parcel, "nan").rule is None


@pytest.mark.parametrize("times", [1, 100])
def test_pair_without_memory_is_tried_again_and_then_incomplete(
    times: int, workers: Workers
) -> None:
    """All that can be is given back in between, and the next pair is judged as ever."""
    run = Run(CPU, 90, workers=workers, processes=12)
    asked = []

    def oracle(case: Case, inputs: Inputs) -> Outputs:
        asked.append(case)
        if len(asked) <= times:
            raise torch.OutOfMemoryError(_FULL)
        return _OP.oracle(case, inputs)

    kernel = replace(_EAGER, op=replace(_OP, oracle=oracle))
    if times > 1:
        with pytest.raises(NoMemoryError, match="beside 11 other processes of this run"):
            run.try_pair(kernel, _case(5))
        assert len(asked) == 2
    else:
        assert run.try_pair(kernel, _case(5)).status == "passed"
    assert run.try_pair(_EAGER, _case(7)).status == "passed"


def _raises(error: Exception) -> Kernel:
    def candidate(**_: object) -> object:
        raise error

    return kernel_of(candidate)


def test_kernel_that_finds_no_memory_fails_where_it_has_the_gpu_to_itself() -> None:
    """Beside other processes nobody can tell whose memory it is."""
    kernel = _raises(torch.OutOfMemoryError(_FULL))
    alone, beside = run_on(CPU), run_on(CPU)
    beside.processes = 2
    row = alone.try_pair(kernel, _case(5))
    assert (row.status, row.rule) == ("failed", "raised")
    with pytest.raises(NoMemoryError, match="run it again with --jobs 1"):
        beside.try_pair(kernel, _case(5))


def test_gpu_is_lost_only_where_it_does_not_answer_the_judge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel's illegal access ends its own context; of the judge's nobody knows until it asks."""
    kernel, run = _raises(RuntimeError(_ILLEGAL)), run_on(CPU)
    row = run.try_pair(kernel, _case(5))
    assert (row.status, row.rule) == ("failed", "raised")
    monkeypatch.setattr(Run, "_answers", lambda _: False)
    with pytest.raises(DeviceLostError):
        run.try_pair(kernel, _case(5))


def test_processes_are_as_many_as_the_memory_holds() -> None:
    """On cards of 80 and of 140 GiB: small cases, some large ones, and large ones alone."""
    few = [10 * GIB] * 3 + [GIB // 10] * 500
    assert shards.fitting_jobs([], 80 * GIB) == shards.MOST_ON_GPU
    assert shards.fitting_jobs(few, 80 * GIB) == shards.MOST_ON_GPU
    assert shards.fitting_jobs([10 * GIB] * 500, 80 * GIB) == 6
    assert shards.fitting_jobs([10 * GIB] * 500, 140 * GIB) == 12
    assert shards.fitting_jobs([10 * GIB] * 500, 200 * GIB) == shards.MOST_ON_GPU
    assert shards.fitting_jobs([100 * GIB], 80 * GIB) == 1
    assert shards.fitting_jobs([], GIB) == 1


def _run(folder: Path, *words: str, **variables: str) -> tuple[int, str, Record]:
    file = folder / "mine.py"
    file.write_text(_KERNELS.replace("{illegal}", _ILLEGAL))
    command = ["-m", "kernel_workbench.suites.run", "accuracy", "--device=cpu", f"--kernels={file}"]
    command += ["--results", str(folder), "-k", "float32-contiguous", *words]
    ran = run_python(*command, variables=os.environ | variables)
    return ran.returncode, ran.stdout + ran.stderr, read(latest(folder))


def test_run_goes_on_where_a_kernel_ends_its_own_context(tmp_path: Path) -> None:
    """As after an illegal access on a GPU: each pair has its row, and the right kernels pass."""
    status, _, record = _run(tmp_path, "--jobs=1")
    assert (status, record.problem) == (1, None)
    of = {
        row.kernel: {each.status for each in record.rows if each.kernel == row.kernel}
        for row in record.rows
    }
    assert of == {"a_right": {"passed"}, "b_fatal": {"passed", "failed"}, "c_right": {"passed"}}
    assert all(_ILLEGAL in (row.reason or "") for row in record.rows if row.status == "failed")


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_run_goes_on_where_the_judge_finds_no_memory(jobs: str, tmp_path: Path) -> None:
    """A row says so, in whichever process; nothing is called the kernel's failure, or ours."""
    plugin, limit = ("-p", "tests.builders.little_memory"), {"WORKBENCH_TEST_LIMIT": "250000"}
    words = (f"--jobs={jobs}", "--kernel=a_right", *plugin)
    status, printed, record = _run(tmp_path, *words, **limit)
    assert status == 4, printed
    short = [row for row in record.rows if "too little memory" in (row.reason or "")]
    assert 0 < len(short) < len(record.rows)
    assert {row.status for row in short} == {"refused"}
    assert {row.status for row in record.rows if row not in short} == {"passed"}
    assert "INTERNALERROR" not in printed
    assert "The suite itself failed" not in printed
    assert f"the GPU had too little memory for {len(short)} rows" in (record.problem or "")
