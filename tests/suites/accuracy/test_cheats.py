"""Each cheat fails for the reason that fits it, and no run and no record breaks on one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels.registry import KernelError, load_file
from kernel_workbench.reports.record import Record, latest, read
from kernel_workbench.suites.sandbox.judge_side import worker_process
from tests import ROOT
from tests.builders.commands import ACCURACY, run_python
from tests.mutants.bench import Bench
from tests.mutants.cheats import MUTANTS
from tests.mutants.mutant import Mutant

pytestmark = pytest.mark.long_run

_CHEATS = ROOT / "tests" / "candidates" / "cheats"
_CASE = "layer_norm_backward-m37-n760-float32-contiguous"
_HONEST = "row_persistent"
_QUIET = "--no-header --no-summary --tb=short -p no:cacheprovider"  # much as nox has it
_OUTSIDE_S = 3  # after which the process that rewrites_from_outside leaves behind does it


@pytest.fixture(scope="module")
def trial(device: torch.device) -> Iterator[Bench]:
    """Yield the suite's judge and its workers, on which cheats are tried."""
    if device.type == "cuda":
        pytest.skip("cheats are tried under the interpreter")
    made = Bench(device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_process, "_END_S", 2.0)  # after which what was stopped is killed
        yield made
    made.close()


@pytest.mark.parametrize("cheat", MUTANTS, ids=lambda each: each.kernel)
def test_cheat_fails_for_its_reason(cheat: Mutant, trial: Bench) -> None:
    """By a rule that fits it, on a case of its own, which an honest kernel passes."""
    outcome = trial(cheat)
    assert outcome.wrong is None
    assert outcome.case in cheat.case_ids


def _run(
    results: Path, *cheats: str, kernels: tuple[str, ...] = (), started: bool = False
) -> tuple[int, str]:
    """The exit status of a run of these cheats, and what it prints."""
    command = [*ACCURACY]
    command += [f"--results={results}", "--jobs=1", "--time-limit=10", f"--case={_CASE}"]
    command += [f"--kernels={_CHEATS / name}.py" for name in cheats]
    command += [f"--kernel={name}" for name in kernels]
    variables = os.environ | {"CHEATED_RESULTS": str(results), "PYTEST_ADDOPTS": _QUIET}
    ran = run_python(*command, variables=variables, started=started)
    return ran.returncode, ran.stdout + ran.stderr


def _statuses(record: Record) -> dict[str, str]:
    return {row.kernel: row.status for row in record.rows}


def test_run_of_many_cheats_has_a_verdict_on_each(tmp_path: Path) -> None:
    """Crashes, stops, lies and exits beside an honest kernel, which passes; the record is whole."""
    cheats = (
        "crashes", "stops_itself", "exits_at_once", "interrupts", "kills_its_parent",
        "forges_the_reply", "sends_garbage", "bombs_the_unpickler", "paints_the_report",
        "replaces_the_judge", "poses_as_a_baseline", "rewrites_at_exit", "first_seed_alone",
    )  # fmt: skip
    status, printed = _run(tmp_path, *cheats, kernels=(*cheats, _HONEST))
    record = read(latest(tmp_path))
    assert status == 1
    assert record.problem is None
    assert _statuses(record) == dict.fromkeys(cheats, "failed") | {_HONEST: "passed"}
    assert all(row.gates for row in record.rows)  # one of them says that it is a baseline
    assert "The suite itself failed" not in printed
    assert "Traceback" not in printed
    assert "\x1b" not in printed


def test_cheat_that_exits_while_it_is_imported_is_one_sentence(tmp_path: Path) -> None:
    """No record is begun, and the exit status isn't 0."""
    status, printed = _run(tmp_path, "exits_at_import")
    assert status == 4
    assert "while it was imported, it ended its process, with status 0" in printed
    assert "Traceback" not in printed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("cheat", ["declares_no_arithmetic", "declares_too_much"])
def test_kernel_that_declares_arithmetic_without_bounds_is_refused(cheat: str) -> None:
    """An infinite roundoff, or one of 1/2, would let any output pass."""
    words = "accumulation_roundoff must be from 2\\^-53 to 2\\^-8, got "
    with pytest.raises(KernelError, match=words):
        load_file(_CHEATS / f"{cheat}.py")


def test_record_that_was_rewritten_is_not_believed(tmp_path: Path) -> None:
    """The failures stand, in the exit status and in the record, or the record is disowned."""
    cheats = ("rewrites_the_record", "rewrites_from_outside")
    status, printed = _run(tmp_path, *cheats)
    assert status != 0
    assert "Traceback" not in printed
    time.sleep(_OUTSIDE_S + 1)
    if "something else wrote to the record" not in printed:
        assert _statuses(read(latest(tmp_path))) == dict.fromkeys(cheats, "failed")


def test_run_whose_judge_is_killed_is_no_pass(tmp_path: Path) -> None:
    """Nothing can go on without it, but nothing can be taken for a success either.

    The cheat kills its parent first, and may die of that before it reaches the judge.
    """
    status, _ = _run(tmp_path, "kills_the_judge", started=True)  # it is known by its command
    assert status != 0
    record = read(latest(tmp_path))
    assert record.problem is not None or _statuses(record) == {"kills_the_judge": "failed"}


def test_cheats_are_files_of_a_user() -> None:
    """Each has a fate in the list, or a test of its own here; it imports parts of kernels alone."""
    files = {each.stem for each in _CHEATS.glob("*.py")}
    elsewhere = {"declares_no_arithmetic", "declares_too_much", "exits_at_import"}
    assert files == {each.kernel for each in MUTANTS} | elsewhere | {"kills_the_judge"}
    imported = {
        line.split()[1]
        for each in _CHEATS.glob("*.py")
        for line in each.read_text().splitlines()
        if "from tests" in line
    }
    assert imported == {"tests.candidates.closed_form", "tests.candidates.launches"}
