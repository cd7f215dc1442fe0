"""A command that a report tells is one that works where its reader stands."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernel_workbench.reports.commands import NOX, PROGRAM, Program, program_of, this_program
from kernel_workbench.reports.record import latest, read
from kernel_workbench.suites.run.commands import FOLDER, path_in_command
from tests import ROOT
from tests.builders.commands import Running, noxfile
from tests.docs.option_reference import parsers

_CASE = "attention_delta-b1-h_q1-s_q0-d_v64-float32-contiguous"


@pytest.mark.parametrize(
    ("program", "stands", "typed"),
    [
        (".venv/bin/nox", ".", ".venv/bin/nox"),
        ("{checkout}/.venv/bin/nox", ".", ".venv/bin/nox"),
        ("check out/.venv/bin/nox", "..", "'check out/.venv/bin/nox' -f 'check out/noxfile.py'"),
        ("../.venv/bin/nox", "docs", "'{checkout}/.venv/bin/nox' -f '{checkout}/noxfile.py'"),
        ("/nowhere/nox", ".", "nox"),
        ("{checkout}/on the path/nox", ".", "nox"),
        ("/lib/nox/__main__.py", ".", f"{shlex.quote(sys.executable)} -m nox"),
    ],
)
def test_nox_is_named_from_where_its_user_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, stands: str, typed: str
) -> None:
    """By a path below, else by a whole one; elsewhere than beside the noxfile with that, too."""
    sessions, checkout = noxfile(), tmp_path / "check out"
    for each in (".venv/bin/nox", "on the path/nox"):
        (checkout / each).parent.mkdir(parents=True)
        (checkout / each).touch()
    (checkout / "docs").mkdir()
    monkeypatch.chdir(checkout)
    monkeypatch.setattr(shutil, "which", lambda _: str(checkout / "on the path/nox"))
    monkeypatch.setattr(sys, "argv", [program.format(checkout=checkout)])
    here = os.path.normpath(checkout / stands)
    assert sessions._typed(SimpleNamespace(invoked_from=here)) == typed.format(checkout=checkout)


def test_command_begins_as_its_user_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command names nox where nox runs, else the command that was called, by its path if any."""
    monkeypatch.delenv(NOX, raising=False)
    monkeypatch.delenv(PROGRAM, raising=False)
    assert this_program().command("bench", ["--op", "a b"]) == "kernel-workbench bench --op 'a b'"
    monkeypatch.setenv(PROGRAM, "python -m kernel_workbench")
    assert this_program().command("bench") == "python -m kernel_workbench bench"
    monkeypatch.setenv(NOX, "'a b/nox' -f x.py")
    assert this_program().command("bench") == "'a b/nox' -f x.py -s bench"
    assert this_program().command("bench", ["--gpus"]) == "'a b/nox' -f x.py -s bench -- --gpus"


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("nox -s bench -- --quick", Program("nox", is_nox=True)),
        ("'a b/nox' -f x.py -s bench", Program("'a b/nox' -f x.py", is_nox=True)),
        ("bin/kernel-workbench bench --quick", Program("bin/kernel-workbench")),
        ("python -m kernel_workbench bench", Program("python -m kernel_workbench")),
        ("pytest bench", Program("kernel-workbench")),
    ],
)
def test_program_is_read_off_a_records_command(
    monkeypatch: pytest.MonkeyPatch, command: str, program: Program
) -> None:
    """A record from elsewhere has another command; this process's program stands for it."""
    monkeypatch.delenv(NOX, raising=False)
    monkeypatch.delenv(PROGRAM, raising=False)
    assert program_of(command, "bench") == program


@pytest.mark.parametrize(
    ("session", "typed", "run"),
    [
        ("accuracy", "--kernels=mine.py --tier full", "--kernels={here}/mine.py --tier full"),
        ("accuracy", "--kernels a/b.py --kernel a", "--kernels {here}/a/b.py --kernel a"),
        ("accuracy", "--kernels=/a.py --cases=~/b", "--kernels=/a.py --cases=~/b"),
        ("accuracy", "--kernels --resume= --results", "--kernels --resume= --results"),
        ("bench", "--cache warm --against main", "--cache warm --against main"),
        ("bench", "--against=old.py", "--against={here}/old.py"),
        ("compile", "--cache here --against=a", "--cache {here}/here --against={here}/a"),
        ("report", "a b --markdown - --width 80", "{here}/a {here}/b --markdown - --width 80"),
        ("compare", "--gate ../a --gpu A100", "--gate {here}/../a --gpu A100"),
        ("history", "a --branch b:c --kernel d e", "{here}/a --branch b:c --kernel d {here}/e"),
    ],
)
def test_paths_begin_where_nox_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: str, typed: str, run: str
) -> None:
    """From another folder paths become whole ones, and all else stays; in the checkout all does."""
    words, here = typed.split(), str(tmp_path)
    called = SimpleNamespace(name=session, invoked_from=here, posargs=words)
    assert noxfile()._arguments(called) == run.format(here=here).split()
    monkeypatch.chdir(tmp_path)
    assert noxfile()._arguments(called) == words


def test_options_that_name_paths_are_known() -> None:
    """To the noxfile, of every session whose options docs/reference lists."""
    told = [each for parser in parsers().values() for each in parser._actions]
    paths = {"FILE", "DIR", "PATH", "RECORD", "REF|FILE"}
    named = {
        each.option_strings[0] for each in told if each.option_strings and each.metavar in paths
    }
    assert {"--kernels", "--html", "--cache"} <= named <= noxfile()._PATHS


def test_path_of_a_command_begins_where_nox_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is short below that folder, and else whole, as the checkout's are for who isn't there."""
    inside = ROOT / "tests" / "builders" / "by_hand.py"
    monkeypatch.delenv(FOLDER, raising=False)
    assert path_in_command(inside) == "tests/builders/by_hand.py"
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert path_in_command(inside) == str(inside)
    assert path_in_command(tmp_path / "mine.py") == "mine.py"


def _pasted(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if key != NOX}
    return Running(*shlex.split(command), folder=folder, variables=variables).ended()


def test_command_of_a_row_works_where_nox_was_called(tmp_path: Path) -> None:
    """Pasted into a shell that stands outside of the checkout, it runs that row alone."""
    nox = f"{shlex.quote(sys.executable)} -m nox -f {shlex.quote(str(ROOT / 'noxfile.py'))}"
    results = f"--results={shlex.quote(str(tmp_path))}"
    asked = f"-s accuracy -- --device cpu --kernel delta -k float32 --case {_CASE} {results}"
    ran = _pasted(f"{nox} --no-venv {asked}", tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (row,) = read(latest(tmp_path)).rows
    again = _pasted(f"{row.reproduce} {results}", tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    records = [read(each) for each in tmp_path.glob("*.jsonl")]
    assert [[row.case.id for row in record.rows] for record in records] == [[_CASE], [_CASE]]
