"""`accuracy` as its user meets it: what is refused, what runs and what is left behind.

A run is a process of its own. Each takes seconds to import torch, so all start at once, two at a
time, in one fixture, and the tests read what they left. test_bad_inputs.py has the command
lines that are refused before anything runs.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch

from kernel_workbench.oracles import ATTENTION_DELTA
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.record import Record, read
from tests import ROOT
from tests.builders.commands import Running, run_python, wait_for

pytestmark = pytest.mark.long_run

OP = "layer_norm_backward"
SMALL = f"{OP}-m1-n1-float32-contiguous"
DELTA = ATTENTION_DELTA.cases()[0].id()
WIDE = f"{OP}-m2-n8193-float32-contiguous"  # a column past what row_persistent holds
# On a CPU PyTorch sums the gradients of mixed weights in bfloat16, thousands of bounds away.
BASELINE_FAILS = f"{OP}-m3-n3000-bfloat16_float32weight-contiguous"
# As the noxfile has it.
QUIET = "--no-header --no-summary --tb=short -q -p no:cacheprovider -p no:logging"

KERNEL = """
    import pathlib, time, torch
    from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
    DOMAIN = Domain(dtypes=(torch.float32,))
    CALLS = []

    @kernel(LAYER_NORM_BACKWARD, DOMAIN, name={name!r})
    def function(dy, x, weight, mean, rstd):
        {first}
        x_hat = (x - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)
        g = dy * weight
        c1, c2 = (each.mean(-1, keepdim=True) for each in (g, g * x_hat))
        rows = tuple(range(x.dim() - 1))
        dx = (g - c1 - x_hat * c2) * rstd.unsqueeze(-1)
        return dx, (dy * x_hat).sum(rows), dy.sum(rows) {last}
"""
# A row makes three to nine calls, by chance: some rows end, and most of the 69 don't.
STUCK = "CALLS.append(1); len(CALLS) > 30 and (pathlib.Path({marker!r}).touch(), time.sleep(600))"


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that has ended: its status, what it showed and the records that it left."""

    status: int
    out: str
    err: str
    records: tuple[Path, ...]

    @property
    def record(self) -> Record:
        """The one record that it left."""
        (only,) = self.records
        return read(only)


def _command(
    results: Path, *options: str, suite: str = "kernel_workbench/suites/accuracy"
) -> list[str]:
    return [sys.executable, "-m", "pytest", suite, "--results", str(results), *options]


def _environment() -> dict[str, str]:
    kept = {
        key: value for key, value in os.environ.items() if key not in {"COLUMNS", "FORCE_COLOR"}
    }
    return kept | {
        "PYTEST_ADDOPTS": QUIET,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # of plugins that happen to be installed here
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),  # what is importable here is there
        "PYTHONUNBUFFERED": "1",
    }


def _start(command: list[str], folder: Path = ROOT) -> Running:
    return Running(*command, folder=folder, variables=_environment())


def _ended(running: Running, results: Path, by: signal.Signals | None = None) -> Ran:
    done = running.ended(by=by)
    records = tuple(sorted(results.glob("*.jsonl")))
    return Ran(done.returncode, done.stdout, done.stderr, records)


@dataclass(frozen=True, slots=True)
class Folder:
    """Where the users' files and the records of the runs lie; its name has a space."""

    path: Path

    def file(self, name: str, text: str) -> str:
        """Write a file and return its path."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
        return str(file)

    def kernel(self, name: str, first: str = "pass", last: str = "") -> str:
        """Write a file with one float32 kernel, sound but for `first` and `last`."""
        file = name.replace(" ", "_") + ".py"
        return self.file(file, KERNEL.format(name=name, first=first, last=last))

    def results(self, name: str) -> Path:
        """Give the folder that the run `name` writes to."""
        return self.path / "results" / name

    def run(self, name: str, *options: str) -> Ran:
        """Run the suite from the checkout's root, as nox does."""
        results = self.results(name)
        return _ended(_start(_command(results, "--device", "cpu", *options)), results)

    def run_elsewhere(self, name: str, *options: str) -> Ran:
        """Run the suite from this folder."""
        results = self.results(name)
        command = _command(
            results, "--device", "cpu", *options, suite=f"{ROOT}/kernel_workbench/suites/accuracy"
        )
        return _ended(_start(command, self.path), results)

    def run_in_little_space(self, name: str, *options: str) -> Ran:
        """Run the suite where no file may grow past 24 blocks of the shell: a header, some rows."""
        results = self.results(name)
        # Python 3.11 keeps a compiled module that the limit cut off, and no process could load it.
        limited = ["sh", "-c", 'ulimit -f 24; PYTHONDONTWRITEBYTECODE=1 exec "$@"', "sh"]
        # An arena is a file too, in memory.
        options = ("--device", "cpu", "--in-process", *options)
        command = [*limited, *_command(results, *options)]
        return _ended(_start(command), results)

    def stopped(self, name: str, number: signal.Signals) -> Ran:
        """Run a kernel that gets stuck after a few rows, and send a signal when it is."""
        marker = self.path / f"{name}.marker"
        file = self.kernel(name, first=STUCK.format(marker=str(marker)))
        results = self.results(name)
        options = ("--device", "cpu", "--kernels", file, "-k", "float32-contiguous")
        running = _start(_command(results, *options))
        wait_for(marker.exists, running)
        return _ended(running, results, by=number)


def _all_runs(folder: Folder) -> dict[str, Callable[[], Ran]]:
    """Every run by name; the slow ones first."""
    simulated = "assert __import__('os').environ['WORKBENCH_SIMULATED_SM'] == '80'"
    right, other = folder.kernel("right", first=simulated), folder.kernel("other")
    wrong = folder.kernel("off by one", last="+ 1")
    folder.file("conftest.py", f"open({str(folder.path / 'executed')!r}, 'w')\nraise SystemExit")
    files = ("--kernels=right.py", "--kernels", other, "--kernels", right, "--sm=80")
    few = "torch_native_cpu or column_owning_aligned"
    beside = ("--op", OP, "-k", few, "--case", BASELINE_FAILS)
    eager = ("--op", OP, "--kernel", "torch_eager")
    both = ("--op", OP, "--op", ATTENTION_DELTA.name, "--kernel", "torch_eager")
    runs: dict[str, Callable[[], Ran]] = {
        "killed": partial(folder.stopped, "killed", signal.SIGKILL),
        "interrupted": partial(folder.stopped, "interrupted", signal.SIGINT),
        "full disk": partial(folder.run_in_little_space, "full disk", *eager, "-k", "m3"),
        "files": partial(folder.run_elsewhere, "files", *files, "--case", SMALL),
    }
    options: dict[str, tuple[str, ...]] = {
        "wrong": ("--kernels", wrong, "--case", SMALL),
        "refused": ("--kernel=row_persistent", "--case", WIDE),
        "beside": beside,
        "gated": (*beside, "--gate-baselines"),
        "named": ("--kernel", "torch_native_cpu", "--case", BASELINE_FAILS),
        "by name": (*eager, "-k", "bfloat16 and offset1"),
        "by option": (*eager, "--dtype=float16", "--seed=7", "-k", "m1-n1-"),
        "by case": (*eager, "--case", f"{SMALL}-seed5", "--case", WIDE, "--seed", "-2"),
        "two ops": (*both, "--case", SMALL, "--case", DELTA),
        "one of two": (*both, "--case", DELTA),
        "cuda": ("--device=cuda", "--case", SMALL),
        "raises.py": ("--kernels", folder.file("raises.py", "x = 1\nx / 0\n")),
    }
    return runs | {name: partial(folder.run, name, *given) for name, given in options.items()}


Runs = Callable[[str], Ran]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A folder of the user's, outside the checkout."""
    return Folder(tmp_path_factory.mktemp("a user's files"))


@pytest.fixture(scope="module")
def runs(folder: Folder) -> Iterator[Runs]:
    """Every run of this file, started at once; a call waits for the one named."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        started: dict[str, Future[Ran]] = {
            name: pool.submit(run) for name, run in _all_runs(folder).items()
        }
        yield lambda name: started[name].result()
        pool.shutdown(cancel_futures=True)


def test_refused_run_of_its_own_shows_the_same_line(runs: Runs, folder: Folder) -> None:
    """A process that is refused shows one line, leaves no record and has the status of misuse."""
    ran = runs("raises.py")
    sentence = "importing it raised ZeroDivisionError: division by zero (line 2)"
    assert ran.err.strip() == f"ERROR: --kernels {folder.path / 'raises.py'}: {sentence}"
    assert (ran.status, ran.out.strip(), ran.records) == (pytest.ExitCode.USAGE_ERROR, "", ())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_gpu_that_isnt_there_is_refused(runs: Runs) -> None:
    """A run that asks for a GPU never falls back to the interpreter."""
    ran = runs("cuda")
    assert ran.err.startswith(
        "ERROR: --device cuda: torch sees no CUDA device here; use --device cpu"
    )
    assert (ran.status, ran.out, ran.records) == (pytest.ExitCode.USAGE_ERROR, "", ())


def test_run_in_which_every_pair_is_refused_fails(runs: Runs) -> None:
    """Nothing ran, so nothing passed, and the report says so."""
    ran = runs("refused")
    assert ran.status == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "nothing ran: 1 row, each refused" in ran.out
    assert "serves n of 1 to 8192, got 8193" in ran.out
    assert [row.status for row in ran.record.rows] == ["refused"]


def test_right_kernels_of_a_user_pass(runs: Runs, folder: Folder) -> None:
    """Status 0, a report that names them, and no kernel but them.

    A path is relative to where the run was started, and a file that is named twice loads once. A
    kernel dispatches for the sm that --sm simulates.
    """
    ran = runs("files")
    progress = re.compile(r"accuracy: \d of 2, .*\n")  # of a machine that is slow
    assert (ran.status, progress.sub("", ran.err)) == (0, "")
    assert ran.out.lstrip().startswith("PASSED")
    for kernel, name in zip(ran.record.header.kernels, ("other", "right"), strict=True):
        assert (kernel.name, kernel.path) == (name, str(folder.path / f"{name}.py"))
        assert re.search(rf"^{name} .* 1 +1 +0 +0 +user", ran.out, re.MULTILINE)
    assert [row.status for row in ran.record.rows] == ["passed", "passed"]
    assert ran.record.problem is None


def test_conftest_beside_a_users_file_isnt_executed(runs: Runs, folder: Folder) -> None:
    """A kernel's folder may be a project with tests of its own."""
    assert runs("files").status == 0
    assert (folder.path / "conftest.py").is_file()
    assert not (folder.path / "executed").exists()


def test_wrong_kernel_of_a_user_fails_again_by_the_command_it_is_told(
    runs: Runs, folder: Folder
) -> None:
    """The report shows the rule and a command; the command runs that one row, which fails alike."""
    ran = runs("wrong")
    assert ran.status == 1
    assert re.search(r"^off by one +deterministic bound +\S+ +1 ", ran.out, re.MULTILINE)
    shown = re.findall(r"^ +kernel-workbench accuracy (.*)$", ran.out, re.MULTILINE)
    (row,) = [each for each in ran.record.rows if each.status == "failed"]
    assert f"kernel-workbench accuracy {shown[0]}" == row.reproduce
    again = folder.run("again", *shlex.split(shown[0]))
    assert again.status == 1
    (repeated,) = again.record.rows
    assert (repeated.rule, repeated.reason) == (row.rule, row.reason)
    assert repeated.outputs == row.outputs
    assert repeated.reproduce == row.reproduce


def test_failing_baseline_gates_only_where_it_is_asked_for(runs: Runs) -> None:
    """A peer's failure is a finding; named by --kernel or with --gate-baselines it is a failure."""
    gates = {}
    for name in ("beside", "gated", "named"):
        ran = runs(name)
        rows = {row.kernel: row for row in ran.record.rows}
        assert rows["torch_native_cpu"].rule == "deterministic bound"
        assert name == "named" or rows["column_owning_aligned"].status == "passed"
        assert ran.record.end is not None
        assert ran.record.end.exit_status == ran.status
        gates[name] = (rows["torch_native_cpu"].gates, ran.status)
    assert gates == {"beside": (False, 0), "gated": (True, 1), "named": (True, 1)}


def test_killed_run_leaves_a_record_that_renders(runs: Runs) -> None:
    """After kill -9 the rows that were whole are shown, and that the run didn't finish."""
    ran = runs("killed")
    assert ran.status == -signal.SIGKILL
    (path,) = ran.records
    report = run_python("-m", "kernel_workbench.reports", path)
    assert report.returncode == ExitStatus.INCOMPLETE
    assert report.stdout.lstrip().startswith("INCOMPLETE")
    assert "the run did not finish" in report.stderr
    assert report.stderr.count("\n") == 1
    statuses = [row.status for row in ran.record.rows if row.status != "refused"]
    assert set(statuses) == {"passed"}
    assert len(ran.record.rows) < ran.record.header.planned_rows


def test_interrupted_run_reports_what_ran(runs: Runs) -> None:
    """Ctrl-C ends the kernel too, and leaves a whole record that says so."""
    ran = runs("interrupted")
    assert ran.status == pytest.ExitCode.INTERRUPTED
    assert "Traceback" not in ran.out + ran.err
    assert re.search(r"INCOMPLETE .* [1-9]\d* passed, 0 failed", ran.out)
    assert ran.record.end is not None
    assert ran.record.end.interrupted
    assert ran.record.end.exit_status == ExitStatus.INCOMPLETE


def test_run_that_cant_write_its_rows_fails(runs: Runs) -> None:
    """A full disk stops the run in one sentence; the rows before it are kept and shown."""
    ran = runs("full disk")
    assert ran.status == pytest.ExitCode.INTERRUPTED
    assert "Traceback" not in ran.out + ran.err
    assert "INTERNALERROR" not in ran.out + ran.err
    assert re.search(r"the rows before it are\s+kept", ran.out)
    assert 0 < len(ran.record.rows) < ran.record.header.planned_rows
    assert "INCOMPLETE" in ran.out


def test_name_of_two_kernels_means_both_where_their_cases_do(runs: Runs) -> None:
    """torch_eager serves several ops; a case is one op's, so it says which kernel is meant."""
    both, one = runs("two ops"), runs("one of two")
    assert [(row.case.op, row.kernel) for row in both.record.rows] == [
        (OP, "torch_eager"),
        ("attention_delta", "torch_eager"),
    ]
    assert {kernel.op for kernel in both.record.header.kernels} == {OP, "attention_delta"}
    assert [kernel.op for kernel in one.record.header.kernels] == ["attention_delta"]
    (row,) = one.record.rows
    assert row.reproduce.endswith(f"--kernel torch_eager --case {DELTA}")
    assert (both.status, one.status) == (0, 0)
    assert "2 rows (2 ops, 2 baselines, 2 cases)" in both.out


def _cases(ran: Ran) -> list[str]:
    assert {row.kernel for row in ran.record.rows} == {"torch_eager"}
    return [row.case.id for row in ran.record.rows]


def test_rows_are_selected_by_parts_of_their_names(runs: Runs) -> None:
    """`-k "bfloat16 and offset1"` takes both words of an id."""
    cases = _cases(runs("by name"))
    assert cases
    assert all("bfloat16" in case and "offset1" in case for case in cases)


def test_rows_are_selected_by_dtype_and_seed(runs: Runs) -> None:
    """--dtype is that of the activations, whatever the weight's; --seed is added and shown."""
    assert _cases(runs("by option")) == [
        f"{OP}-m1-n1-float16-contiguous-seed7",
        f"{OP}-m1-n1-float16_float32weight-contiguous-seed7",
    ]


def test_rows_are_selected_by_case_of_any_seed(runs: Runs) -> None:
    """A case is named with its seed, as reports name it, and --seed is added to that too."""
    ran = runs("by case")
    assert _cases(ran) == [f"{SMALL}-seed3", f"{WIDE}-seed-2"]
    assert all(row.status == "passed" for row in ran.record.rows)
    assert ran.record.header.command.endswith("--seed -2")
