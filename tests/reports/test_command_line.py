"""`python -m reports` tells a whole record, an incomplete one and none apart."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from kernel_workbench import root
from kernel_workbench.reports.__main__ import main
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.history.__main__ import main as history
from tests import ROOT
from tests.builders.accuracy_records import example_rows, write_example
from tests.builders.bench_records import bench_rows, write_bench
from tests.builders.profile_records import profile_rows, write_profile

pytestmark = pytest.mark.long_run


def run(
    *arguments: str, stdout: int | None = subprocess.PIPE, **environment: str
) -> tuple[int, str, str]:
    """Run `python -m reports` and return its exit status, stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "kernel_workbench.reports", *arguments],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "COLUMNS"} | environment,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_command_line_statuses_tell_whole_incomplete_and_none(tmp_path: Path) -> None:
    """0: whole; 4: shown, with the problem on stderr; 2: one sentence on stderr, nothing shown."""
    status, shown, errors = run("--results", str(tmp_path))
    assert (status, shown, errors.count("\n")) == (2, "", 1)
    stamp = "accuracy-20261121T04{:02}00Z-cpu.jsonl"
    write_example(tmp_path / stamp.format(1), example_rows())
    status, shown, errors = run("--results", str(tmp_path))
    assert (status, errors) == (0, "")
    assert shown.startswith(" FAILED ")
    assert max(len(line) for line in shown.splitlines() if " nox " not in f" {line}") <= 120
    write_example(tmp_path / stamp.format(2), example_rows(), whole=False)
    status, shown, errors = run("--results", str(tmp_path), "--width", "80")
    assert (status, errors.count("\n")) == (ExitStatus.INCOMPLETE, 1)
    assert shown.startswith(" INCOMPLETE ")
    assert "the run did not finish" in errors


def test_command_line_writes_the_other_forms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--markdown -` prints Markdown and nothing else; a path gets the same text."""
    record = write_example(tmp_path / "run.jsonl", example_rows())
    markdown, junit = tmp_path / "new" / "a.md", tmp_path / "a.xml"
    assert main([str(record), "--markdown", str(markdown), "--junit", str(junit)]) == 0
    capsys.readouterr()
    assert main([str(record), "--markdown", "-"]) == 0
    assert capsys.readouterr().out == markdown.read_text()
    assert ET.fromstring(junit.read_bytes()).tag == "testsuites"
    assert main([str(record), "--junit", str(record / "a.xml")]) == 2
    assert "can't be written" in capsys.readouterr().err


def test_command_line_outlives_a_closed_pipe(tmp_path: Path) -> None:
    """`| head` costs neither a traceback nor the exit status."""
    record = write_example(tmp_path / "run.jsonl", example_rows())
    reader, writer = os.pipe()
    os.close(reader)
    try:
        status, _, errors = run(str(record), stdout=writer)
    finally:
        os.close(writer)
    assert (status, errors) == (0, "")


def test_command_line_serves_a_locale_without_unicode(tmp_path: Path) -> None:
    """An ASCII terminal gets ASCII, never a traceback."""
    record = write_example(tmp_path / "run.jsonl", example_rows())
    status, shown, errors = run(str(record), PYTHONIOENCODING="ascii")
    assert (status, errors) == (0, "")
    assert shown.isascii()


def test_command_line_honours_no_color_and_columns(tmp_path: Path) -> None:
    """NO_COLOR stops colours that were forced; COLUMNS sets the width where nothing else does."""
    record = write_example(tmp_path / "run.jsonl", example_rows())
    _, coloured, _ = run(str(record), FORCE_COLOR="1", TERM="xterm-256color")
    assert "\x1b[1;38;5;231;48;5;124m" in coloured
    _, plain, _ = run(str(record), FORCE_COLOR="1", TERM="xterm-256color", NO_COLOR="1")
    assert "48;5;124m" not in plain
    _, narrow, _ = run(str(record), COLUMNS="70")
    commands = ("nox -s ", "record: ")
    tables = [line for line in narrow.splitlines() if not any(each in line for each in commands)]
    assert 60 < max(map(len, tables)) <= 70


def test_command_line_shows_several_records_and_makes_one_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is shown in turn and has a part of the page; an incomplete one sets the status."""
    paths = [
        write_example(tmp_path / "a.jsonl", example_rows(failing=False)),
        write_bench(tmp_path / "b.jsonl", bench_rows(failing=False)),
        write_profile(tmp_path / "c.jsonl", profile_rows(failing=False), whole=False),
    ]
    page = tmp_path / "new" / "page.html"
    assert main([*map(str, paths), "--html", str(page)]) == ExitStatus.INCOMPLETE
    shown, errors = capsys.readouterr()
    assert [shown.count(f" {each} ") for each in ("PASSED", "TIMED", "INCOMPLETE")] == [2, 2, 2]
    written, problem = errors.splitlines()
    assert written.startswith(f"wrote {page}, ")
    assert problem.startswith(str(paths[2]))
    assert page.read_text().count("<section id=") == 3


def test_command_line_draws_the_roofline_as_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An SVG of its own: roofs and kernels by name, nothing from outside."""
    record = write_bench(tmp_path / "b.jsonl", bench_rows())
    picture = tmp_path / "roofline.svg"
    assert main([str(record), "--roofline", str(picture), "--baseline", "torch_native"]) == 0
    text = picture.read_text()
    assert ET.fromstring(text).tag.endswith("svg")
    for name in ("memory 4,800 GB/s, datasheet", "add 4,390 GB/s, measured", "flash_wide"):
        assert name in text
    assert "@import" not in text
    assert "xlink" not in text
    assert re.search(r"kernel  .* torch_native ", capsys.readouterr().out)


def test_check_says_only_whether_a_record_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nox asks so after a run: a kernel that ends the process leaves a status of 0 behind."""
    whole = write_example(tmp_path / "whole.jsonl", example_rows())
    cut = write_example(tmp_path / "cut.jsonl", example_rows(), whole=False)
    assert main([str(whole), "--check"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main([str(cut), "--check"]) == ExitStatus.INCOMPLETE
    shown, errors = capsys.readouterr()
    assert shown == ""
    assert "the run did not finish" in errors


def test_records_of_the_checkout_are_shown_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`report` and `history` read the folder that the suites of a checkout write."""
    checkout, user = tmp_path / "checkout", tmp_path / "user"
    user.mkdir()
    write_example(checkout / "results" / "accuracy-20261121T040100Z-cpu.jsonl", example_rows())
    monkeypatch.setattr(root, "ROOT", checkout)
    monkeypatch.chdir(user)
    assert main([]) == ExitStatus.RIGHT
    assert "../checkout/results/accuracy-20261121T040100Z-cpu.jsonl" in capsys.readouterr().out
    assert history([]) == ExitStatus.USAGE
    assert capsys.readouterr().err.startswith("../checkout/results: 1 run of bench, profile or")
