"""`--json`: one object on stdout, whatever becomes of the run; and the options that end a run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_workbench.oracles import OPS, SOFTMAX_FORWARD
from kernel_workbench.oracles.cases.factors import levels_of
from kernel_workbench.reports.run_report import Report
from kernel_workbench.suites.accuracy.quick_cases import MOST_CASES, quick_cases
from tests import ROOT
from tests.builders.commands import run_python

pytestmark = pytest.mark.long_run

_CASES = tuple(
    f"softmax_forward-m{m}-n{n}-float32-contiguous" for m, n in ((1, 1), (3, 64), (5, 33))
)
_KERNELS = """
import os, sys, torch
from kernel_workbench import SOFTMAX_FORWARD, Domain, kernel

FLOAT32 = Domain(dtypes=(torch.float32,))

@kernel(SOFTMAX_FORWARD, FLOAT32)
def right(x):
    print("a line for stdout")
    powers = torch.exp(x - x.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)

@kernel(SOFTMAX_FORWARD, FLOAT32)
def wrong(x):
    return right(x) * (1 + (x.shape[0] > 1) * 1e-3)
"""


def _report(tmp_path: Path, file: Path, *options: str) -> tuple[Report, str]:
    """Run the suite with --json and return the report and what went to stderr."""
    words = ("-m", "kernel_workbench.suites.run", "accuracy", str(file), "--device=cpu", "--json")
    done = run_python(*words, f"--results={tmp_path / 'results'}", "--jobs=1", *options)
    (line,) = done.stdout.splitlines()
    report = Report.from_json(line)
    assert report.exit_status == done.returncode
    assert report.suite == "accuracy"
    return report, done.stderr


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with a right and a wrong kernel."""
    path = tmp_path / "mine.py"
    path.write_text(_KERNELS)
    return path


def test_json_of_a_wrong_kernel_has_the_element_and_the_command(tmp_path: Path, file: Path) -> None:
    """Rule, index, values and ratio are those of the sentence; the command is whole."""
    cases = [f"--case={case}" for case in _CASES]
    report, errors = _report(tmp_path, file, *cases)
    assert (report.verdict, report.passed, report.exit_status) == ("failed", False, 1)
    assert [failure.kernel for failure in report.failures] == ["wrong", "wrong"]
    for failure in report.failures:
        assert failure.case in _CASES[1:]
        assert (failure.op, failure.output, failure.gates) == ("softmax_forward", "y", True)
        assert failure.rule in {"deterministic bound", "probabilistic bound"}
        assert failure.index is not None and failure.got is not None
        assert failure.sentence.startswith(f"y{list(failure.index)}: got {failure.got:.9g}")
        assert failure.ratio is not None and failure.ratio > 1
        assert f"--kernel wrong --case {failure.case}" in failure.command
    assert report.rows is not None
    assert (report.rows.passed, report.rows.failed, report.rows.planned) == (4, 2, 6)
    assert report.kernels == ("right", "wrong")
    assert report.packages["torch"]
    assert report.record is not None and Path(report.record).is_file()
    assert len(report.read_record().rows) == 6
    assert "a line for stdout" not in errors
    report.save(tmp_path / "saved.json")
    assert Report.from_json((tmp_path / "saved.json").read_bytes()) == report


def test_json_of_a_right_kernel_passes(tmp_path: Path, file: Path) -> None:
    """Nothing fails, and nothing is said to be an error."""
    report, _ = _report(tmp_path, file, "--kernel=right", f"--case={_CASES[1]}")
    assert (report.verdict, report.passed, report.error, report.failures) == (
        "passed",
        True,
        None,
        (),
    )


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        ("def mine(:\n", (), "SyntaxError"),
        ("x = 1\nx / 0\n", (), "ZeroDivisionError"),
        ("x = 1\n", (), "it registers no kernel"),
        (_KERNELS, ("--kernel=absent",), "there is no such kernel"),
        (_KERNELS, ("--case=softmax",), "there is no such case"),
        (_KERNELS, ("--max-seconds=-1",), "max-seconds"),
        (_KERNELS, ("--no-such-option",), "there is no such option"),
        (_KERNELS, ("--in-process", "--jobs=2"), "--in-process calls kernels in one process"),
    ],
)
def test_json_of_a_mistake_has_its_sentence(
    tmp_path: Path, text: str, options: tuple[str, ...], sentence: str
) -> None:
    """Status 2, no record, and the sentence that stands on stderr too."""
    file = tmp_path / "mine.py"
    file.write_text(text)
    report, errors = _report(tmp_path, file, *options)
    assert (report.verdict, report.record, report.rows) == ("usage", None, None)
    assert report.error is not None
    assert sentence in report.error
    assert report.error.split(";")[0][:60] in errors
    assert not list(tmp_path.glob("results/*"))


@pytest.mark.parametrize("status", [0, 3])
def test_json_of_a_file_that_ends_the_process_is_no_pass(tmp_path: Path, status: int) -> None:
    """The file is imported in a worker: the judge says what became of it."""
    file = tmp_path / "mine.py"
    file.write_text(f"import os\nos._exit({status})\n")
    report, _ = _report(tmp_path, file)
    assert not report.passed
    assert report.exit_status != 0
    assert report.error


def test_fail_fast_ends_at_the_first_row_that_fails(tmp_path: Path, file: Path) -> None:
    """Later cases are missing, the run is wrong, and the report says why it ended."""
    cases = [f"--case={case}" for case in _CASES]
    report, _ = _report(tmp_path, file, *cases, "--fail-fast", "--kernel=wrong")
    assert len(report.failures) == 1
    assert report.verdict == "failed"
    assert report.error == "the run ended before its last row: --fail-fast: a row failed"


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_max_seconds_leaves_rows_out_and_passes_nothing(
    tmp_path: Path, file: Path, jobs: str
) -> None:
    """A run whose time is over before its first row is incomplete, however right the kernel is."""
    report, _ = _report(tmp_path, file, "--kernel=right", "--max-seconds=0.1", f"--jobs={jobs}")
    assert (report.verdict, report.passed, report.exit_status) == ("incomplete", False, 4)
    assert report.rows is not None
    assert report.rows.passed < report.rows.planned
    assert report.error is not None and "--max-seconds: it took 0.1 s" in report.error


def test_quick_tries_a_dozen_cases(tmp_path: Path, file: Path) -> None:
    """All are in float32, which the domain asks for, and a wrong kernel is found by them."""
    report, _ = _report(tmp_path, file, "--quick")
    assert report.rows is not None
    assert 8 <= report.rows.planned // 2 <= MOST_CASES
    assert report.rows.refused == 0
    assert {failure.kernel for failure in report.failures} == {"wrong"}


def test_quick_refuses_where_a_kernel_serves_nothing(tmp_path: Path, file: Path) -> None:
    """A kernel for a GPU has a row for each of a few cases, with the reason, on a CPU."""
    file.write_text(_KERNELS.replace("torch.float32,)", "torch.float32,), devices=('cuda',)"))
    report, _ = _report(tmp_path, file, "--quick")
    assert report.verdict == "incomplete"
    assert report.rows is not None
    assert report.rows.refused == report.rows.planned == 2 * MOST_CASES
    assert {row.reason for row in report.read_record().rows} == {"runs on cuda, got cpu"}


@pytest.mark.parametrize("name", sorted(OPS))
def test_quick_cases_differ_in_as_much_as_they_can(name: str) -> None:
    """Each of the first ones brings a level that the ones before it lack."""
    op = OPS[name]
    chosen = quick_cases(op, [case for case in op.cases() if case.tier == "ci"], lambda _: True)
    assert 0 < len(chosen) <= MOST_CASES
    met: set[tuple[int, str]] = set()
    for case in chosen:
        levels = set(enumerate(levels_of(op, case)))
        assert levels - met
        met |= levels


def test_quick_cases_of_a_narrow_domain_are_those_that_it_serves() -> None:
    """The cheapest one stands alone where no small one is served; none where none is."""
    large = [case for case in SOFTMAX_FORWARD.cases() if SOFTMAX_FORWARD.flops(case) > 1e7]
    wanted = {case.id() for case in large}
    (one,) = quick_cases(SOFTMAX_FORWARD, SOFTMAX_FORWARD.cases(), lambda each: each.id() in wanted)
    assert SOFTMAX_FORWARD.flops(one) == min(map(SOFTMAX_FORWARD.flops, large))
    assert quick_cases(SOFTMAX_FORWARD, SOFTMAX_FORWARD.cases(), lambda _: False) == []


def test_ten_lines_read_a_report(tmp_path: Path, file: Path) -> None:
    """The script of docs/how-to/python.md prints a line for each failure from a pipe."""
    page = (ROOT / "docs" / "how-to" / "python.md").read_text(encoding="utf-8")
    script = re.search(r"```python\n(# failures.py\n.*?)```", page, re.DOTALL)
    assert script is not None and len(script[1].splitlines()) <= 10
    report, _ = _report(tmp_path, file, f"--case={_CASES[1]}")
    done = subprocess.run(
        [sys.executable, "-c", script[1]],
        input=report.to_json(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.startswith(f"wrong {_CASES[1]} y[")
