"""Files that can't be imported and kernels that can't be built are left out; the rest is tried."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels.registry import KernelError
from kernel_workbench.reports.record import latest, read
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from tests.builders.commands import ACCURACY, run_python

pytestmark = pytest.mark.long_run

_HEAD = """
import ctypes, os, subprocess, time
from pathlib import Path

import torch

from kernel_workbench import SOFTMAX_FORWARD, Domain, built, kernel

SERVED = Domain(dtypes=(torch.float32,), strides="contiguous", sizes={"m": (1, 64), "n": (1, 512)})
"""
_BUILT = (
    _HEAD
    + r"""
SOURCE = '''
#include <cmath>
extern "C" void softmax(const float* x, float* y, long m, long n) {
  for (long i = 0; i < m; ++i, x += n, y += n) {
    float largest = -INFINITY, sum = 0;
    bool nan = false;
    for (long j = 0; j < n; ++j) { nan |= x[j] != x[j]; largest = std::fmax(largest, x[j]); }
    if (nan) largest = NAN;
    for (long j = 0; j < n; ++j) sum += std::exp(x[j] - largest);
    for (long j = 0; j < n; ++j) y[j] = std::exp(x[j] - largest) / sum;
  }
}
'''

def compiled(folder, source):
    with Path(__file__).with_name("count").open("a") as file:
        file.write("x")
    (folder / "softmax.cpp").write_text(source)
    command = ["g++", "-O1", "-shared", "-fPIC", "softmax.cpp", "-o", "softmax.so"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "softmax.so"

def library(folder):
    return compiled(folder, SOURCE)

def wrong_library(folder):
    return compiled(folder, SOURCE.replace("std::fmax", "std::fmaximum_of"))

def called(x, path):
    y = torch.empty_like(x)
    pointers = ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr())
    ctypes.CDLL(str(path)).softmax(*pointers, *map(ctypes.c_long, x.shape))
    return y

@kernel(SOFTMAX_FORWARD, SERVED, build=library)
def by_cpp(x):
    return called(x, built(library))

@kernel(SOFTMAX_FORWARD, SERVED, build=wrong_library)
def by_wrong_cpp(x):
    return called(x, built(wrong_library))

@kernel(SOFTMAX_FORWARD, SERVED)
def by_torch(x):
    raised = (x - x.amax(1, keepdim=True)).exp()
    return raised / raised.sum(1, keepdim=True)
"""
)
_RIGHT = (
    _HEAD
    + """
@kernel(SOFTMAX_FORWARD, SERVED)
def right(x):
    raised = (x - x.amax(1, keepdim=True)).exp()
    return raised / raised.sum(1, keepdim=True)
"""
)
_OTHER = (
    _HEAD
    + """
def long(folder):
    BUILD

@kernel(SOFTMAX_FORWARD, SERVED, build=long)
def other(x):
    return built(long)
"""
)


def _with_build(line: str) -> str:
    """Return the text of a file with one kernel, whose build is the line."""
    return _OTHER.replace("BUILD", line)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a user's files, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    return tmp_path


@pytest.fixture
def workers(folder: Path) -> Iterator[Workers]:
    """Workers of two files, the first of which each test writes."""
    (folder / "right.py").write_text(_RIGHT)
    files = folder / "other.py", folder / "right.py"
    with closing(Workers(torch.device("cpu"), 90, strict=False, files=files)) as made:
        yield made


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ here")
def test_run_of_two_processes_builds_once_and_leaves_out_what_it_cant(folder: Path) -> None:
    """One library is built once, a wrong one once; a file without its package costs no other."""
    (folder / "mine.py").write_text(_BUILT)
    (folder / "absent.py").write_text(f"import a_package_of_nobody\n{_RIGHT}")
    options = [f"--kernels={folder / name}" for name in ("absent.py", "mine.py")]
    few = ("--dtype=float32", "-k", "m1-", "--jobs=2", f"--results={folder}")
    ran = run_python(*ACCURACY, *options, *few)
    record = read(latest(folder))
    assert ran.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, ran.stdout + ran.stderr
    assert (folder / "count").read_text() == "xx"
    assert {row.kernel for row in record.rows} == {"by_cpp", "by_torch"}
    assert {row.status for row in record.rows} <= {"passed", "refused"}
    assert sum(row.status == "passed" for row in record.rows) > 1
    assert record.end is not None
    absent, wrong = record.end.problems
    assert "this machine lacks the package a_package_of_nobody; install it" in absent
    assert "(its kernels: right)" in absent
    assert f"kernel by_wrong_cpp in {folder / 'mine.py'}: its build failed" in wrong
    assert "error: " in wrong and "fmaximum_of" in wrong
    assert "2 parts of it couldn't be tried here" in ran.stdout


def test_hanging_build_leaves_its_kernel_out(workers: Workers, folder: Path) -> None:
    """It is ended with what it started, and the sentence names kernel and limit."""
    mark = folder / "mark"
    shell = f"subprocess.run(['sh', '-c', 'sleep 600; touch {mark}'])"
    (folder / "other.py").write_text(_with_build(shell))
    workers.build_limit_s = 1.0
    assert [kernel.name for kernel in workers.kernels()] == ["right"]
    (sentence,) = workers.left_out
    assert sentence.startswith(
        f"kernel other in {folder / 'other.py'}: its build failed: it didn't"
    )
    assert sentence.endswith("end within 1 s")


def test_build_that_ends_its_process_leaves_its_kernel_out(workers: Workers, folder: Path) -> None:
    """The next worker has the other kernels."""
    (folder / "other.py").write_text(_with_build("os._exit(7)"))
    assert [kernel.name for kernel in workers.kernels()] == ["right"]
    assert "it ended its process, with status 7" in workers.left_out[0]


def test_worker_that_may_not_build_leaves_its_kernel_out(workers: Workers, folder: Path) -> None:
    """A process of a run relies on the run's own builds."""
    workers.builds = False
    (folder / "other.py").write_text(_with_build("return 7"))
    assert [kernel.name for kernel in workers.kernels()] == ["right"]
    assert "the cache has no result of it" in workers.left_out[0]


def test_kernel_for_another_device_is_not_built(workers: Workers, folder: Path) -> None:
    """Its cases are refused, and this machine may lack the compiler that the build calls."""
    served = "Domain(dtypes=(torch.float32,), devices=('cuda',))"
    text = _with_build("raise OSError('nvcc')").replace(
        "(SOFTMAX_FORWARD, SERVED", f"(SOFTMAX_FORWARD, {served}"
    )
    (folder / "other.py").write_text(text)
    assert {kernel.name for kernel in workers.kernels()} == {"other", "right"}
    assert workers.left_out == ()


def test_only_kernel_that_cant_be_built_ends_the_run(folder: Path) -> None:
    """Nothing is left to try, so the sentence is an error."""
    file = folder / "other.py"
    file.write_text(_with_build("raise OSError('CUDA_HOME environment variable is not set.')"))
    made = Workers(torch.device("cpu"), 90, strict=False, files=(file,))
    with closing(made) as workers, pytest.raises(KernelError) as raised:
        workers.kernels()
    assert str(raised.value).startswith(f"kernel other in {file}: its build failed: ")
    assert "no CUDA toolkit is found" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("os._exit(3)", "while it was imported, it ended its process, with status 3"),
        ("raise RuntimeError('no numbers')", "importing it raised RuntimeError: no numbers"),
    ],
)
def test_file_whose_import_fails_costs_no_other_file(
    workers: Workers, folder: Path, text: str, words: str
) -> None:
    """By an error, or by the end of its process; kernels registered before count for nothing."""
    (folder / "other.py").write_text(_with_build("return 7") + text)
    assert [kernel.name for kernel in workers.kernels()] == ["right"]
    (sentence,) = workers.left_out
    assert sentence.startswith(f"--kernels {folder / 'other.py'}: ")
    assert words in sentence
    assert "(its kernels: other)" in sentence
    assert workers.files == (folder / "right.py",)


_OWN_OP = """
import torch
from jaxtyping import Float
from torch import Tensor

from kernel_workbench import ROWS, WIDTHS, Domain, kernel, op

@op(sizes={"m": ROWS, "n": WIDTHS})
def twice(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    return x + x

@kernel(twice, Domain(dtypes=(torch.float32,), strides="contiguous"))
def by_sum(x):
    return x + x
"""


def test_mended_copy_of_a_file_defines_its_op(workers: Workers, folder: Path) -> None:
    """An op of a file whose import fails afterwards is undone, as its kernels are."""
    (folder / "other.py").write_text(f"{_OWN_OP}\nraise RuntimeError('no numbers')\n")
    (folder / "right.py").write_text(_OWN_OP)
    assert [kernel.name for kernel in workers.kernels()] == ["by_sum"]
    (sentence,) = workers.left_out
    assert sentence.startswith(f"--kernels {folder / 'other.py'}: importing it raised RuntimeError")
    assert workers.files == (folder / "right.py",)


def test_misspelt_registration_ends_the_run(workers: Workers, folder: Path) -> None:
    """A mistake in a file is refused before anything is tried."""
    (folder / "other.py").write_text(_RIGHT.replace('strides="contiguous"', 'stride="contiguous"'))
    with pytest.raises(KernelError, match="did you mean strides"):
        workers.kernels()


def test_import_that_waits_for_an_old_lock_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence names the lock file of an interrupted load_inline, not the time limit alone."""
    lock = folder / "extensions" / "py311_cpu" / "mine" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (1000, 1000))
    file = folder / "other.py"
    file.write_text(_with_build("return 7") + "time.sleep(600)")
    monkeypatch.setattr("kernel_workbench.suites.sandbox.judge_side.workers._ASK_S", 1.0)
    made = Workers(torch.device("cpu"), 90, strict=False, files=(file,), time_limit_s=1.0)
    with closing(made) as workers, pytest.raises(KernelError) as raised:
        workers.kernels()
    assert f"a build may wait for the lock {lock}, which an interrupted" in str(raised.value)
