"""Compiled code that writes past the end of what was allocated through torch is found."""

from __future__ import annotations

import ctypes
import gc
import math
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles import SOFTMAX_FORWARD
from kernel_workbench.oracles.reference.cases import case_of
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.run.option_table import DEFAULT_SM
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from kernel_workbench.suites.sandbox.worker_side.allocations import fresh_memory
from kernel_workbench.suites.sandbox.worker_side.red_zones import GUARD, Guards
from tests import ROOT

_HERE = torch.device("cpu")
_ROWS = """
#include <math.h>
void rows(const float* x, float* y, long m, long n, long beyond) {
  for (long i = 0; i < m; ++i, x += n, y += n) {
    float most = x[0], sum = 0;
    for (long j = 0; j < n; ++j) most = isnan(x[j]) ? x[j] : fmaxf(most, x[j]);
    for (long j = 0; j < n; ++j) sum += expf(x[j] - most);
    for (long j = 0; j < n; ++j) y[j] = expf(x[j] - most) / sum;
  }
  for (long j = 0; j < beyond; ++j) y[j] = 0;
}
"""
_KERNELS = """
import ctypes
from pathlib import Path
import torch
from kernel_workbench import SOFTMAX_FORWARD, Domain, kernel

_library = ctypes.CDLL(str(Path(__file__).with_name("rows.so")))
_SERVED = Domain(dtypes=(torch.float32,), strides="contiguous")


def _rows(x, y, beyond):
    numbers = map(ctypes.c_long, (*x.shape, beyond))
    _library.rows(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), *numbers)
    return y


@kernel(SOFTMAX_FORWARD, _SERVED)
def within(x):
    return _rows(x, torch.empty_like(x), 0)


@kernel(SOFTMAX_FORWARD, _SERVED)
def past_the_end(x):
    return _rows(x, torch.empty_like(x), 1)
"""


def _broken(call: Callable[[], object], device: torch.device = _HERE) -> str | None:
    with fresh_memory(math.nan, device) as memory:
        kept = call()  # outputs live on
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    found = memory.guards.broken()
    del kept
    return found


def _written(made: Tensor, place: int, nbytes: int = 1) -> Tensor:
    """The tensor, after a write to bytes counted from its end, as compiled code writes."""
    end = made.data_ptr() + made.nbytes
    if made.is_cuda:
        torch.cuda.synchronize(made.device)
        driver, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64(end + place)
        assert not driver.cuMemsetD8_v2(address, ctypes.c_ubyte(7), ctypes.c_size_t(nbytes))
    else:
        ctypes.memset(end + place, 7, nbytes)
    return made


def _write(allocate: Callable[[torch.device], Tensor], device: torch.device, place: int) -> Tensor:
    return _written(allocate(device), place)


_ALLOCATED: dict[str, Callable[[torch.device], Tensor]] = {
    "empty": lambda device: torch.empty(3, 5, device=device),
    "empty in a half": lambda device: torch.empty(7, dtype=torch.float16, device=device),
    "empty of integers": lambda device: torch.empty(3, dtype=torch.int64, device=device),
    "empty_like": lambda device: torch.empty_like(torch.ones(3, 5, device=device).mT),
    "new_empty": lambda device: torch.ones(2, device=device).new_empty(9),
    "empty_strided": lambda device: torch.empty_strided((3, 4), (1, 3), device=device),
    "zeros": lambda device: torch.zeros(3, 5, device=device),
    "zeros_like": lambda device: torch.zeros_like(torch.ones(3, 5, device=device)),
    "ones": lambda device: torch.ones(6, device=device),
    "full": lambda device: torch.full((6,), 2.5, device=device),
    "new_full": lambda device: torch.ones(2, device=device).new_full((3,), 2.5),
}


@pytest.mark.parametrize("name", _ALLOCATED)
def test_write_past_the_end_of_what_torch_allocated_is_found(
    name: str, device: torch.device
) -> None:
    """A write is of one byte, next to the end or further on; the sentence has the shape."""
    allocate = _ALLOCATED[name]
    plain = allocate(device)
    assert _broken(lambda: allocate(device), device) is None
    assert _broken(lambda: _written(allocate(device), -1), device) is None
    for place in (0, 17, GUARD - 1):
        found = _broken(partial(_write, allocate, device, place), device)
        assert found == (
            f"it wrote past the end of a tensor of shape {tuple(plain.shape)} that it allocated: 1 "
            f"of the {GUARD} bytes behind the tensor have changed, the last of them {place + 1} "
            "bytes past the end"
        )


@pytest.mark.parametrize("name", _ALLOCATED)
def test_tensor_with_a_guard_is_as_without(name: str, device: torch.device) -> None:
    """Its form, its place and its numbers; only its storage is longer."""
    allocate = _ALLOCATED[name]
    plain = allocate(device)
    with fresh_memory(0.0, device) as memory:
        made = allocate(device)
    assert (made.shape, made.stride(), made.dtype) == (plain.shape, plain.stride(), plain.dtype)
    assert (made.storage_offset(), made.device) == (0, plain.device)
    assert not made._is_view()
    assert made.data_ptr() % (512 if made.is_cuda else 64) == 0
    if not name.startswith(("empty", "new_empty")):
        assert torch.equal(made, plain)
    if device.type == "cpu" and "like" not in name and "new" not in name:
        assert memory.peak_bytes == plain.untyped_storage().nbytes()
    assert made.untyped_storage().nbytes() == plain.untyped_storage().nbytes() + GUARD


def test_storage_that_is_taken_whole_is_left_to_its_kernel(device: torch.device) -> None:
    """A tensor that grows in place, or is made of all that a storage says it has."""

    def grown() -> Tensor:
        return torch.empty(4, device=device).resize_(6).fill_(1)

    def moved() -> Tensor:
        return torch.empty(4, device=device).resize_(6000).fill_(1)

    def shared() -> Tensor:
        storage = torch.empty(4, device=device).untyped_storage()
        return torch.empty(0, dtype=torch.uint8, device=device).set_(storage).fill_(1)

    assert [_broken(each, device) for each in (grown, moved, shared)] == [None] * 3


def test_nothing_is_guarded_where_nothing_is_allocated(device: torch.device) -> None:
    """Empty tensors have no guard, nor do results of operations, which torch writes itself."""
    with fresh_memory(0.0, device) as memory:
        none = torch.empty(0, 4, device=device)
        total = torch.ones(3, device=device) + 1
    assert none.untyped_storage().nbytes() == 0
    assert total.untyped_storage().nbytes() == 12
    assert memory.guards.broken() is None


def test_guards_are_counted_while_their_tensors_live(device: torch.device) -> None:
    """So that a GPU's counts of requests can leave them out: now, and at the peak."""
    gc.collect()  # what other tests left would be freed meanwhile
    before = Guards.every
    with fresh_memory(0.0, device) as memory:
        first = torch.empty(3, device=device)
        second = torch.zeros(3, device=device)
        assert (memory.guards.live, Guards.every - before) == (2 * GUARD, 2 * GUARD)
        del second
        third = torch.ones(3, device=device)
    guards = memory.guards
    assert (guards.live, guards.most, Guards.every - before) == (2 * GUARD,) * 3
    assert memory.kept_bytes([]) == first.nbytes + third.nbytes
    del first, third
    assert (guards.live, guards.most, Guards.every) == (0, 2 * GUARD, before)
    assert memory.kept_bytes([]) == 0


def test_read_past_the_end_is_nan(device: torch.device) -> None:
    """So that a sum which goes too far shows."""
    with fresh_memory(0.0, device):
        made = torch.zeros(3, device=device)
    storage = made.untyped_storage()
    assert torch.empty(0, device=device).set_(storage)[3:].isnan().all()


@pytest.fixture
def compiled(tmp_path: Path, device: torch.device) -> Path:
    """A user's file with a kernel in C, called by ctypes."""
    if device.type != "cpu":
        pytest.skip("it runs on the host")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler is here")
    source = tmp_path / "rows.c"
    source.write_text(_ROWS)
    library = tmp_path / "rows.so"
    command = [compiler, "-O1", "-shared", "-fPIC", str(source), "-o", str(library), "-lm"]
    subprocess.run(command, check=True)
    file = tmp_path / "rows_in_c.py"
    file.write_text(_KERNELS)
    return file


def test_kernel_in_c_that_writes_past_the_end_fails(compiled: Path) -> None:
    """By one element; its sound twin passes, and says that no launch of it was stubbed."""
    single = torch.float32, torch.float32
    case = case_of(SOFTMAX_FORWARD.name, {"m": 12, "n": 77}, single, "ci")
    workers = Workers(_HERE, DEFAULT_SM, files=(compiled,))
    try:
        run = Run(_HERE, DEFAULT_SM, workers=workers)
        rows = {each.name: run.try_pair(each, case) for each in workers.kernels()}
    finally:
        workers.close()
    assert (rows["within"].status, rows["within"].rule) == ("passed", None)
    (note,) = rows["within"].notes
    assert note.startswith("wasn't tried with its launches stubbed: ")
    wrong = rows["past_the_end"]
    assert (wrong.status, wrong.rule) == ("failed", "wrote out of bounds")
    assert wrong.reason is not None
    assert "a tensor of shape (12, 77) that it allocated: 4 of the 512 bytes" in wrong.reason


_INLINE = ROOT / "tests" / "candidates" / "kernels_in_cuda.py"


def test_kernel_in_cuda_that_writes_past_the_end_fails(device: torch.device) -> None:
    """By one element, in CUDA C++ built by torch; its sound twin passes."""
    if device.type != "cuda" or shutil.which("nvcc") is None:
        pytest.skip("a GPU and nvcc are needed")
    workers = Workers(device, 90, files=(_INLINE,), time_limit_s=300.0)
    single = torch.float32, torch.float32
    try:
        run = Run(device, 90, workers=workers)
        kernels = {each.name: each for each in workers.kernels()}
        for sizes in ({"m": 12, "n": 77}, {"m": 33, "n": 64}, {"m": 1, "n": 128}):
            case = case_of(SOFTMAX_FORWARD.name, sizes, single, "ci")
            sound = run.try_pair(kernels["within"], case)
            assert (sound.status, sound.rule) == ("passed", None)
            wrong = run.try_pair(kernels["past_the_end"], case)
            assert (wrong.status, wrong.rule) == ("failed", "wrote out of bounds")
    finally:
        workers.close()
