"""Mistakes of programs that call the package: one sentence each, of a type that a caller expects.

Mistakes on a command line, which `--json` shares, are in tests/suites/run/test_bad_inputs.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_workbench import SOFTMAX_FORWARD, Domain, accuracy, bench, compare, mcp, search
from kernel_workbench.pytest_plugin import _plan_of
from kernel_workbench.reports.record import RecordError
from kernel_workbench.reports.run_report import Report
from kernel_workbench.testing import ArgumentsError, assert_matches, bound, cases, inputs
from tests import ROOT

_X = torch.ones(2, 3)
_ACTION = ROOT / ".github" / "actions" / "accuracy" / "annotate.py"


def _matched(actual: object, **given: Any) -> None:  # noqa: ANN401
    assert_matches(actual, SOFTMAX_FORWARD, **given)  # type: ignore[arg-type]


def _marked(*given: object, **options: object) -> object:
    return _plan_of(given, options, "t.py")


# A call, the type of its error, and words of the sentence.
_CALLS: tuple[tuple[str, Callable[[], object], type[Exception], str], ...] = (
    ("accuracy of a number", lambda: accuracy(3), TypeError, "got a int"),  # type: ignore[arg-type]
    ("accuracy of None", lambda: accuracy(None), TypeError, "got a NoneType"),  # type: ignore[arg-type]
    ("accuracy of a builtin", lambda: accuracy(len), TypeError, "isn't written"),
    ("accuracy of a list", lambda: accuracy([3]), TypeError, "got a int"),  # type: ignore[list-item]
    (
        "accuracy on a number",
        lambda: accuracy("a.py", cases=[3]),  # type: ignore[list-item]
        TypeError,
        "got a int as a case",
    ),
    ("search of None", lambda: search(None), TypeError, "got a NoneType"),  # type: ignore[arg-type]
    ("bench of None", lambda: bench(None), TypeError, "got a NoneType"),  # type: ignore[arg-type]
    ("compare of nothing", compare, RecordError, ""),
    ("compare of no file", lambda: compare("none.jsonl"), RecordError, "there is no such file"),
    (
        "compare of no run",
        lambda: compare(Report.of_no_run("accuracy", 2, "x")),
        RecordError,
        "a report has no record",
    ),
    (
        "the record of no run",
        lambda: Report.of_no_run("accuracy", 2, "why").read_record(),
        RecordError,
        "why",
    ),
    ("a report of no JSON", lambda: Report.from_json("{"), ValueError, ""),
    ("a report of another JSON", lambda: Report.from_json("[]"), ValueError, ""),
    ("no op", lambda: assert_matches(_X), ArgumentsError, ""),
    ("both ways", lambda: _matched(_X, reference=torch.exp, x=_X), ArgumentsError, ""),
    ("an op's name", lambda: assert_matches(_X, "softmax", x=_X), ArgumentsError, ""),  # type: ignore[arg-type]
    ("no arguments", lambda: _matched(_X), ArgumentsError, ""),
    ("another argument", lambda: _matched(_X, x=_X, y=_X), ArgumentsError, ""),
    ("an argument of another type", lambda: _matched(_X, x=[1.0]), ArgumentsError, ""),
    ("an argument of whole numbers", lambda: _matched(_X, x=_X.long()), ArgumentsError, ""),
    (
        "arguments on two devices",
        lambda: assert_matches(_X, reference=torch.add, input=_X, other=_X.to("meta")),
        ArgumentsError,
        "several devices",
    ),
    ("no outputs", lambda: assert_matches(None, SOFTMAX_FORWARD, x=_X), AssertionError, ""),  # type: ignore[arg-type]
    ("a number", lambda: assert_matches(3, SOFTMAX_FORWARD, x=_X), AssertionError, ""),  # type: ignore[arg-type]
    ("two outputs", lambda: assert_matches((_X, _X), SOFTMAX_FORWARD, x=_X), AssertionError, ""),
    ("a shape", lambda: assert_matches(_X[:1], SOFTMAX_FORWARD, x=_X), AssertionError, ""),
    ("a dtype", lambda: assert_matches(_X.double(), SOFTMAX_FORWARD, x=_X), AssertionError, ""),
    (
        "an output's name",
        lambda: assert_matches({"z": _X}, SOFTMAX_FORWARD, x=_X),
        AssertionError,
        "",
    ),
    ("a bound of nothing", lambda: bound(SOFTMAX_FORWARD), ArgumentsError, ""),
    (
        "the outputs of no case",
        lambda: inputs(SOFTMAX_FORWARD, "a case"),  # type: ignore[arg-type]
        ArgumentsError,
        "got a str as a case",
    ),
    (
        "cases of a tier",
        lambda: cases(SOFTMAX_FORWARD, Domain(dtypes=(torch.float32,)), "fast"),  # type: ignore[arg-type]
        ArgumentsError,
        "tier is 'fast'",
    ),
    ("a marker of no op", lambda: _marked(3), pytest.UsageError, "3 is no op"),
    (
        "a marker of an op's wrong name",
        lambda: _marked("softmax"),
        pytest.UsageError,
        "'softmax' is no op",
    ),
    (
        "a marker of no domain",
        lambda: _marked(SOFTMAX_FORWARD, 3),
        pytest.UsageError,
        "3 is no domain",
    ),
    (
        "a marker of a tier",
        lambda: _marked(SOFTMAX_FORWARD, None, "fast"),
        pytest.UsageError,
        "tier is 'fast'",
    ),
    (
        "a marker of a device",
        lambda: _marked(SOFTMAX_FORWARD, device="gpu"),
        pytest.UsageError,
        "device is 'gpu'",
    ),
    ("a marker of a word", lambda: _marked(SOFTMAX_FORWARD, speed=3), pytest.UsageError, "speed"),
    ("a tool of no op", lambda: mcp.describe_op("fft"), ValueError, "there is no op 'fft'"),
    ("a tool of no name", lambda: mcp.describe_op(""), ValueError, "there is no op ''"),
    ("search of a list", lambda: search([None]), TypeError, "got a NoneType"),  # type: ignore[list-item]
    (
        "compare of a program",
        lambda: compare(__file__),
        RecordError,
        "test_wrong_calls.py, line 1: not JSON",
    ),
    (
        "a reference of no function",
        lambda: assert_matches(_X, reference=3, x=_X),  # type: ignore[arg-type]
        ArgumentsError,
        "3 is no op and no function",
    ),
    (
        "a dtype of an op's outputs",
        lambda: bound(SOFTMAX_FORWARD, output_dtype=torch.float16, x=_X),
        ArgumentsError,
        "leave output_dtype out",
    ),
)


@pytest.mark.parametrize(
    ("call", "kind", "words"), [row[1:] for row in _CALLS], ids=[row[0] for row in _CALLS]
)
def test_wrong_call_raises_a_sentence(
    call: Callable[[], object], kind: type[Exception], words: str
) -> None:
    """The error has the type that the function documents, and says something."""
    with pytest.raises(kind) as error:
        call()
    assert words in str(error.value)
    assert str(error.value).strip()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["serve", "--device=gpu"], "--device"),
        (["serve", "--idle-minutes=0"], "--idle-minutes: '0' isn't a number from 0.01"),
        (["serve", "--spares=0"], "--spares: '0' isn't a whole number from 1 to 16"),
        (["serve", "--sparse=1"], "did you mean --spares?"),
    ],
)
def test_wrong_option_of_serve_is_a_sentence(words: list[str], sentence: str) -> None:
    """The status is that of bad usage, and nothing listens."""
    done = subprocess.run(
        [sys.executable, "-m", "kernel_workbench", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long_run
def test_wrong_input_of_a_run_is_its_error(tmp_path: Path) -> None:
    """A function and a tool return a report all the same; its status is that of bad usage."""
    report = accuracy("flash", op="fft", device="cpu", results=tmp_path)
    assert (report.passed, report.verdict, report.exit_status) == (False, "usage", 2)
    assert report.error is not None and "--op fft: there is no such op" in report.error
    tried = mcp.accuracy(str(tmp_path / "none.py"), device="cpu")
    assert (tried.passed, tried.verdict, tried.exit_status) == (False, "usage", 2)
    assert tried.error is not None and "none.py: there is no such file" in tried.error
    compiled = mcp.compile_kernels(str(tmp_path / "none.py"))
    assert (compiled.passed, compiled.exit_status) == (False, 2)
    assert "none.py: there is no such file" in compiled.report
    explained = mcp.explain_failure("flash", "no case", device="cpu")
    assert (explained.passed, explained.failure) == (False, None)
    assert explained.error is not None and "there is no such case" in explained.error
    assert list(tmp_path.iterdir()) == []


def test_annotation_of_an_empty_report_is_an_error(tmp_path: Path) -> None:
    """A command that was killed printed nothing; the job fails, and its file is marked."""
    for text in ("", "{", json.dumps([]), json.dumps({}), None):
        if text is None:
            (tmp_path / "accuracy.json").unlink()
        else:
            (tmp_path / "accuracy.json").write_text(text)
        done = subprocess.run(
            [sys.executable, str(_ACTION), "mine.py", str(tmp_path / "accuracy.json")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0
        assert done.stderr.startswith("::error file=mine.py::")
        assert done.stdout == "verdict=suite failed\n"


def test_mistakes_are_many() -> None:
    """Forty, without those of a command line."""
    assert len(_CALLS) >= 40
