"""The judge outlives its candidates: what ends a worker fails one row, with the reason."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from kernel_workbench.reports.record import Record, latest, read
from kernel_workbench.suites.sandbox.judge_side import worker_process
from tests import ROOT
from tests.builders.commands import ACCURACY, Running, run_python, wait_for

pytestmark = pytest.mark.long_run

_CRASHING = ROOT / "tests" / "candidates" / "crashing_kernels.py"
_EXPECTED = {
    (2, 3): ("process ended", "SIGSEGV"),
    (17, 127): ("time limit", "within 60 s"),
    (9, 1023): ("process ended", "with status 0"),
    (9, 1025): ("process ended", "GiB of memory"),
    (3, 3000): ("illegal access", "past the end of x_ptr"),
}


def _command(results: Path, *options: str) -> list[str]:
    return [*ACCURACY, f"--results={results}", f"--kernels={_CRASHING}", *options]


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Record]:
    """Return the output of a run of five faults among contiguous bfloat16 cases, and its record."""
    results = tmp_path_factory.mktemp("crashed")
    limits = ("--time-limit=60", "--memory-limit=2")
    few = ("--dtype=bfloat16", "-k", "bfloat16-contiguous", "--jobs=1")
    ran = run_python(*_command(results, *few, *limits))
    assert ran.returncode == 1, ran.stdout + ran.stderr
    return ran.stdout, read(latest(results))


def test_five_faults_among_many_cases_cost_five_verdicts(
    crashed: tuple[str, Record],
) -> None:
    """A segfault, a hang, os._exit(0), all memory taken, an access of nobody's: the rest passes."""
    _, record = crashed
    ran = [row for row in record.rows if row.status != "refused"]
    failed = {tuple(row.case.sizes.values()): row for row in ran if row.status == "failed"}
    assert record.problem is None
    assert len(ran) > 20
    assert set(failed) == set(_EXPECTED)
    assert sum(row.status == "passed" for row in ran) == len(ran) - 5
    for sizes, (rule, words) in _EXPECTED.items():
        assert failed[sizes].rule == rule, failed[sizes].reason
        assert words in (failed[sizes].reason or "")


def test_report_of_faults_names_each(crashed: tuple[str, Record]) -> None:
    """The rules stand in the report that the run prints, with nothing of the suite's own."""
    printed, _ = crashed
    assert "FAILED" in printed
    assert "process ended" in printed
    assert "time limit" in printed
    assert "The suite itself failed" not in printed


def test_of_an_exception_the_line_that_says_what_it_is_is_quoted() -> None:
    """CUDA's errors end with advice on how to find out more."""
    output = os.memfd_create("printed")
    raised = "torch.AcceleratorError: CUDA error: initialization error"
    advice = "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
    printed = ["so far", "Traceback (most recent call last):", "  File", "    it()", raised, advice]
    os.write(output, "\n".join(printed).encode())
    assert worker_process._printed(output) == raised
    os.close(output)


def _passed(results: Path) -> int:
    found = list(results.glob("*.jsonl"))
    return found[0].read_bytes().count(b'"status":"passed"') if found else 0


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_run_that_is_cut_off_goes_on_where_it_was(tmp_path: Path, by: signal.Signals) -> None:
    """After Ctrl-C, and after kill -9: a readable record, and --resume tries only the rest."""
    small = ("--dtype=float16", "-k", "float16-contiguous", "--jobs=1")
    running = Running(sys.executable, *_command(tmp_path / "first", *small))
    wait_for(lambda: _passed(tmp_path / "first") >= 10, running)
    running.ended(by=by)
    cut = read(latest(tmp_path / "first"))
    assert cut.problem is not None
    done = {(row.kernel, row.case.id): row for row in cut.rows if row.status != "refused"}
    ran = run_python(*_command(tmp_path / "second", *small), f"--resume={cut.path}")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    whole = read(latest(tmp_path / "second"))
    assert whole.problem is None
    rows = {(row.kernel, row.case.id): row for row in whole.rows if row.status != "refused"}
    assert 0 < len(done) < len(rows)
    # Rows that were taken over keep what was measured then, to the microsecond.
    assert {key: rows[key] for key in done} == done


def test_resuming_with_other_options_is_refused(
    tmp_path: Path, crashed: tuple[str, Record]
) -> None:
    """Rows that the options don't ask for aren't thrown away silently."""
    _, record = crashed
    ran = run_python(*_command(tmp_path, "--dtype=float32"), f"--resume={record.path}")
    assert ran.returncode == 4
    assert "these options leave out " in ran.stderr
    assert "Traceback" not in ran.stderr


_PRINTS = """
import os, torch
from kernel_workbench import SOFTMAX_FORWARD, Domain, kernel

SERVED = Domain(dtypes=(torch.float32,), strides="contiguous")

@kernel(SOFTMAX_FORWARD, SERVED)
def a_prints(x):
    print("hello from a")
    return x

@kernel(SOFTMAX_FORWARD, SERVED)
def b_ends(x):
    os._exit(3)

@kernel(SOFTMAX_FORWARD, SERVED)
def c_raises(x):
    raise ValueError("no")
"""


def test_output_is_that_of_the_kernel_that_printed_it(tmp_path: Path) -> None:
    """A process that ended in silence was told of with the last line of another kernel."""
    file, cases = tmp_path / "prints.py", tmp_path / "cases"
    file.write_text(_PRINTS)
    line = '{{"op": "softmax_forward", "sizes": {{"m": 2, "n": {}}}, "dtype": "float32"}}\n'
    cases.write_text("".join(map(line.format, (8, 9))))
    command = [
        "-m",
        "kernel_workbench.suites.run",
        "accuracy",
        "--device=cpu",
        f"--results={tmp_path}",
    ]
    ran = run_python(*command, f"--kernels={file}", f"--cases={cases}")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    rows = read(latest(tmp_path)).rows
    assert [row.kernel for row in rows] == ["a_prints", "b_ends", "c_raises"] * 2
    for row in rows:
        mine = ("hello from a",) if row.kernel == "a_prints" else ()
        assert row.printed == mine
        assert row.kernel == "a_prints" or "hello" not in (row.reason or "")


@pytest.mark.parametrize(
    ("free", "limit"), [(8 * 2**30, 4 * 2**30), (2**28, 2**30)], ids=["roomy", "busy machine"]
)
def test_memory_of_a_busy_machine_is_enough_for_a_worker(
    free: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of what is free, but never less than a process with torch takes."""
    monkeypatch.setattr(worker_process, "_free_memory", lambda: free)
    assert worker_process.default_memory_limit() == limit
