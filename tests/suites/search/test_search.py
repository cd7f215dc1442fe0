"""`nox -s search` from end to end, on kernels that are wrong where two things come together."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.record import AccuracyRow, Record, read
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.run.descriptions import case_info
from kernel_workbench.suites.run.option_table import DEFAULT_SM
from kernel_workbench.suites.run.suite import NoMemoryError
from kernel_workbench.suites.search.suite import Search
from tests.builders.commands import Running, run_python, wait_for

pytestmark = pytest.mark.long_run

_KERNEL = '''
import os
import time

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel


@kernel(
    LAYER_NORM_BACKWARD,
    Domain(
        dtypes=(torch.float32,),
        features=frozenset({"residual", "no_bias"}),
        sizes={"m": (1, 40), "n": (1, 300)},
    ),
)
def careless(dy, x, weight, mean, rstd, dresidual=None, has_bias=True):
    """Wrong where a residual comes with rows that no vector of four divides."""
    normalised = (x.double() - mean.double()[..., None]) * rstd.double()[..., None]
    scaled = dy.double() * weight.double()
    average = (scaled * normalised).mean(-1, keepdim=True)
    dx = (scaled - scaled.mean(-1, keepdim=True) - normalised * average) * rstd.double()[..., None]
    if dresidual is not None:
        if x.shape[-1] % 4:
            WRONG
        dx = dx + dresidual.double()
    rows = tuple(range(x.ndim - 1))
    dbias = dy.double().sum(rows).to(weight.dtype) if has_bias else None
    return dx.to(x.dtype), (dy.double() * normalised).sum(rows).to(weight.dtype), dbias
'''

_CASE = {
    "op": "layer_norm_backward",
    "sizes": {"m": 3, "n": 5},
    "dtype": "float32",
    "options": ["residual"],
}


def _command(folder: Path, wrong: str, *more: str) -> list[str]:
    file = folder / "careless.py"
    file.write_text(_KERNEL.replace("WRONG", wrong))
    return [
        *(
            "-m",
            "pytest",
            "kernel_workbench/suites/search",
            "-qq",
            "-p",
            "no:cacheprovider",
            "--device=cpu",
        ),
        *(f"--kernels={file}", f"--results={folder}", "--minutes=30", "--jobs=1", *more),
    ]


def _record(folder: Path, suite: str = "search") -> Record:
    (path,) = folder.glob(f"{suite}-*.jsonl")
    return read(path)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, str, int]:
    """A search that ends at its first find: the record, what was printed, and the status."""
    folder = tmp_path_factory.mktemp("searched")
    done = run_python(*_command(folder, "dx = dx * 1.01", "--finds=1"))
    assert "Traceback" not in done.stderr + done.stdout
    return _record(folder), done.stdout, done.returncode


def test_find_needs_what_the_defect_does(searched: tuple[Record, str, int]) -> None:
    """It is shrunk to the two things that the defect needs."""
    record, _, status = searched
    (find,) = record.finds
    assert status == 1
    assert find.kernel == "careless"
    assert find.output == "dx"
    assert find.case.options == ("residual",)
    assert find.case.layout == "contiguous"
    assert find.case.distribution == "normal"
    assert find.case.sizes["n"] % 4
    assert find.case.sizes["n"] <= 3
    assert find.needs[0] == "residual"
    assert find.confirmed == find.confirmations
    assert find.whole


def test_record_tells_what_was_met(searched: tuple[Record, str, int]) -> None:
    """Rows, and pairs of levels."""
    record, _, _ = searched
    assert record.problem is None
    assert any(row.status == "failed" for row in record.rows)
    assert all(0 <= each.met <= each.possible for each in record.coverage)
    assert any(each.met for each in record.coverage)


def test_report_says_what_is_needed_and_how_to_run_it(searched: tuple[Record, str, int]) -> None:
    """As a user reads it."""
    record, printed, _ = searched
    (find,) = record.finds
    assert "FOUND" in printed
    assert "1 find" in printed
    assert "residual" in printed
    assert find.case.id in printed.replace("\n", "").replace("  ", "")


def test_finds_run_again_as_cases(searched: tuple[Record, str, int], tmp_path: Path) -> None:
    """A record of a search is a file of cases."""
    record, _, _ = searched
    (find,) = record.finds
    (kernels,) = (each for each in record.header.files if each.endswith("careless.py"))
    done = run_python(
        *(
            "-m",
            "pytest",
            "kernel_workbench/suites/accuracy",
            "-qq",
            "-p",
            "no:cacheprovider",
            "--device=cpu",
        ),
        *(f"--kernels={kernels}", f"--cases={record.path}", f"--results={tmp_path}", "--jobs=1"),
    )
    (row,) = _record(tmp_path, "accuracy").rows
    assert (row.case.id, row.status) == (find.case.id, "failed")
    assert done.returncode == 1


def test_search_that_is_killed_keeps_its_finds(tmp_path: Path) -> None:
    """Each is written when it is made."""
    running = Running(sys.executable, *_command(tmp_path, "dx = dx * 1.01"))

    def found() -> bool:
        return any('"kind":"find"' in each.read_text() for each in tmp_path.glob("*.jsonl"))

    wait_for(found, running)
    running.ended(by=signal.SIGKILL)
    assert _record(tmp_path).finds


@pytest.mark.parametrize(
    ("wrong", "rule", "limit_s"),
    [("os._exit(3)", "process ended", 60), ("time.sleep(600)", "time limit", 3)],
)
def test_kernel_that_ends_its_process_or_hangs_is_a_find(
    wrong: str, rule: str, limit_s: int, tmp_path: Path
) -> None:
    """The worker is another one for each case that is tried, and the search goes on."""
    done = run_python(*_command(tmp_path, wrong, "--finds=1", f"--time-limit={limit_s}"))
    (find,) = _record(tmp_path).finds
    assert find.rule == rule
    assert find.case.options == ("residual",)
    assert done.returncode == 1


def test_kernel_that_finds_no_memory_is_no_find(tmp_path: Path) -> None:
    """The search's other processes hold it: the case counts as not tried, and its row says so."""
    wrong = "raise torch.OutOfMemoryError('out of memory')"
    cases = tmp_path / "cases"
    passing = _CASE | {"sizes": {"m": 3, "n": 8}}
    cases.write_text(f"{json.dumps(passing)}\n{json.dumps(_CASE)}")
    done = run_python(*_command(tmp_path, wrong, "--minutes=0.01", f"--cases={cases}"))
    record = _record(tmp_path)
    untried = [row for row in record.rows if row.status == "refused"]
    assert not record.finds
    assert done.returncode == 0
    assert untried
    assert all("no memory was left" in (row.reason or "") for row in untried)


def test_truth_that_finds_no_memory_is_no_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it end the search: the case counts as not tried."""

    def spent(*_: object) -> AccuracyRow:
        raise NoMemoryError("CUDA out of memory", 12)

    monkeypatch.setattr(Run, "try_pair", spent)
    search = Search.__new__(Search)
    search.judge = Run(torch.device("cpu"), DEFAULT_SM)
    kernel = next(each for each in all_kernels() if each.name == "column_owning")
    row = search._judged(kernel, next(iter(kernel.op.cases())))
    assert row.status == "refused"
    assert "too little memory" in (row.reason or "")


@pytest.mark.parametrize(
    ("fresh", "status"),
    [((), "passed"), ((2, 4), "passed"), ((2, 3, 4), "failed"), ((1, 2, 3, 4), "failed")],
)
def test_rule_of_chance_is_asked_again(
    fresh: tuple[int, ...], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A measure that most fresh draws keep is chance, and told as such; else it is a failure."""
    kernel = next(each for each in all_kernels() if each.name == "column_owning")
    first = next(each for each in kernel.op.cases() if not each.seed)
    beyond = {0, *fresh}

    def judged(_: Search, kernel: Kernel, case: Case) -> AccuracyRow:
        rule: dict[str, str] = {"rule": "emulation", "reason": "dx[0, 0]: too far"}
        return AccuracyRow.model_validate(
            {
                "kernel": kernel.name,
                "case": case_info(case),
                "status": "failed" if case.seed in beyond else "passed",
                **(rule if case.seed in beyond else {}),
                "gates": True,
                "reproduce": "",
                "duration_s": 0.0,
            }
        )

    monkeypatch.setattr(Search, "_judged", judged)
    row = Search._row(Search.__new__(Search), kernel, first)
    assert row.status == status
    assert bool(row.notes) == (status == "passed")
