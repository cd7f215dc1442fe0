"""`nox -s history`: series of a folder's records, where they change, and what a gate does."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from kernel_workbench.reports.history.__main__ import main
from kernel_workbench.reports.history.change_points import change_points
from kernel_workbench.reports.history.series import FigureSeries, read_runs, records_in, series_of
from kernel_workbench.reports.history.view import document_of
from kernel_workbench.reports.record import Row
from tests.builders.compared_records import accuracy_row, bench_row, header, profile_row, write

_STEP = 6  # the run from which on it is slower
_BOARDS = ("GPU-1", "GPU-2")


def _folder(folder: Path, rows: Sequence[Sequence[Row]], *suites: str, board: str = "") -> Path:
    """A record of each run, a day after the one before, of commits that count up."""
    for number, of_run in enumerate(rows):
        suite = suites[0] if suites else "bench"
        head = header(suite=suite, started_at=f"2026-11-{number + 1:02}T04:15:00Z")
        known = {"git_commit": f"{number:012x}", "gpu_uuid": board or _BOARDS[0]}
        environment = head.environment.model_copy(update=known)
        head = head.model_copy(update={"environment": environment})
        write(folder / f"{board}{suite}-{number}.jsonl", head, of_run)
    return folder


def _times(step: float = 1.0, runs: int = 12) -> list[list[Row]]:
    return [
        [bench_row(100.0 * (step if run >= _STEP else 1.0) * (1 + 0.001 * (run % 3)), seed=run)]
        for run in range(runs)
    ]


def _series(folder: Path) -> list[FigureSeries]:
    runs, left_out = read_runs(records_in([folder]))
    assert not left_out
    return series_of(runs)


@pytest.mark.parametrize(("step", "verdict"), [(1.05, "SLOWER"), (0.9, "FASTER")])
def test_change_has_its_run_its_size_and_the_verdict_of_compare(
    step: float, verdict: str, tmp_path: Path
) -> None:
    """Between the last run as before and the first one that is otherwise."""
    (series,) = _series(_folder(tmp_path, _times(step)))
    (change,) = series.changes
    assert change.at == _STEP
    assert change.ratio == pytest.approx(step, rel=0.005)
    assert change.verdict == verdict


def test_figures_of_each_suite_are_followed(tmp_path: Path) -> None:
    """Energy and errors too, each series by its own rule."""
    energies = [[profile_row(0.05 if run < _STEP else 0.06)] for run in range(12)]
    errors = [[accuracy_row(0.5 if run < _STEP else 0.8)] for run in range(12)]
    _folder(tmp_path, energies, "profile")
    _folder(tmp_path, errors, "accuracy")
    found = {each.line.suite: each.changes for each in _series(tmp_path)}
    assert [each.verdict for each in found["profile"]] == ["MORE"]
    assert [each.verdict for each in found["accuracy"]] == ["LESS ACCURATE"]


def test_boards_are_never_merged(tmp_path: Path) -> None:
    """Another board that is 3 % slower is another series, not a change."""
    slower: list[list[Row]] = [[bench_row(103.0, seed=run)] for run in range(6)]
    _folder(tmp_path, _times(runs=6))
    _folder(tmp_path, slower, "bench", board=_BOARDS[1])
    found = _series(tmp_path)
    assert sorted(each.line.board for each in found) == list(_BOARDS)
    assert not any(each.changes for each in found)


def test_noise_is_no_change_and_a_step_is() -> None:
    """Few of 100 series with one board's noise show a false change, and steps of 5 % all show."""
    draw = random.Random(0)
    steady = [[draw.gauss(1, 0.004) for _ in range(24)] for _ in range(100)]
    stepped = [[*each[:9], *(1.05 * value for value in each[9:])] for each in steady]
    assert sum(bool(change_points(each)) for each in steady) <= 5
    assert sum(9 in change_points(each) for each in stepped) >= 97
    assert change_points([1.0, 1.0, 2.0, 2.0, 2.0]) == []


@pytest.mark.parametrize(("step", "status"), [(1.05, 1), (0.9, 0), (1.0, 0)])
def test_gate_is_shut_by_what_got_worse(
    step: float, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not by what got better; and a report comes in any case, with the commits."""
    _folder(tmp_path, _times(step))
    assert main([str(tmp_path), "--gate", "--width=100"]) == status
    out = capsys.readouterr()
    assert ("the gate is shut: 1 series got worse" in out.err) == bool(status)
    assert ("between 000000000005 of 2026-11-06" in " ".join(out.out.split())) == (step != 1)


@pytest.mark.parametrize(("runs", "verdict", "status"), [(5, "TOO SHORT", 4), (6, "STEADY", 0)])
def test_series_that_is_too_short_is_not_steady(
    runs: int, verdict: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gate that can't tell is not open: the status says that the history is incomplete."""
    _folder(tmp_path, _times(runs=runs))
    assert main([str(tmp_path), "--width=100"]) == 0
    assert main([str(tmp_path), "--gate", "--width=100"]) == status
    out = capsys.readouterr()
    assert f" {verdict} " in out.out
    assert ("too short to tell: 1 of 1 series" in out.out) == bool(status)
    assert ("the gate can't tell: too short to tell: 1 of 1 series" in out.err) == bool(status)


def test_short_series_beside_a_long_one_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The long series gives the verdict; gate and report say how many they are silent on."""
    _folder(tmp_path, _times(runs=8))
    _folder(tmp_path, _times(runs=3), "bench", board=_BOARDS[1])
    assert main([str(tmp_path), "--gate", "--width=100"]) == 0
    captured = capsys.readouterr()
    assert " STEADY " in captured.out
    assert "too short to tell: 1 of 2 series" in " ".join(captured.out.split())
    assert "didn't look at every series: too short to tell: 1 of 2 series" in captured.err
    runs, _ = read_runs(records_in([tmp_path]))
    (part,) = document_of(series_of(runs), runs, []).parts
    assert (part.verdict, part.tone) == ("STEADY", "doubtful")


def test_short_series_of_ours_beside_long_ones_of_baselines_shuts_the_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Baselines don't gate, so that they can't stand for a kernel of ours either."""
    rows: list[list[Row]] = []
    for run in range(8):
        rows.append([bench_row(100.0, seed=run, kernel="torch", gates=False)])
        if run < 3:
            rows[-1].append(bench_row(100.0, seed=run))
    _folder(tmp_path, rows)
    assert main([str(tmp_path), "--gate", "--width=100"]) == 4
    assert "1 of 1 series" in capsys.readouterr().err


def test_page_has_the_series(tmp_path: Path) -> None:
    """Each with its line, the steady ones too."""
    _folder(tmp_path / "records", _times())
    page = tmp_path / "history.html"
    assert main([str(tmp_path / "records"), f"--html={page}"]) == 0
    assert 'class="trend"' in page.read_text()
    assert "STEADY" in page.read_text()


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ({}, "there is no such file or folder"),
        ({"a.txt": "x"}, "0 runs of bench, profile or accuracy"),
        (
            {"a.jsonl": "no record"},
            "runs of one suite there; 1 file left out",
        ),
    ],
)
def test_nothing_to_follow_is_told_in_a_sentence(
    made: dict[str, str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With status 2, and no page."""
    folder = tmp_path / "records"
    for name, text in made.items():
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    assert main([str(folder), f"--html={tmp_path / 'page.html'}"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


def _git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example")
    command = ["git", "-C", str(root), *identity, *arguments]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose branch `records` has a folder of records, and a file that is none."""
    root = tmp_path / "checkout"
    _folder(root / "nightly" / "h200", _times(1.05))
    (root / "nightly" / "broken.jsonl").write_text("no record")
    _git(tmp_path, "init", "-q", "-b", "records", str(root))
    _git(root, "add", "-A")
    _git(root, "commit", "-qm", "records")
    _git(root, "checkout", "-q", "--orphan", "main")
    _git(root, "rm", "-rfq", ".")
    (root / "a.txt").write_text("x")
    _git(root, "add", "-A")
    _git(root, "commit", "-qm", "code")
    monkeypatch.chdir(root)
    return root


@pytest.mark.parametrize("branch", ["records", "records:nightly", "records:nightly/"])
def test_records_of_a_branch_are_followed_as_they_lie_there(
    branch: str, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is checked out; what is no record is named by its branch."""
    assert main([f"--branch={branch}", "--gate", "--width=100", "--details"]) == 1
    out = capsys.readouterr()
    assert "the gate is shut: 1 series got worse" in out.err
    assert "between 000000000005 of 2026-11-06" in " ".join(out.out.split())
    assert f"{branch}: " in " ".join(out.out.split())
    assert [each.name for each in checkout.iterdir() if each.name != ".git"] == ["a.txt"]


def test_records_of_a_branch_and_of_a_folder_are_one_history(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder's are the first six runs of the same board, and the branch's the rest."""
    _git(checkout, "checkout", "-q", "records")
    for number in range(_STEP):
        (tmp_path / "own").mkdir(exist_ok=True)
        record = checkout / "nightly" / "h200" / f"bench-{number}.jsonl"
        record.rename(tmp_path / "own" / record.name)
    _git(checkout, "commit", "-qam", "fewer")
    _git(checkout, "checkout", "-q", "main")
    assert main([str(tmp_path / "own"), "--branch=records", "--gate", "--width=100"]) == 1
    assert "between 000000000005 of 2026-11-06" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("branch", "told"),
    [
        ("no-such", "git can't give its records"),
        ("--output=x", "git can't give its records"),
        ("records:other", "git can't give its records"),
        ("records:nightly/broken.jsonl", "git can't give its records"),
        ("main", "there is no record in it"),
    ],
)
def test_branch_without_records_is_told_in_a_sentence(
    branch: str, told: str, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With status 2, and what to name instead."""
    assert main([f"--branch={branch}"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert sorted(each.name for each in checkout.iterdir()) == [".git", "a.txt"]
