"""The table of Triton's versions: what it says where one isn't right."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import triton

from studies import versions


def _told(checks: str, *, status: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], status, stdout=checks, stderr=f"Traceback\n{checks}")


@pytest.mark.parametrize(
    ("told", "missing", "right"),
    [
        (_told("3.7.1\n\n"), "none", True),
        (_told("3.7.1\ninteger overflow, masked lanes\n"), "integer overflow, masked lanes", False),
        (_told("3.6.0\n\n"), "this is triton 3.6.0", False),
        (_told("InterpreterError: no", status=1), "InterpreterError: no", False),
    ],
    ids=["all", "two missing", "another", "fails"],
)
def test_version_is_right_only_with_every_check_in_force(
    told: subprocess.CompletedProcess[str],
    missing: str,
    right: bool,  # noqa: FBT001 (of a table)
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And only where it is the version that was asked for."""
    monkeypatch.setattr(versions, "_run", lambda *_: told)
    assert versions._checks(None, "3.7.1") == (missing, right)


def test_installed_version_is_taken_as_it_is(tmp_path: Path) -> None:
    """Nothing is installed beside for it."""
    assert versions._installed(triton.__version__, tmp_path) is None
    assert not list(tmp_path.iterdir())


def test_version_that_was_installed_before_is_taken_again(tmp_path: Path) -> None:
    """By what pip leaves at the end of an installation."""
    (tmp_path / "triton-3.1.4" / "triton-3.1.4.dist-info").mkdir(parents=True)
    assert versions._installed("3.1.4", tmp_path) == tmp_path / "triton-3.1.4"


@pytest.mark.parametrize(
    ("text", "versions_of_it"),
    [("3.6", ("3.6.0",)), ("3.6,3.7.1, 3.6.0", ("3.6.0", "3.7.1"))],
)
def test_versions_may_be_short(text: str, versions_of_it: tuple[str, ...]) -> None:
    """Each is taken once."""
    assert versions._versions(text) == versions_of_it


@pytest.mark.parametrize("text", ["", "3", "3.6,,3.7", "latest", "3.6.0rc1"])
def test_what_is_no_list_of_versions_is_refused(text: str) -> None:
    """In a sentence with an example."""
    with pytest.raises(argparse.ArgumentTypeError, match=r"give versions like 3\.6\.0"):
        versions._versions(text)


def _row(
    version: str, registers: int | None, spilled: int | None, status: str
) -> versions._Outcome:
    row = SimpleNamespace(
        op="softmax", kernel="mine", function="rows", label="n 64", registers=registers,
        spill_store_bytes=spilled, status=status,
    )  # fmt: skip
    return versions._Outcome(version, "9 passed", "3 of 3", "none", (row,), right=True)  # type: ignore[arg-type]


def test_figures_stand_side_by_side() -> None:
    """A version's column has a dash where it compiled no such function."""
    outcomes = [
        _row("3.6.0", 40, 0, "compiled"),
        _row("3.7.1", 255, 16, "compiled"),
        _row("3.8.0", None, None, "compiled"),
        _row("3.9.0", None, None, "failed"),
        versions._Outcome("4.0.0", "", "", "", (), right=False),
    ]
    table = versions.figures(outcomes)
    cells = [list(column.cells) for column in table.columns]
    assert cells == [
        ["softmax mine"],
        ["rows"],
        ["n 64"],
        ["40"],
        ["255, 16 B"],
        ["?"],
        ["failed"],
        ["-"],
    ]
    compiled = list(versions.verdicts(outcomes).columns[-1].cells)
    assert compiled == ["1 of 1", "1 of 1", "1 of 1", "0 of 1", "0 of 0"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--kernels no/such.py", "--kernels no/such.py: there is no such file"),
        ("--sm 77", "--sm 77: there is no such generation; there are 75, 80"),
        ("--sm x", "--sm: 'x' isn't a whole number from 1 to 999"),
        ("--kernel flush", "--kernel flush: there is no such kernel; did you mean flash?"),
    ],
)
def test_mistake_is_answered_before_anything_is_installed(
    words: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With status 2 and one sentence."""
    monkeypatch.setattr(sys, "argv", ["versions", *words.split()])
    monkeypatch.setattr(versions, "_outcome", pytest.fail)
    with pytest.raises(SystemExit) as ended:
        versions.main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(sentence)


def test_times_of_versions_stand_side_by_side() -> None:
    """Two runs of a version are one cell; a version that has no time of a case has a dash."""

    def row(case: str, median_us: float | None) -> SimpleNamespace:
        return SimpleNamespace(
            op="softmax", kernel="mine", case=SimpleNamespace(id=case), median_us=median_us
        )

    timed = {
        "3.6.0": [row("n64", 20.0), row("n128", 41.0), row("n64", 22.0)],
        "3.9.0": [row("n64", 19.0), row("n128", None)],
    }
    table = versions.times(timed)  # type: ignore[arg-type]
    cells = [list(column.cells) for column in table.columns]
    assert [column.header for column in table.columns][2:] == ["3.6.0, us", "3.9.0, us"]
    assert cells[1] == ["n64", "n128"]
    assert cells[2] == ["21 (20 to 22)", "41"]
    assert cells[3] == ["19", "-"]


def test_other_version_stands_before_what_python_already_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment that PYTHONPATH makes stays whole."""
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    done = versions._run(tmp_path, "-c", "import os; print(os.environ['PYTHONPATH'])")
    assert done.stdout.strip() == f"{tmp_path}:/somewhere"


@pytest.mark.parametrize(
    ("kernels", "ops"),
    [
        (["row_persistent"], {"layer_norm_backward"}),
        (["flash", "row_sharing"], {"attention_forward", "layer_norm_backward"}),
    ],
)
def test_cases_are_those_of_the_chosen_kernels(kernels: list[str], ops: set[str]) -> None:
    """The suite refuses a case of another op."""
    cases = versions._cases_of(kernels)
    assert len(cases) == versions._CASES_OF_EACH * len(ops)
    assert {case.partition("-")[0] for case in cases} == ops
