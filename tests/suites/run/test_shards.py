"""A run spread over processes: every case in one share, and the record that of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.record import Record, RunEnd, latest, read
from kernel_workbench.suites.accuracy.suite import Accuracy
from kernel_workbench.suites.run import shards
from kernel_workbench.suites.run.option_table import AccuracyOptions, options_from
from kernel_workbench.suites.run.options import SuiteOptions
from kernel_workbench.suites.run.shards import default_jobs, is_huge, most_jobs, shares_of
from kernel_workbench.suites.sandbox.wire import spelled
from tests import ROOT
from tests.builders.commands import ACCURACY, run_python

pytestmark = pytest.mark.long_run

_DIES = """
import os, pathlib, signal
from kernel_workbench import Domain, kernel
from kernel_workbench.kernels.attention.delta import launch_delta
from kernel_workbench import ATTENTION_DELTA
import torch

@kernel(ATTENTION_DELTA, Domain(dtypes=(torch.float32,)))
def dies(out, do):
    if out.shape[1] == 129:
        server = pathlib.Path(f"/proc/{os.getppid()}/stat").read_text()
        os.kill(int(server.rpartition(")")[2].split()[1]), signal.SIGKILL)
    return (launch_delta(out, do),)
"""


_SMALL = ("--op=attention_delta", "--dtype=float32")


def _cases() -> list[Case]:
    """Return the cases of one op of each kind: one op has references, whose graphs are kept."""
    ops = ("layer_norm_backward", "attention_forward", "softmax_backward")
    return [case for op in ops for case in OPS[op].cases()]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("count", [1, 3])
def test_shares_hold_every_case_once(kind: str, count: int) -> None:
    """Huge cases are in the share after the last."""
    cases = _cases()
    shares = shares_of(cases, count, kind)
    assert shares.keys() == {case.id() for case in cases}
    assert set(range(count)) <= set(shares.values()) <= set(range(count + 1))
    assert {name for name, share in shares.items() if share == count} == {
        case.id() for case in cases if is_huge(case, kind)
    }


def test_shares_of_a_gpu_keep_what_compiles_together() -> None:
    """Cases that differ in values, offsets and lengths alone need the same compiled kernels."""
    cases = [case for case in _cases() if not is_huge(case, "cuda")]
    alike = [
        case.id()
        for case in cases
        if case.op.startswith("attention")
        and case.dtype_label == "bfloat16"
        and not case.options
        and dict(case.sizes).get("d") == dict(case.sizes).get("d_v") == 64
    ]
    shares = shares_of(cases, 12, "cuda")
    assert len(alike) > 50
    assert len({shares[name] for name in alike}) == 1


def test_shares_of_a_cpu_keep_what_has_one_graph() -> None:
    """A reference's cases of the same sizes, where a run has enough of others."""
    cases = [case for case in _cases() if case.tier == "ci"]
    shares = shares_of(cases, 2, "cpu")
    alike: dict[object, set[int]] = {}
    for case in cases:
        if case.op == "softmax_backward":
            alike.setdefault(case.sizes, set()).add(shares[case.id()])
    assert len(alike) > 4
    assert all(len(numbers) == 1 for numbers in alike.values())


def test_families_whose_kernels_compile_longest_come_first() -> None:
    """Else one process compiles for attention at the end, and the others have nothing to do."""
    names = ("softmax_forward", "attention_delta", "attention_backward")
    cases = [next(iter(OPS[name].cases())) for name in names]
    families = shards.families_of(cases, "cuda")
    assert [families[case.id()] for case in cases] == [2, 1, 0]


def test_families_are_taken_by_one_process_each(tmp_path: Path) -> None:
    """Two processes that take families in turn have every case once; large families come first."""
    cases = [case for case in _cases() if not is_huge(case, "cuda")]
    families = shards.families_of(cases, "cuda")
    assert families.keys() == {case.id() for case in cases}
    sizes = Counter(families.values())
    assert [sizes[number] for number in (0, len(sizes) - 1)] == [max(sizes.values()), 1]
    processes = [shards.Claims(tmp_path, families) for _ in range(2)]
    taken = [
        case.id()
        for case in sorted(cases, key=lambda case: families[case.id()])
        for process in processes[:: 1 if families[case.id()] % 2 else -1]
        if process.take(case)
    ]
    assert sorted(taken) == sorted(families)


def test_run_by_families_has_the_rows_of_any_run(tmp_path: Path) -> None:
    """Where processes take families, on a CPU as on a GPU."""
    program = """
import sys
from kernel_workbench.suites.run import shards
shards.ON_DEMAND = {"cpu"}
from kernel_workbench.__main__ import main
main(sys.argv[1:])
"""
    run = ("accuracy", "--device=cpu", *_SMALL)
    rows = []
    for folder, more in (("one", "--jobs=1"), ("two", "--jobs=2")):
        ran = run_python("-c", program, *run, more, f"--results={tmp_path / folder}")
        assert ran.returncode == 0, ran.stderr
        record = read(latest(tmp_path / folder))
        rows.append(sorted((row.kernel, row.case.id, row.status) for row in record.rows))
    assert rows[0] == rows[1]
    assert len(rows[0]) > 20


_EARLY = """
import sys
from kernel_workbench.suites.accuracy.suite import Accuracy
from kernel_workbench.suites.run import shards
def noted_start(self):
    folder = start(self)
    print("early:", *(process.process.pid for process in self._processes))
    return folder
start, shards.Shards.start = shards.Shards.start, noted_start
Accuracy.likely_jobs = lambda self: 0 if self.options.shard else 2
from kernel_workbench.__main__ import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("jobs", [2, 3, 1])
def test_processes_that_start_early_have_the_rows_of_any_run(tmp_path: Path, jobs: int) -> None:
    """Others take their place where the run turns out to have another number of processes."""
    run = ("accuracy", "--device=cpu", *_SMALL, "--kernel=delta", f"--jobs={jobs}")
    rows = []
    for folder, program in (("early", ("-c", _EARLY)), ("late", ("-m", "kernel_workbench"))):
        ran = run_python(*program, *run, f"--results={tmp_path / folder}")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert ("early:" in ran.stdout) == (folder == "early")
        record = read(latest(tmp_path / folder))
        rows.append(sorted((row.kernel, row.case.id, row.status) for row in record.rows))
    assert rows[0] == rows[1]
    assert len(rows[0]) > 20


def test_processes_that_start_early_end_with_a_run_that_is_refused(tmp_path: Path) -> None:
    """They wait for its cases, which never come."""
    run = ("accuracy", "--device=cpu", "--tier=none", f"--results={tmp_path}")
    ran = run_python("-c", _EARLY, *run)
    assert (ran.returncode, "there is no such tier" in ran.stdout + ran.stderr) == (2, True)
    (line,) = (line for line in ran.stdout.splitlines() if line.startswith("early:"))
    assert not any(Path("/proc", pid).exists() for pid in line.split()[1:])


def test_process_that_waits_ends_when_its_run_has_ended(tmp_path: Path) -> None:
    """It would wait forever for a run that was killed, or that has removed its folder."""
    known, starter = tmp_path / "known", tmp_path / "starter"
    assert not shards.wait_for(known)
    starter.write_text("1234567890")
    assert not shards.wait_for(known)
    starter.write_text(str(os.getppid()))
    threading.Timer(0.05, known.touch).start()
    calls: list[None] = []
    assert shards.wait_for(known, lambda: calls.append(None))
    assert calls


def test_large_runs_alone_start_processes_early() -> None:
    """A run of few kernels or cases may be done before other processes have started."""

    def likely(*words: str) -> int:
        options = options_from(AccuracyOptions, SuiteOptions("accuracy").read(list(words)))
        return Accuracy(options, torch.device("cpu")).likely_jobs()

    assert likely("--jobs=3") == 3
    assert likely() == default_jobs("cpu", shards.FEWEST_PAIRS)
    for word in (
        "--kernel=delta",
        "--op=attention_delta",
        "--quick",
        "--list",
        "--in-process",
        "--lf",
    ):
        assert likely(word) == 0


def test_small_runs_stay_in_one_process() -> None:
    """A second process would start as the first one ends."""
    assert default_jobs("cpu", 20) == 1
    assert default_jobs("cpu", 10_000) >= 1


def test_short_runs_stay_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes save less on eight seconds than they take to start; on a minute, more."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert default_jobs("cpu", 230, 8.0) == 1
    assert default_jobs("cpu", 230, 60.0) == 2
    assert default_jobs("cpu", 230) == 2


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_no_share_of_as_many_as_there_can_be_is_empty(kind: str) -> None:
    """On a GPU cases that need the same compiled kernels stay together, so there are fewer."""
    cases = _cases()[:40]
    count = most_jobs(cases, kind)
    assert set(shares_of(cases, count, kind).values()) == set(range(count))
    assert set(shares_of(cases, count + 1, kind).values()) == set(range(count))


def _run(results: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], Record]:
    ran = run_python(*ACCURACY, f"--results={results}", *arguments)
    return ran, read(latest(results))


def test_two_processes_leave_the_record_of_one(tmp_path: Path) -> None:
    """The same rows with the same verdicts and errors, in another order."""
    verdicts, few = [], (*_SMALL, "--kernel=delta", "-k", "contiguous")
    for jobs in (1, 2):
        ran, record = _run(tmp_path / str(jobs), *few, f"--jobs={jobs}")
        assert ran.returncode == 0, ran.stdout
        assert record.problem is None
        verdicts.append({(row.case.id, row.status, row.outputs) for row in record.rows})
    assert verdicts[0] == verdicts[1]
    assert len(verdicts[0]) > 30


def _layer_norm(n: int) -> str:
    """A line of a file of cases."""
    line = {"op": "layer_norm_backward", "sizes": {"m": 3, "n": n}, "dtype": "float32"}
    return json.dumps(line)


def _run_of(sizes: tuple[int, int], folder: Path, *arguments: str) -> Record:
    """Two cases, by default a share each. Raises AssertionError where the run fails."""
    folder.mkdir()
    file = folder / "cases"
    file.write_text("\n".join(map(_layer_norm, sizes)))
    asked = ["--kernel=row_persistent_aligned", f"--cases={file}", "--signs=3"]
    ran, record = _run(folder, *asked, *(arguments or ["--jobs=2"]))
    assert ran.returncode == 0, ran.stdout
    return record


def test_share_of_refused_cases_is_whole(tmp_path: Path) -> None:
    """It has nothing to run, which is no fault. Rows of 17 floats aren't whole 16 bytes."""
    record = _run_of((64, 17), tmp_path / "run")
    assert [row.status for row in record.rows] == ["refused", "passed"]


def test_share_tries_the_cases_that_its_run_has_drawn(tmp_path: Path) -> None:
    """It draws none itself: of its own it wouldn't have this seed."""
    case = replace(next(iter(OPS["attention_delta"].cases())), seed=12345)
    file, known = tmp_path / "mine.py", tmp_path / "known"
    file.write_text(_DIES)
    known.write_text(json.dumps(spelled(case) | {"share": 0, "family": None}))
    few = (f"--kernels={file}", "--shard=0/1", "-k", "seed12345")
    ran, record = _run(tmp_path / "results", *few, f"--known={known}")
    assert ran.returncode == 0, ran.stdout
    assert [row.case.id for row in record.rows] == [case.id()]


def test_kernels_are_loaded_without_torchs_compiler() -> None:
    """Its import takes a second, in each process of a run."""
    code = (
        "import sys, kernel_workbench as w; w.all_kernels(); "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_share_that_an_earlier_run_has_is_whole(tmp_path: Path) -> None:
    """All that there was to run in a resumed run has run."""
    whole = _run_of((64, 128), tmp_path / "whole", "--jobs=1")
    cut_off = tmp_path / "cut_off.jsonl"
    lines = whole.path.read_text().splitlines(keepends=True)
    cut_off.write_text("".join(lines[:2]))
    record = _run_of((64, 128), tmp_path / "resumed", "--jobs=2", f"--resume={cut_off}")
    assert [row.status for row in record.rows] == ["passed", "passed"]


def test_process_that_dies_takes_its_share_alone(tmp_path: Path) -> None:
    """A kernel that kills the judge of its share fails the run; the other share is whole."""
    file = tmp_path / "dies.py"
    file.write_text(_DIES)
    ran, record = _run(tmp_path, *_SMALL, "--jobs=2", f"--kernels={file}")
    assert ran.returncode != 0
    assert record.problem is not None
    assert any(row.status == "passed" for row in record.rows)
    assert "of the run ended early, with status -9" in ran.stdout


@pytest.mark.parametrize(("status", "failed", "told"), [(3, 5, 1), (1, 0, 1), (1, 5, 0), (0, 0, 0)])
def test_failed_rows_explain_no_internal_error(
    status: int, failed: int, told: int, tmp_path: Path
) -> None:
    """A search whose process broke off after some rows had failed was called whole."""
    (tmp_path / "output").write_text("INTERNALERROR> out of memory")
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    end = RunEnd(finished_at="", duration_s=0.0, rows=5, interrupted=False, exit_status=status)
    problem = shards._Process(1, tmp_path, process, failures=failed, ended=end).problem()
    assert (problem is not None) == bool(told)


def test_one_case_is_tried_by_one_process(tmp_path: Path) -> None:
    """However many are asked for: a share without a case would end with an error of its own."""
    case = "attention_delta-b1-h_q1-s_q0-d_v64-float32-contiguous"
    ran, record = _run(tmp_path, "--kernel=delta", f"--case={case}", "--jobs=2")
    assert (ran.returncode, [row.status for row in record.rows]) == (0, ["passed"]), ran.stdout
    assert "INTERNALERROR" not in ran.stdout + ran.stderr
