"""Accepted failures: known ones don't fail a run, new ones do, and those that pass are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_workbench.reports.run_report import Report
from kernel_workbench.suites.run.accepted import (
    AcceptedError,
    check_target,
    read_accepted,
    write_accepted,
)
from tests.builders.commands import run_python

_CASES = [f"softmax_forward-m{m}-n{n}-float32-contiguous" for m, n in ((1, 1), (3, 64), (5, 33))]
_KERNEL = """
import torch
from kernel_workbench import SOFTMAX_FORWARD, Domain, kernel

@kernel(SOFTMAX_FORWARD, Domain(dtypes=(torch.float32,)))
def mine(x):
    return torch.softmax(x, -1) * (1 + (x.shape[0] > 1) * 1e-3)
"""


def _report(tmp_path: Path, *options: str) -> Report:
    (tmp_path / "mine.py").write_text(_KERNEL)
    words = ["-m", "kernel_workbench", "accuracy", f"{tmp_path}/mine.py", "--device=cpu", "--json"]
    words += [f"--case={case}" for case in _CASES]
    done = run_python(*words, f"--results={tmp_path}/results", "--jobs=1", *options)
    return Report.from_json(done.stdout)


@pytest.mark.long_run
def test_accepted_failures_leave_a_run_green_and_a_new_one_makes_it_red(tmp_path: Path) -> None:
    """--accept writes what fails; less one line the run is wrong again, by that line alone."""
    known = tmp_path / "known.txt"
    assert _report(tmp_path, f"--accept={known}").verdict == "failed"
    pairs = {("mine", case) for case in _CASES[1:]}
    assert read_accepted(str(known)) == pairs
    write_accepted(str(known), {*pairs, ("mine", _CASES[0])})
    report = _report(tmp_path, f"--accepted={known}")
    assert (report.verdict, report.exit_status) == ("passed", 0)
    assert [(failure.case, failure.gates) for failure in report.failures] == [
        (_CASES[1], False),
        (_CASES[2], False),
    ]
    assert report.accepted_that_pass == (f"mine {_CASES[0]}",)
    write_accepted(str(known), {("mine", _CASES[1])})
    report = _report(tmp_path, f"--accepted={known}")
    assert report.verdict == "failed"
    assert [failure.case for failure in report.failures if failure.gates] == [_CASES[2]]


@pytest.mark.parametrize(
    "text",
    [
        "# a comment\n\nmine a-case  # why\n",
        '{"failures": [{"kernel": "mine", "case": "a-case", "op": "x"}]}',
        '[{"kernel": "mine", "case": "a-case"}]',
    ],
)
def test_lines_and_reports_are_read_alike(tmp_path: Path, text: str) -> None:
    """A kernel and a case, in whichever form."""
    (tmp_path / "known").write_text(text)
    assert read_accepted(str(tmp_path / "known")) == {("mine", "a-case")}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "it can't be read (No such file or directory)"),
        (b"mine\n", "line 1: mine isn't a kernel and a case"),
        (b"mine a b\n", "line 1: mine a b isn't a kernel and a case"),
        (b"\xff\xfe\n", "it isn't text in UTF-8"),
        (b"{", "it begins as JSON and isn't JSON"),
        (b"[" * 100_000, "it begins as JSON and isn't JSON"),
        (b"{}", "it isn't a report of --json"),
        (b"[3]", "it isn't a report of --json"),
        (b'[{"kernel": "mine", "case": 3}]', "it isn't a report of --json"),
    ],
)
def test_bad_list_is_refused_in_one_sentence(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    """The sentence names the file, and the line where there is one."""
    if content is not None:
        (tmp_path / "known").write_bytes(content)
    with pytest.raises(AcceptedError) as error:
        read_accepted(str(tmp_path / "known"))
    assert str(error.value).startswith(f"--accepted {tmp_path / 'known'}")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_another_file_isnt_overwritten(tmp_path: Path) -> None:
    """Only a list of its own, an empty file or a new one is written."""
    (tmp_path / "notes.txt").write_text("a note\n")
    for name, words in (("notes.txt", "isn't overwritten"), (".", "it is a folder")):
        with pytest.raises(AcceptedError, match=words):
            check_target(str(tmp_path / name))
    with pytest.raises(AcceptedError, match="there is no such folder"):
        check_target(str(tmp_path / "absent" / "known.txt"))
    write_accepted(str(tmp_path / "known.txt"), [("mine", "a-case")])
    check_target(str(tmp_path / "known.txt"))
