"""A kernel that changes its process fails, and the next one never meets what it changed."""

from __future__ import annotations

import dataclasses
import importlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
from torch.overrides import BaseTorchFunctionMode

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.record import latest, read
from kernel_workbench.suites.sandbox.call import Call
from kernel_workbench.suites.sandbox.judge_side.workers import TaskError, Workers
from kernel_workbench.suites.sandbox.parcels import Parcel
from kernel_workbench.suites.sandbox.worker_side import process_state
from kernel_workbench.suites.sandbox.worker_side.in_process import InProcess
from kernel_workbench.suites.sandbox.worker_side.process_settings import SETTINGS
from tests import ROOT
from tests.builders.by_hand import kernel_of, run_on
from tests.builders.wrong_layer_norms import closed_form
from tests.mutants.cheats import MUTANTS
from tests.suites.sandbox.test_tasks import CASE, MODULE

_sound: Callable[..., object] = closed_form
_CANDIDATES = ROOT / "tests" / "candidates"
_OFFENDERS = [each.kernel for each in MUTANTS if each.rules == ("changed process state",)]

# The change that a call makes, and a part of what the report says of the change.
_CHANGES: dict[str, tuple[Callable[[], object], str]] = {
    "default dtype": (
        lambda: torch.set_default_dtype(torch.float64),
        "torch's default dtype at torch.float64, from torch.float32",
    ),
    "default device": (lambda: torch.set_default_device("meta"), "default device at meta, from"),
    "function mode": (lambda: BaseTorchFunctionMode().__enter__(), "torch function modes at 1"),
    "grad mode": (lambda: torch.set_grad_enabled(mode=False), "grad mode at False, from True"),
    "autocast": (
        lambda: torch.set_autocast_enabled("cpu", enabled=True),
        "autocast on cpu at True",
    ),
    "deterministic": (
        lambda: torch.use_deterministic_algorithms(mode=True, warn_only=True),
        "torch's deterministic algorithms at True",
    ),
    "matmul precision": (
        lambda: torch.set_float32_matmul_precision("medium"),
        "the precision of float32 products for all at medium, from highest",
    ),
    "tf32": (
        lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
        "the precision of float32 products",
    ),
    "tf32 by its newer name": (
        lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
        "the precision of float32 products cuda matmul at tf32, from ieee",
    ),
    "half sums": (
        lambda: setattr(
            torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False
        ),
        "torch's cublas_allow_bf16_reduced_precision_reduction at (False, ",
    ),
    "sdp": (
        lambda: torch.backends.cuda.enable_flash_sdp(enabled=False),
        "torch's flash_sdp at False",
    ),
    "cudnn": (lambda: setattr(torch.backends.cudnn, "benchmark", True), "cudnn_benchmark at True"),
    "threads": (
        lambda: torch.set_num_threads(torch.get_num_threads() + 1),
        "the number of torch's threads at",
    ),
    "denormals": (
        lambda: torch.set_flush_denormal(True),
        "flushing of denormals to zero at True",
    ),
    "random state": (lambda: torch.rand(3), "it changed torch's random state"),
    "NumPy's": (lambda: np.random.bytes(1), "it changed NumPy's random state"),  # noqa: NPY002
    "Python's": (random.random, "it changed Python's random state"),
    "knobs": (
        lambda: setattr(triton.knobs.language, "default_fp_fusion", False),
        "Triton's language.default_fp_fusion at False, from unset",
    ),
    "hooks": (
        lambda: triton.knobs.runtime.launch_enter_hook.add(print),
        "Triton's runtime.launch_enter_hook at (<built-in function print>,), from ()",
    ),
    "variable": (
        lambda: os.environ.update(LEAKED="1"),
        "the environment variable LEAKED at 1, from unset",
    ),
    "variable less": (lambda: os.environ.pop("PATH"), "environment variable PATH at unset, from /"),
    "folder": (lambda: os.chdir("/"), "the working directory at /, from"),
    "handler": (
        lambda: signal.signal(signal.SIGUSR1, lambda *_: None),
        "the handler of SIGUSR1 at <lambda>, from SIG_DFL",
    ),
    "alarm": (lambda: signal.alarm(1000), "the timer ITIMER_REAL at True, from False"),
}
# A change that a library or a kernel may make: it is undone too.
_LAWFUL: dict[str, Callable[[], object]] = {
    "allocator": lambda: triton.set_allocator(lambda *_: torch.empty(0)),
    "sys.path": lambda: sys.path.append("/elsewhere"),
    "recursion": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1),
    "errors": lambda: np.seterr(all="ignore"),
}


def _values() -> list[object]:
    return [each.meaning(each.read()) for each in SETTINGS]


def _kernel(change: Callable[[], object]) -> Kernel:
    def candidate(**arguments: torch.Tensor) -> object:
        change()
        return _sound(**arguments)

    return kernel_of(candidate, dtypes=(torch.float32,))


@pytest.fixture(autouse=True)
def _device_in_use(device: torch.device) -> None:
    """As it is by a kernel's first call: what a GPU's context sets is no change of the kernel's."""
    torch.empty(1, device=device)


@pytest.mark.parametrize("name", _CHANGES)
def test_change_of_the_process_fails_and_is_undone(name: str, device: torch.device) -> None:
    """One rule, one sentence that names what changed, and everything as it was."""
    change, told = _CHANGES[name]
    before = _values()
    row = run_on(device).try_pair(_kernel(change), CASE)
    assert row.rule == "changed process state"
    assert told in (row.reason or "")
    assert _values() == before


@pytest.mark.parametrize("name", _LAWFUL)
def test_lawful_change_of_the_process_passes_and_is_undone(name: str, device: torch.device) -> None:
    """A library that is used for the first time, and an allocator that a launch needs."""
    before = _values()
    row = run_on(device).try_pair(_kernel(_LAWFUL[name]), CASE)
    assert row.status == "passed", row.reason
    assert _values() == before


def test_variable_that_a_library_sets_when_it_is_imported_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    """At the first call; it is there at the second one too, and nowhere else."""
    (tmp_path / "lazy_library.py").write_text("import os; os.environ['LAZY_LIBRARY'] = '1'")
    monkeypatch.setattr(
        process_state, "_settings_of_file", {}
    )  # what this file's kernels have set so far
    monkeypatch.syspath_prepend(tmp_path)
    found = []

    def imports() -> None:
        importlib.import_module("lazy_library")
        found.append(os.environ["LAZY_LIBRARY"])

    row = run_on(device).try_pair(_kernel(imports), CASE)
    assert row.status == "passed", row.reason
    assert len(found) > 1
    assert "LAZY_LIBRARY" not in os.environ


def _undone_by_itself() -> None:
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = allowed
    with torch.no_grad(), torch.autocast("cpu"), torch.random.fork_rng(), torch.device("cpu"):
        torch.rand(3)


def test_change_that_a_kernel_undoes_itself_passes(device: torch.device) -> None:
    """Nothing is left of it, whatever PyTorch makes of a flag that is set to what it was."""
    row = run_on(device).try_pair(_kernel(_undone_by_itself), CASE)
    assert row.status == "passed", row.reason


def test_change_by_a_kernel_that_raises_is_undone(device: torch.device) -> None:
    """It fails for what it raised."""

    def fails() -> None:
        torch.set_default_dtype(torch.float64)
        raise ValueError("no")

    before = _values()
    row = run_on(device).try_pair(_kernel(fails), CASE)
    assert row.rule == "raised"
    assert _values() == before


def test_process_is_spent_where_a_change_cannot_be_undone() -> None:
    """As inference mode, which ends with a guard that the kernel holds."""
    entered = torch.inference_mode()
    changes = process_state.StateChanges()
    with process_state.kept("a file", changes):
        entered.__enter__()
    entered.__exit__(None, None, None)
    assert changes.spent
    assert "torch's inference mode at True, from False" in (changes.broken or "")


@pytest.fixture(scope="module")
def workers(device: torch.device) -> Iterator[Workers]:
    """Workers that know a file for each offender, and a witness of what they leave."""
    files = [_CANDIDATES / "cheats" / f"{each}.py" for each in _OFFENDERS]
    files += [_CANDIDATES / "leaking_kernels.py", _CANDIDATES / "state_witness.py"]
    made = Workers(device, 90, files=tuple(files), tasks=(MODULE,))
    yield made
    made.close()


def _named(workers: Workers, name: str) -> Kernel:
    return next(each for each in workers.kernels() if each.name == name)


def _parcel(workers: Workers, case: Case = CASE) -> Parcel:
    return Parcel.of(LAYER_NORM_BACKWARD.inputs(case, workers.device), workers.arena_device)


def _called(workers: Workers, name: str) -> Call:
    return workers.call(_named(workers, name), CASE, _parcel(workers), "nan")


def _process(workers: Workers) -> int:
    assert workers._worker is not None
    return workers._worker.pid


@pytest.mark.parametrize("offender", _OFFENDERS)
def test_next_kernel_in_a_worker_finds_the_state_as_it_was(offender: str, workers: Workers) -> None:
    """In the same worker, which need not end for it; nor does a task reach the next kernel."""
    assert _called(workers, "witness").rule is None
    before = _process(workers)
    assert _called(workers, offender).rule == "changed process state"
    assert _called(workers, "witness").reason is None
    settings = {"what": "call", "outputs": False}
    with pytest.raises(TaskError) as raised:
        workers.task(_named(workers, offender), CASE, [_parcel(workers)], MODULE, settings, 60.0)
    assert raised.value.rule == "changed process state"
    assert _called(workers, "witness").reason is None
    assert _process(workers) == before


def test_worker_ends_where_a_change_cannot_be_undone(workers: Workers) -> None:
    """The kernel fails for it, and the next one is called in another worker."""
    assert _called(workers, "witness").rule is None
    before = _process(workers)
    assert _called(workers, "enters_inference_mode").rule == "changed process state"
    assert _called(workers, "witness").reason is None
    assert _process(workers) != before


def test_head_of_a_file_holds_for_its_own_kernels_alone(workers: Workers) -> None:
    """TF32 and a variable that a file sets when it is imported, between calls of the witness."""
    assert _called(workers, "needs_its_head").reason is None
    assert _called(workers, "witness").reason is None
    assert _called(workers, "needs_its_head").reason is None


def test_what_a_variant_changes_is_undone(workers: Workers) -> None:
    """It is asked for in the worker, and is no part of the kernel."""
    kernel = _named(workers, "seeds_when_asked")
    assert workers.declared(kernel, CASE).variant == "seeded"
    assert _called(workers, "witness").reason is None


def test_what_inputs_change_when_they_are_let_go_of_is_undone(workers: Workers) -> None:
    """That is when those of the next call are there: it finds the process as it was."""
    assert _called(workers, "seeds_when_inputs_go").reason is None
    assert _called(workers, "witness").reason is None


def test_kernel_is_not_blamed_for_a_lasting_change_that_an_earlier_one_left(
    workers: Workers,
) -> None:
    """Another worker makes the call."""
    assert _called(workers, "enters_inference_mode_when_inputs_go").reason is None
    assert _called(workers, "witness").reason is None


def test_launch_that_was_cut_off_fails_no_other_case(workers: Workers) -> None:
    """The state that the kernel keeps between calls is then as no whole launch leaves it."""
    if workers.device.type != "cpu":
        pytest.skip("the strict interpreter, which cuts it off, is for machines without a GPU")
    kernel = _named(workers, "reads_past_the_end_of_many_rows")
    assert _called(workers, kernel.name).reason is None
    case = dataclasses.replace(CASE, sizes=(("m", 4), ("n", 5)))
    assert workers.call(kernel, case, _parcel(workers, case), "nan").rule == "illegal access"
    assert _called(workers, kernel.name).reason is None


def test_baseline_that_changes_the_process_passes_and_is_undone(device: torch.device) -> None:
    """A library draws from PyTorch's random state, and isn't ours to judge."""
    drawing = dataclasses.replace(_kernel(lambda: torch.rand(3)), origin="baseline")
    before = _values()
    parcel = Parcel.of(LAYER_NORM_BACKWARD.inputs(CASE, device), device)
    assert InProcess(device, 90).call(drawing, CASE, parcel, "nan").rule is None
    assert _values() == before


@pytest.mark.parametrize("seconds", [0, 1])
def test_thread_of_a_pool_is_left_running_while_it_works(
    seconds: int, device: torch.device
) -> None:
    """One that waits for work does nothing, as those that PyTorch's compiler keeps."""
    pool = ThreadPoolExecutor(1)

    def submits() -> None:
        working = pool.submit(time.sleep, seconds)
        if not seconds:
            working.result()

    row = run_on(device).try_pair(_kernel(submits), CASE)
    pool.shutdown()
    assert row.rule == ("left running" if seconds else None), row.reason


_STOPS = """
import torch
from kernel_workbench import SOFTMAX_FORWARD, Domain, kernel

@kernel(SOFTMAX_FORWARD, Domain(dtypes=(torch.float32,)))
def stops(x):
    breakpoint()
    return x.softmax(-1) if len(x) == 0 else (x - x.amax(-1, True)).exp().div_(
        (x - x.amax(-1, True)).exp().sum(-1, keepdim=True)
    )
"""


def test_kernel_that_stops_in_a_debugger_keeps_its_verdict(tmp_path: Path) -> None:
    """Python's debugger leaves a handler of Ctrl-C behind, which isn't the kernel's doing."""
    file = tmp_path / "mine.py"
    file.write_text(_STOPS)
    case = "softmax_forward-m12-n64-float32-contiguous"
    words = (f"--kernels={file}", f"--case={case}", f"--results={tmp_path}", "--in-process", "-s")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "kernel_workbench/suites/accuracy",
            "--device=cpu",
            *words,
        ],
        cwd=ROOT,
        input="continue\n" * 20,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "(Pdb)" in done.stdout
    assert done.returncode == 0, done.stdout
    assert [row.status for row in read(latest(tmp_path)).rows] == ["passed"]
