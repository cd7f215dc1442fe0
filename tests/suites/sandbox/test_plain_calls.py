"""A kernel that has passed is called once more where nothing of the suites is imported."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.oracles import ATTENTION_FORWARD, LAYER_NORM_BACKWARD
from kernel_workbench.oracles.op import Case, Inputs
from kernel_workbench.reports.record import AccuracyRow
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.sandbox.call import Call
from kernel_workbench.suites.sandbox.judge_side import detached, worker_process
from kernel_workbench.suites.sandbox.judge_side.detached import start_detached
from kernel_workbench.suites.sandbox.judge_side.plain_calls import UsersProcess
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from kernel_workbench.suites.sandbox.wire import ClosedError
from tests.builders.python_server import ForkingPopen

pytestmark = pytest.mark.long_run

_CPU = torch.device("cpu")
_CASES = {
    each.id(): each
    for op in (LAYER_NORM_BACKWARD, ATTENTION_FORWARD)
    for each in op.cases()
    if each.tier == "ci"
}
_CASE = _CASES["layer_norm_backward-m37-n64-float32-contiguous"]
_FILE = """
import json, os, subprocess, sys, time

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


def closed_form(dy, x, weight, mean, rstd):
    x_hat = (x - mean[:, None]) * rstd[:, None]
    g = dy * weight
    c1, c2 = g.mean(1, keepdim=True), (g * x_hat).mean(1, keepdim=True)
    return (g - c1 - x_hat * c2) * rstd[:, None], (dy * x_hat).sum(0), dy.sum(0)


def is_alone():
    return not any(each.startswith("kernel_workbench.suites") for each in sys.modules)


def ancestors():
    process = os.getppid()
    while process:
        with open(f"/proc/{process}/cmdline") as file:
            yield process, file.read()
        with open(f"/proc/{process}/stat") as file:
            process = int(file.read().rpartition(")")[2].split()[1])


def _left(outputs):
    for setsid in (True, False):
        child = subprocess.Popen(["sleep", "600"], start_new_session=setsid)
        with open(os.environ["LOOKED"] + ".left", "a") as file:
            print(child.pid, file=file)
    return outputs


def _registered(name, elsewhere):
    def function(dy, x, weight, mean, rstd):
        outputs = closed_form(dy, x, weight, mean, rstd)
        return elsewhere(outputs) if is_alone() else outputs
    function.__name__ = name
    kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,), strides="contiguous"))(function)


def _look(outputs):
    seen = {"modules": sorted(sys.modules), "argv": sys.argv, "environ": sorted(os.environ)}
    seen |= {"ids": [os.getppid(), os.getpid()], "command": open("/proc/self/cmdline").read()}
    seen |= {"ancestors": list(ancestors())}
    with open(os.environ["LOOKED"], "a") as file:
        print(json.dumps(seen), file=file)
    return outputs


_registered("honest", lambda outputs: outputs)
_registered("looks", _look)
_registered("leaves_processes", _left)
_registered("raises", lambda _: 1 / 0)
_registered("crashes", lambda _: os.abort())
_registered("leaves", lambda _: os._exit(0))
_registered("hangs", lambda _: time.sleep(600))
_registered("exits", lambda _: sys.exit(3))
_registered("returns_less", lambda outputs: outputs[:2])
_registered("returns_halves", lambda outputs: tuple(each.half() for each in outputs))
_registered("returns_others", lambda outputs: tuple(2 * each for each in outputs))
_registered("sends_garbage", lambda outputs: (os.write(3, b"null\\n"), outputs)[1])
_registered("forges", lambda outputs: (os.write(3, b'{"id": 0, "outputs": []}\\n'), outputs)[1])
"""
_FATES = {
    "raises": ("raised", "it raised ZeroDivisionError: division by zero"),
    "crashes": ("process ended", "it ended its process, with status -6"),
    "leaves": ("process ended", "it ended its process, with status 0"),
    "hangs": ("time limit", "it didn't return within 1 s"),
    "exits": ("raised", "it raised SystemExit: 3"),
    "returns_less": ("wrong outputs", "what it sent are no outputs"),
    "returns_halves": ("wrong outputs", "what it sent are no outputs"),
    "returns_others": ("deterministic bound", "dx["),
    "sends_garbage": ("process ended", "its process hung up"),
    "forges": ("process ended", "its process answered what it wasn't asked"),
}


@pytest.fixture(scope="module", autouse=True)
def _started() -> Iterator[None]:
    """Start users' processes here, not by a fork: a Python of its own is what is asked about."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_process, "subprocess", subprocess)
        patch.setattr(detached, "subprocess", subprocess)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the kernels' file lies, and what they saw."""
    made = tmp_path_factory.mktemp("plain")
    (made / "mine.py").write_text(_FILE)
    return made


@pytest.fixture(scope="module")
def workers(folder: Path) -> Iterator[Workers]:
    """Yield the workers that all tests share: each start of theirs imports torch twice.

    A kernel that hangs has a limit of its own: sound calls may take as long as the machine needs.
    """
    answer = UsersProcess.answer

    def limited(script: UsersProcess, limit_s: float, memory_limit: int) -> Call:
        assert script._pending is not None
        return answer(
            script, 1.0 if script._pending.kernel.name == "hangs" else limit_s, memory_limit
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOKED", str(folder / "looked.jsonl"))
        patch.setattr(UsersProcess, "answer", limited)
        made = Workers(_CPU, 90, files=(folder / "mine.py",))
        yield made
        made.close()


@pytest.fixture(scope="module")
def tried(workers: Workers) -> Callable[[str], tuple[AccuracyRow, Workers]]:
    """Return a function that tries a kernel of the file, and returns its row and the workers."""

    def row_of(name: str) -> tuple[AccuracyRow, Workers]:
        kernel = next(each for each in workers.kernels() if each.name == name)
        run = Run(_CPU, 90, workers=workers, further=0.0)
        return run.try_pair(kernel, _CASE), workers

    return row_of


def test_nothing_of_the_suites_is_there(
    folder: Path, tried: Callable[[str], tuple[AccuracyRow, Workers]]
) -> None:
    """No module, no argument, no variable; each call in a child of one process."""
    for _ in range(2):
        row, _ = tried("looks")
        assert row.status == "passed", row.reason
    seen = [json.loads(each) for each in (folder / "looked.jsonl").read_text().splitlines()]
    (parent, child), (same, other) = (each["ids"] for each in seen)
    assert parent == same
    assert len({parent, child, other, os.getpid()}) == 4
    for each in seen:
        modules = {name.removeprefix("kernel_workbench.") for name in each["modules"]}
        roots = {name.partition(".")[0] for name in modules}
        assert not roots & {"suites", "reports", "tests", "pytest", "_pytest"}
        assert {"kernels", "oracles", "torch"} <= roots
        assert each["argv"] == ["-"]
        assert "suites" not in each["command"]
        assert not [name for name in each["environ"] if name.startswith(("PYTEST", "NOX"))]
        own = Path("/proc/self/cmdline").read_text()
        for ancestor, command in each["ancestors"]:
            assert ancestor != os.getpid()
            assert "suites" not in command
            assert command != own


def test_processes_that_a_call_leaves_end_with_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In groups of their own too, once the workers are closed: their keeper has adopted them."""
    monkeypatch.setenv("LOOKED", str(folder / "leaving"))
    workers = Workers(_CPU, 90, files=(folder / "mine.py",))
    kernel = next(each for each in workers.kernels() if each.name == "leaves_processes")
    inputs = LAYER_NORM_BACKWARD.inputs(_CASE, _CPU)
    assert workers.call_plainly(kernel, _CASE, inputs).rule is None
    left = [int(each) for each in (folder / "leaving.left").read_text().split()]
    assert len(left) == 2
    assert all(map(_is_running, left))
    workers.close()
    assert not any(map(_is_running, left))


def _is_running(process: int) -> bool:
    """Return True if the process is there and hasn't ended: nobody may have noted its end."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_process_ends_with_the_judge() -> None:
    """However the judge ends."""
    keeper = start_detached("user_script.py")
    assert _is_running(keeper.pid)
    keeper.line.close()  # as the system does for whoever is killed
    with pytest.raises(ClosedError):
        keeper.status_of(keeper.pid, 600.0)
    assert not _is_running(keeper.pid)


@pytest.mark.parametrize("name", _FATES)
def test_kernel_that_fails_without_the_suites_fails(
    name: str, tried: Callable[[str], tuple[AccuracyRow, Workers]]
) -> None:
    """However it does; and an honest one passes after it."""
    row, workers = tried(name)
    worker, (rule, words) = workers._worker, _FATES[name]
    assert row.rule == rule, row.reason
    assert row.reason is not None
    assert row.reason.startswith(f"called as a user calls it, without the suites: {words}")
    assert tried("honest")[0].status == "passed"
    assert workers._worker is worker


_OURS = {
    "row_persistent": "layer_norm_backward-m37-n64-{}-contiguous",
    "flash": "attention_forward-b2-h_q2-h_kv2-s_q37-s_kv41-d64-d_v64-{}-contiguous",
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", _OURS)
def test_our_kernels_are_as_right_there(name: str, dtype: str, workers: Workers) -> None:
    """In the halves too: the interpreter's arithmetic is the mended one."""
    case = _CASES[_OURS[name].format(dtype)]
    kernel = next(each for each in all_kernels() if each.name == name)
    _assert_alike(kernel, case, workers)


def test_options_and_added_gradients_come_through(workers: Workers) -> None:
    """Numbers, flags and tensors that are changed in place; an output that is None isn't sent."""
    options = {"accumulate", "no_bias"}
    case = next(
        each
        for each in _CASES.values()
        if each.op == LAYER_NORM_BACKWARD.name
        and options <= each.options
        and each.layout.name == "contiguous"
        and LAYER_NORM_BACKWARD.bytes(each) < 2**18
    )
    kernel = next(
        each
        for each in all_kernels()
        if each.op is LAYER_NORM_BACKWARD
        and each.origin == "ours"
        and each.domain.reject(case, 90, "cpu") is None
    )
    _assert_alike(kernel, case, workers)


def _assert_alike(kernel: Kernel, case: Case, workers: Workers) -> None:
    """The outputs of a plain call are those of a worker's, bit by bit."""
    run = Run(_CPU, 90, workers=workers)
    inputs: Inputs = kernel.op.inputs(case, _CPU)
    there = workers.call_plainly(kernel, case, inputs)
    here = workers.call(kernel, case, run.parcel(kernel, case), "nan")
    assert (there.rule, there.reason) == (None, None)
    assert list(there.outputs) == list(here.outputs) == list(kernel.op.forms(case))
    for name, each in here.outputs.items():
        assert torch.equal(there.outputs[name], each), name


def test_call_runs_beside_a_workers_call(workers: Workers) -> None:
    """One call at a time, and a reply that nobody waited for isn't taken for a later call's."""
    kernel = next(item for item in workers.kernels() if item.name == "honest")
    inputs = LAYER_NORM_BACKWARD.inputs(_CASE, _CPU)
    right = workers.call_plainly(kernel, _CASE, inputs)
    assert workers.ask_plainly(kernel, _CASE, inputs)
    assert not workers.ask_plainly(kernel, _CASE, inputs)
    beside = workers.answer_plainly()
    dy = inputs["dy"]
    assert isinstance(dy, torch.Tensor)
    assert workers.ask_plainly(kernel, _CASE, inputs | {"dy": 2.0 * dy})
    later = workers.call_plainly(kernel, _CASE, inputs)
    for call in (beside, later):
        assert call.rule is None
        assert all(torch.equal(call.outputs[name], right.outputs[name]) for name in right.outputs)


def test_process_that_is_not_ready_begins_no_call(folder: Path) -> None:
    """The judge doesn't wait for the process at its first row: the plain call comes later."""
    workers = Workers(_CPU, 90, files=(folder / "mine.py",))
    kernel = next(item for item in workers.kernels() if item.name == "honest")
    inputs = LAYER_NORM_BACKWARD.inputs(_CASE, _CPU)
    assert not workers.ask_plainly(kernel, _CASE, inputs)
    assert workers.call_plainly(kernel, _CASE, inputs).rule is None
    workers.close()


def test_process_ends_with_the_workers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is left when they are closed."""
    forking = SimpleNamespace(**vars(subprocess) | {"Popen": ForkingPopen})
    monkeypatch.setattr(worker_process, "subprocess", forking)
    workers = Workers(_CPU, 90, files=(folder / "mine.py",))
    kernel = next(each for each in workers.kernels() if each.name == "honest")
    inputs = LAYER_NORM_BACKWARD.inputs(_CASE, _CPU)
    assert workers.call_plainly(kernel, _CASE, inputs).rule is None
    process = workers.script._process
    assert process is not None
    assert _is_running(process.pid)
    workers.close()
    assert not _is_running(process.pid)
