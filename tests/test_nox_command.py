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

from reports.record import latest, read
from suites.nox_command import VARIABLE, nox_command
from tests.commands import ROOT, noxfile

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


def test_command_begins_as_nox_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no nox says how, it is found on the PATH."""
    monkeypatch.delenv(VARIABLE, raising=False)
    assert nox_command("bench", ["--", "--op", "a b"]) == "nox -s bench -- --op 'a b'"
    monkeypatch.setenv(VARIABLE, "'a b/nox' -f x.py")
    assert nox_command("bench", []) == "'a b/nox' -f x.py -s bench"


def _pasted(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if key != VARIABLE}
    shell = ["/bin/sh", "-c", command]
    return subprocess.run(
        shell, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


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
