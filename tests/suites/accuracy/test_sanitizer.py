"""The suite under compute-sanitizer: each tool once, its summary kept; one sentence without it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.suites.accuracy.sanitizer import judged
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
