"""The suite under compute-sanitizer and consan: each tool once, and a row of the table for each."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernel_workbench.oracles import SOFTMAX_FORWARD
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.suites.accuracy import sanitizer
from kernel_workbench.suites.accuracy.sanitizer import (
    ToolResult,
    judged,
    run_consan,
    without_consan,
)
from tests import ROOT
from tests.builders.accuracy_records import example_row
from tests.builders.by_hand import kernel_of, run_on
from tests.builders.commands import run_python

# Stands in the program's place: it runs nothing, and finds something by one of its tools.
_PROGRAM = """#!/bin/sh
echo "$PYTORCH_NO_CUDA_MEMORY_CACHING $*" >> "$WORKBENCH_TEST_LOG"
case "$2" in
racecheck) echo "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)"; exit 86;;
*) echo "========= ERROR SUMMARY: 0 errors";;
esac
"""


def _run(path: str, log: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if name not in {"CUDA_HOME", "CUDA_PATH"}
    }
    environment |= {"PATH": path, "WORKBENCH_TEST_LOG": str(log), "COLUMNS": "120"}
    command = ("-m", "kernel_workbench.suites.accuracy.sanitizer", "--kernel", "flash")
    return run_python(*command, variables=environment)


def test_each_tool_runs_the_selected_cases_and_one_finding_fails(tmp_path: Path) -> None:
    """A hazard under racecheck sets the exit status, though the last tool found nothing."""
    program = tmp_path / "compute-sanitizer"
    program.write_text(_PROGRAM)
    program.chmod(0o755)
    ran = _run(f"{tmp_path}:/usr/bin:/bin", tmp_path / "log")
    calls = (tmp_path / "log").read_text().splitlines()
    assert ran.returncode == ExitStatus.WRONG
    assert "2 hazards displayed" in ran.stdout
    assert [each.split()[2] for each in calls] == ["memcheck", "racecheck", "initcheck"]
    assert all(each.startswith("1 ") and each.endswith("--kernel flash") for each in calls)


_RACE = """========= Error: Race reported between Read access at {}+0x9b0
=========     and Write access at {}+0x3eb0 [64480 hazards]
=========
"""
_RACES = "========= RACECHECK SUMMARY: {} hazards displayed ({} errors, 0 warnings)\n"


def test_races_in_a_librarys_own_kernels_are_told_and_fail_nothing() -> None:
    """cuBLAS synchronises by barriers that racecheck doesn't follow."""
    ours, library = "_forward_kernel", "nvjet_sm90_hsh_256x128_coopA_NNT"
    of_library = "========= COMPUTE-SANITIZER\n" + 2 * _RACE.format(library, library)
    found = judged(86, of_library + _RACES.format(2, 2))
    assert found.status == 0
    assert found.libraries == ((library, 2),)
    assert f"2 in {library}" in found.text
    both = judged(86, of_library + _RACE.format(ours, ours) + _RACES.format(3, 3))
    assert both.status == 86
    mixed = judged(86, _RACE.format(library, ours) + _RACES.format(1, 1))
    assert (mixed.status, mixed.libraries) == (86, ())
    assert judged(86, of_library + _RACES.format(2, 3)).status == 86  # one wasn't shown
    assert judged(86, _RACES.format(1, 1)).status == 86


def test_template_of_a_user_is_no_kernel_of_a_library() -> None:
    """A demangled template begins with "void" whoever wrote it; its name has spaces."""
    library = "void at::native::vectorized_elementwise_kernel<(int)4, float>(int, float)"
    user = "void softmax_rows<float, (int)3>(const T1 *, T1 *, int)"
    of_library = _RACE.format(library, library)
    assert judged(86, of_library + _RACES.format(1, 1)).status == 0
    both = judged(86, of_library + _RACE.format(user, user) + _RACES.format(2, 2))
    assert (both.status, len(both.libraries)) == (86, 1)
    assert judged(86, _RACE.format(user, user) + _RACES.format(1, 1)).status == 86


_READ = """========= Invalid __global__ read of size 4 bytes
=========     at nvjet_sm90_hsh_256x128_coopA_NNT+0x580
=========     by thread (65,0,0) in block (0,0,0)
=========
"""
_API = """========= Program hit cudaErrorIllegalAddress (error 700) on CUDA API call to cudaFree.
=========     Saved host backtrace up to driver entry point at error
=========         Host Frame: at::cuda::synchronize() [0x8a03] in libtorch_cuda.so
=========
"""
_ERRORS = "========= ERROR SUMMARY: {}\n"


def test_error_that_names_no_kernel_counts_beside_a_librarys() -> None:
    """A call of CUDA fails in the suite's process: no library's kernel explains that."""
    assert judged(86, _READ + _ERRORS.format("1 error")).status == 0
    assert judged(86, _READ + _API + _ERRORS.format("2 errors")).status == 86
    two_processes = _READ + _ERRORS.format("1 error") + _ERRORS.format("1 error")
    assert judged(86, two_processes).status == 86


def test_suite_that_failed_counts_beside_a_librarys_error() -> None:
    """The tool's exit status takes the place of the suite's, which the tool's output tells."""
    failed = "========= Target application returned an error\n"
    assert judged(86, _READ + failed + _ERRORS.format("1 error")).status == 86


@pytest.mark.skipif(
    Path("/usr/local/cuda/bin/compute-sanitizer").exists(), reason="it is installed here"
)
def test_machine_without_it_says_where_it_comes_from(tmp_path: Path) -> None:
    """One sentence, and a failure: nothing was checked."""
    ran = _run(str(tmp_path), tmp_path / "log")
    assert ran.returncode == ExitStatus.INCOMPLETE
    assert "isn't installed here" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_machine_with_consan_alone_runs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows of the other tools say that they are absent, and consan's status counts."""
    monkeypatch.setattr(sanitizer, "cuda_program", lambda _: None)
    monkeypatch.setattr(sanitizer, "version", lambda _: "3.9.0")
    monkeypatch.setattr(sanitizer, "run_consan", lambda _: ToolResult(1, "1 finding"))
    assert sanitizer.main(["--kernel", "flash"]) == ExitStatus.WRONG
    printed = capsys.readouterr().out
    assert printed.count("isn't installed here") == 3
    assert "1 finding" in printed


@pytest.mark.parametrize("installed", ["3.6.0", "3.8.0", "3.9.0", "3.10.0+git1", "4.0.0"])
def test_consan_is_asked_by_the_version_of_triton(
    installed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older Triton ignores the name of the mode, and every kernel would pass."""
    monkeypatch.setattr(sanitizer, "version", lambda _: installed)
    problem = without_consan()
    assert (problem is None) == (installed not in {"3.6.0", "3.8.0"})
    assert problem is None or f"consan needs Triton 3.9; {installed}" in problem


_CP_ASYNC = "async_copy_global_to_shared"
_CASE = Case(
    op=SOFTMAX_FORWARD.name,
    sizes=(("m", 2), ("n", 8)),
    dtype=torch.float32,
    weight_dtype=torch.float32,
)
# Stand in for kernels on a GPU: they print the device's assertion, and raise CUDA's error or end.
_ASSERTS = """
import os, sys
import torch
from kernel_workbench import SOFTMAX_FORWARD, Domain, kernel

SERVED = Domain(dtypes=(torch.float32,), strides="contiguous")
LINE = "/a/b.py:{}: unknown: block: [2,0,0], thread: [0,0,0] Assertion `{}` failed."
PENDING = "Accessing buffer with pending access. Pending access type: async_copy_global_to_shared"
DEAD = "CUDA error: device-side assert triggered"
calls = 0

def assertion(line, text):
    os.write(2, (LINE.format(line, text) + chr(10)).encode())

@kernel(SOFTMAX_FORWARD, SERVED)
def asserts(x):
    assertion(63, PENDING)
    raise RuntimeError(DEAD)

@kernel(SOFTMAX_FORWARD, SERVED)
def asserts_later(x):
    global calls
    calls += 1
    if calls == 1:
        print("hello")
        raised = (x - x.amax(-1, keepdim=True)).exp()
        return raised / raised.sum(-1, keepdim=True)
    assertion(63, PENDING)
    raise RuntimeError(DEAD)

@kernel(SOFTMAX_FORWARD, SERVED)
def ends(x):
    assertion(80, "Buffer being accessed has outstanding writes.")
    os.abort()

@kernel(SOFTMAX_FORWARD, SERVED)
def asserts_its_own(x):
    assertion(90, "n must be even")
    raise RuntimeError(DEAD)
"""


def _consan(tmp_path: Path, *names: str) -> ToolResult:
    file, cases = tmp_path / "asserts.py", tmp_path / "cases"
    file.write_text(_ASSERTS)
    cases.write_text('{"op": "softmax_forward", "sizes": {"m": 2, "n": 8}, "dtype": "float32"}\n')
    options = [f"--kernels={file}", f"--cases={cases}", f"--results={tmp_path}", "-s"]
    return run_consan([*options, *(f"--kernel={name}" for name in names)], device="cpu")


@pytest.mark.long_run
def test_assertions_of_consan_are_grouped_by_line_and_text(tmp_path: Path) -> None:
    """Assertions come from workers that raised, at the first or second call, and one that died."""
    result = _consan(tmp_path, "asserts", "asserts_later", "ends")
    assert result.status == ExitStatus.WRONG
    case = _CASE.id()
    pending = (
        "/a/b.py:63: Accessing buffer with pending access. Pending access type: "
        f"{_CP_ASYNC}: asserts on {case} and 1 more row"
    )
    writes = f"/a/b.py:80: Buffer being accessed has outstanding writes: ends on {case}"
    assert result.text == f"{pending}; {writes}"


def test_cut_line_of_an_assertion_is_the_same_finding() -> None:
    """A row keeps the beginnings of long lines, and a reason has the text again."""
    line = "/a/b.py:63: unknown: block: [2,0,0], thread: [0,0,0] Assertion `{}"
    text = "Accessing buffer with pending access. Pending access type: async_copy_global_to_shared"
    cut = text[:40] + "..."
    row = example_row(rule="raised").model_copy(
        update={"printed": (line.format(text) + "` failed.",), "reason": line.format(cut) + "\nit"}
    )
    other = row.model_copy(update={"printed": (line.format(cut),), "reason": None})
    for rows in ((row, other), (other, row)):
        result = sanitizer.judged_rows(1, rows, compiled=True)
        assert result.summary.count("b.py:63") == 1
        assert result.summary.endswith("and 1 more row")


@pytest.mark.long_run
def test_assertion_of_a_kernels_own_is_no_finding_of_consan(tmp_path: Path) -> None:
    """The row fails, which is the status."""
    result = _consan(tmp_path, "asserts_its_own")
    assert result.status == ExitStatus.WRONG
    assert "n must be even" not in result.text


def test_workspace_is_not_judged_where_triton_takes_memory_for_its_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """consan takes 48 bytes for each program of a kernel with one copy."""

    def takes_more(x: torch.Tensor) -> torch.Tensor:
        _kept = torch.empty(64, dtype=torch.int8)
        raised = (x - x.amax(-1, keepdim=True)).exp()
        return raised / raised.sum(-1, keepdim=True)

    kernel = replace(kernel_of(takes_more, op=SOFTMAX_FORWARD), workspace=lambda _: 0)
    run = run_on(torch.device("cpu"))
    assert run.try_pair(kernel, _CASE).rule == "workspace"
    monkeypatch.setenv("TRITON_INSTRUMENTATION_MODE", "consan")
    assert run.try_pair(kernel, _CASE).status == "passed"


@pytest.mark.parametrize("name", ["waits", "reads_early"])
def test_copy_that_is_read_early_is_found_on_a_gpu(
    name: str, device: torch.device, tmp_path: Path
) -> None:
    """Its values may be right without consan."""
    if device.type != "cuda" or without_consan() is not None:
        pytest.skip("consan needs a GPU and Triton 3.9")
    file = ROOT / "tests" / "candidates" / "planted" / "async_copies.py"
    case = "doubled_rows-m4-n1024-float32-contiguous"
    result = run_consan(
        [f"--kernels={file}", f"--kernel={name}", f"--case={case}", f"--results={tmp_path}"]
    )
    if name == "waits":
        assert result == ToolResult(ExitStatus.RIGHT, "no finding in 1 row")
    else:
        assert result.status == ExitStatus.WRONG
        assert "async_copies.py:" in result.text
        assert f"Pending access type: {_CP_ASYNC}: {name} on {case}" in result.text
