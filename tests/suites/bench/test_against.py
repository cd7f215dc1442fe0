"""`bench -- --against`: two trees in turn, a record of each side, and the comparison's verdicts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kernel_workbench.reports.record import read
from kernel_workbench.suites.bench.against import _in_full, in_order, tell, two_sides
from kernel_workbench.suites.bench.rounds import time_in_turn
from kernel_workbench.suites.bench.worktrees import TreeError, commit_of, tree_of
from kernel_workbench.suites.run.commands import without
from tests.builders.commands import Running, wait_for
from tests.builders.compared_records import bench_row, case, header, write

pytestmark = pytest.mark.long_run

# A suite that writes the record which its tree holds, and the order that it was called in.
_FAKE = """
import os, pathlib, shutil, time
import pytest

def pytest_addoption(parser):
    parser.addoption("--results")
    parser.addoption("--kernels")

@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    log = pathlib.Path(os.environ["FAKE_LOG"])
    with log.open("a") as file:
        file.write(pathlib.Path("side.txt").read_text().strip() + "\\n")
    kernels = config.getoption("--kernels")
    source = pathlib.Path(kernels or "side.py").with_suffix(".jsonl")
    if not source.is_file():
        raise pytest.UsageError("no figures")
    folder = pathlib.Path(config.getoption("--results"))
    folder.mkdir(parents=True)
    shutil.copy(source, folder / "bench.jsonl")
    if os.environ.get("FAKE_SLOW") == str(len(log.read_text().split())):
        log.with_suffix(".waits").touch()
        try:
            time.sleep(600)
        except KeyboardInterrupt:
            return 2
    return int(os.environ.get("FAKE_STATUS", "0"))
"""


def git(root: Path, *arguments: str) -> str:
    """Run git in a repository of the test's own."""
    identity = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example"}
    identity |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example"}
    done = subprocess.run(
        ["git", "-C", str(root), *arguments],  # noqa: S607 (wherever git is)
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | identity,
    )
    return done.stdout.strip()


def commit(root: Path, centre_us: float, side: str) -> str:
    """Commit a tree whose kernel takes this long."""
    record = root / "side.jsonl"
    record.unlink(missing_ok=True)
    rows = [
        bench_row(centre_us, seed=len(side), of_processes=1),
        bench_row(case=case(m=1), of_processes=1),
    ]
    write(record, header(), rows)
    (root / "side.txt").write_text(side)
    git(root, "add", "-A")
    git(root, "commit", "-qm", side)
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with two commits: the second's kernel is 2 % slower."""
    root = tmp_path / "checkout"
    suite = root / "kernel_workbench" / "suites" / "bench"
    suite.mkdir(parents=True)
    (suite / "conftest.py").write_text(_FAKE)
    (root / "reports").mkdir()
    (root / "reports" / "schema.py").write_text("PROTOCOL = 2\n")
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    git(root.parent, "init", "-q", "-b", "main", str(root))
    commit(root, 100.0, "old")
    git(root, "tag", "old")
    commit(root, 102.0, "new")
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:cacheprovider")
    return root


def time_sides(
    checkout: Path,
    against: str = "old",
    *,
    files: Sequence[str] = (),
    arguments: Sequence[str] = ("kernel_workbench/suites/bench",),
    gate: bool = False,
    turns: int = 1,
) -> int:
    """Do what `nox -s bench -- --against` does in the checkout; return its exit status."""
    with two_sides(against, files, arguments, checkout, checkout) as sides:
        command = f"nox -s bench -- --against {against}"
        timed = time_in_turn(in_order(sides, turns), checkout.parent / "results", command)
        return tell(timed, gate=gate)


def test_against_runs_in_turn_and_finds_the_slower_commit(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A B B A, twice; each side's record has its four processes, and the 2 % are found."""
    assert time_sides(checkout, gate=True, turns=2) == 1
    log = (checkout.parent / "log").read_text().split()
    assert log == ["old", "new", "new", "old"] * 2
    shown = capsys.readouterr().out
    assert "SLOWER, B beside A: 1 row" in shown
    assert "A by 4 processes, B by 4 processes" in shown
    results = checkout.parent / "results"
    a, b = sorted(results.glob("*.jsonl"))
    assert [a.stem[-2:], b.stem[-2:]] == ["-a", "-b"]
    record = read(a)
    assert record.problem is None
    assert record.header.command == "nox -s bench -- --against old"
    assert [len(row.processes) for row in record.benches] == [4, 4]
    assert [path.name for path in results.iterdir() if path.name.startswith(".")] == []


def test_against_times_this_tree_with_what_is_not_committed(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Side B is the tree as it lies there, and is said to be."""
    (checkout / "side.txt").write_text("edited")
    assert time_sides(checkout) == 0
    log = (checkout.parent / "log").read_text().split()
    assert log == ["old", "edited", "edited", "old"]
    assert "B: this tree, and what isn't committed" in capsys.readouterr().out


def test_against_a_file_runs_both_files_in_this_tree(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--kernels new.py --against old.py`: side A has the older file in place of the newer."""
    for name, centre in (("older", 100.0), ("newer", 103.0)):
        (checkout.parent / f"{name}.py").touch()
        row = bench_row(centre, kernel=name, of_processes=1)
        write(checkout.parent / f"{name}.jsonl", header(), [row])
    newer = str(checkout.parent / "newer.py")
    arguments = ("kernel_workbench/suites/bench", "--kernels", newer)
    assert time_sides(checkout, "../older.py", files=(newer,), arguments=arguments, turns=2) == 0
    shown = capsys.readouterr().out
    assert "newer of B is compared with older of A" in shown
    assert "SLOWER, B beside A: 1 row" in shown
    assert (checkout.parent / "log").read_text().split() == ["new"] * 8


@pytest.mark.parametrize(
    ("against", "changes", "words"),
    [
        ("nowhere", {}, "--against nowhere: git knows no such commit here"),
        ("--help", {}, "--against --help: git knows no such commit here"),
        ("gone.py", {"files": ("new.py",)}, "--against gone.py: there is no such file"),
        ("gone.py", {}, "name the newer file too"),
        ("bare", {}, "is older than the suite that times"),
        ("rules", {}, "times by protocol 1 and this tree by 2"),
        (
            "old",
            {
                "arguments": (
                    "kernel_workbench/suites/bench",
                    f"--kernels={Path(__file__).resolve()}",
                )
            },
            "isn't in this checkout, so old has no other version of it",
        ),
    ],
)
def test_against_refuses_in_one_sentence(
    checkout: Path, against: str, changes: dict[str, Any], words: str
) -> None:
    """Nothing is timed if a commit or a file is missing, can't time, or has no other version."""
    git(checkout, "checkout", "-q", "--orphan", "empty")
    git(checkout, "rm", "-rqf", ".")
    (checkout / "file").touch()
    git(checkout, "add", "file")
    git(checkout, "commit", "-qm", "bare")
    git(checkout, "tag", "bare")
    git(checkout, "checkout", "-q", "main")
    (checkout / "reports" / "schema.py").write_text("PROTOCOL = 1\n")
    git(checkout, "commit", "-qam", "rules")
    git(checkout, "tag", "rules")
    git(checkout, "revert", "--no-edit", "HEAD")
    with pytest.raises(TreeError, match=words) as refused:
        time_sides(checkout, against, **changes)
    assert "\n" not in str(refused.value)
    assert not (checkout.parent / "log").exists()


def test_against_needs_a_git_checkout(tmp_path: Path) -> None:
    """A tree that was unpacked has no other commits."""
    with pytest.raises(TreeError, match="is no git checkout"):
        commit_of(tmp_path, "main")


def test_process_without_a_record_ends_the_run_and_keeps_the_rest(
    checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The record of the side that was timed is written, and the exit status isn't 0."""
    (checkout / "side.jsonl").unlink()
    assert time_sides(checkout) != 0
    shown, errors = capfd.readouterr()
    assert "made no record" in errors
    assert "one side has no process" in errors
    assert "no figures" in errors
    (kept,) = (checkout.parent / "results").glob("*.jsonl")
    assert str(kept) in shown
    assert len(read(kept).benches) == 2


def test_failing_rows_set_the_exit_status(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A suite that ends with status 1 has a row that is wrong: so does the whole, which is told."""
    monkeypatch.setenv("FAKE_STATUS", "1")
    assert time_sides(checkout) == 1
    assert "Speed: B beside A" in capsys.readouterr().out


def test_interrupted_run_compares_what_it_has(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the third process: both sides have one, the report comes, the status is 2."""
    monkeypatch.setenv("FAKE_SLOW", "3")
    code = (
        "import sys; from pathlib import Path; from tests.suites.bench.test_against import *; "
        "root = Path(sys.argv[1]); sys.exit(time_sides(root))"
    )
    running = Running(sys.executable, "-c", code, checkout)
    waits = checkout.parent / "log.waits"
    wait_for(waits.exists, running)
    done = running.ended(by=signal.SIGINT)
    assert done.returncode == 2
    assert "Speed: B beside A" in done.stdout
    assert done.stderr.splitlines()[-1] == "bench: interrupted"
    assert "Traceback" not in done.stderr


def test_tree_is_that_of_the_commit_and_is_removed(checkout: Path) -> None:
    """Two runs may have the same commit's tree; git forgets a tree with its folder."""
    sha = commit_of(checkout, "old")
    with tree_of(checkout, sha) as tree, tree_of(checkout, sha) as other:
        assert tree != other
        assert (tree / "side.txt").read_text() == "old"
        assert git(tree, "rev-parse", "HEAD") == sha
        (tree / "side.txt").write_text("changed")
    assert not tree.exists()
    assert len(git(checkout, "worktree", "list").splitlines()) == 1


def test_arguments_of_a_process_name_files_in_full_and_lack_our_own() -> None:
    """A side's process runs in another folder, and once."""
    own = {"--against": True, "--gate": False}
    given = ["--against", "main", "--op", "x", "--gate", "--against=y", "--kernels", "a.py"]
    assert without(given, own) == ["--op", "x", "--kernels", "a.py"]
    assert _in_full(["--kernels", "a.py", "--cases=b.jsonl", "--op", "x"], Path("/here")) == [
        *("--kernels", "/here/a.py", "--cases=/here/b.jsonl", "--op", "x")
    ]
