"""A sample of the mutants is killed, and the catalogue is fit to try the rest: `nox -s mutants`."""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernel_workbench.oracles import OPS
from tests import ROOT
from tests.mutants import bench, catalogue
from tests.mutants.bench import Bench
from tests.mutants.mutant import Edit, EditError, Mutant, ci_cases

_SAMPLE = 8
_EDITED = [each for each in catalogue.MUTANTS if each.edits]
# A tensor of 2^32 elements, a grid's limit and a race in shared memory need a GPU.
_ON_A_GPU = {4, 6, 7}


@pytest.fixture(scope="module")
def trial(device: torch.device) -> Iterator[Bench]:
    """Yield the bench on which mutants are tried."""
    if device.type == "cuda":
        pytest.skip("mutants are tried under the interpreter")
    made = Bench(device)
    yield made
    made.close()


@pytest.mark.parametrize("mutant", catalogue.chosen((), _SAMPLE), ids=lambda each: each.name)
def test_mutant_of_the_sample_is_killed(mutant: Mutant, trial: Bench) -> None:
    """By a rule that fits it, on a case that it names, which the sound kernel passes."""
    outcome = trial(mutant)
    assert outcome.wrong is None
    assert outcome.case in mutant.case_ids
    assert outcome.tried <= len(mutant.case_ids)


def test_mutant_that_changes_nothing_survives(
    trial: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit without an effect passes every case, and that is reported."""
    known = ci_cases("attention_delta")
    monkeypatch.setattr(bench, "cases_of", lambda _: dict(list(known.items())[:9]))
    alike = next(each for each in _EDITED if each.kernel == "delta")
    comment = Edit("attention/delta.py", "_TILE = 4096  #", "_TILE = 4096  # just")
    outcome = trial(replace(alike, edits=(comment,), cases=()))
    assert outcome.rule is None
    assert outcome.wrong == "it passes all 9 cases that it was tried on"


def test_mutant_that_dies_of_something_else_is_a_problem(trial: Bench) -> None:
    """A rule that doesn't fit it says that the mutant isn't what it is meant to be."""
    mutant = next(each for each in _EDITED if each.name == "delta_rows_unmasked")
    outcome = trial(replace(mutant, rules=("workspace",)))
    assert outcome.wrong == "killed by illegal access, not by workspace"


@pytest.mark.parametrize("mutant", _EDITED, ids=lambda each: each.name)
def test_edits_apply_and_are_python(mutant: Mutant) -> None:
    """Every edit fits the kernels as they are, changes them, and leaves files that compile."""
    for file, text in mutant.edited.items():
        ast.parse(text)
        assert text != mutant.path_of(file).read_text()


def test_edit_that_no_longer_applies_is_named(tmp_path: Path, trial: Bench) -> None:
    """The mutant, the file and the text are named, in an error and in the table."""
    gone = Edit("attention/delta.py", "_TILE = 4095", "_TILE = 1")
    mutant = replace(_EDITED[0], name="of_yesterday", edits=(gone,))
    words = "mutant of_yesterday: its edit of kernels/attention/delta.py applies 0 times, not 1"
    with pytest.raises(EditError, match=words):
        mutant.write_overlay(tmp_path)
    outcome = trial(mutant)
    assert outcome.wrong is not None and words in outcome.wrong


@pytest.mark.parametrize("mutant", catalogue.MUTANTS, ids=lambda each: each.name)
def test_cases_of_a_mutant_need_no_gpu(mutant: Mutant) -> None:
    """Each has a case at least: those named by their ids are of `ci`, and others there can be."""
    assert mutant.case_ids
    named = set(mutant.case_ids) - set(mutant.own_cases)
    assert named <= set(ci_cases(mutant.op))
    allowed = OPS[mutant.op].allowed
    for case in mutant.own_cases.values():
        assert (case.op, case.tier) == (mutant.op, "ci")
        assert allowed.objection(case) is None


def test_mutants_are_many_and_told_apart() -> None:
    """75 at least, most of them edits of ours, 40 where things meet, 15 cheats; no name twice."""
    names = [each.name for each in catalogue.MUTANTS]
    assert len(names) == len(set(names)) >= 75
    assert len(_EDITED) >= 45
    assert sum(bool(each.own_cases) for each in catalogue.MUTANTS) >= 40
    assert sum(bool(each.cheats) for each in catalogue.MUTANTS) >= 15


def test_every_covered_bug_is_planted() -> None:
    """Each defect that cases are said to cover has a mutant, but for those that take a GPU."""
    table = (ROOT / "docs" / "bugs-covered.csv").read_text(encoding="utf-8")
    covered = {int(row["bug"]) for row in csv.DictReader(table.splitlines())}
    planted = {bug for each in catalogue.MUTANTS for bug in each.bugs}
    assert covered - planted == _ON_A_GPU


def test_sample_is_the_same_every_time() -> None:
    """It depends on names alone, and a name that nobody has is refused with a near one."""
    assert catalogue.chosen((), _SAMPLE) == catalogue.chosen((), _SAMPLE)
    assert len(catalogue.chosen((), _SAMPLE)) == _SAMPLE
    with pytest.raises(catalogue.UnknownMutantError, match="did you mean delta_rows_unmasked"):
        catalogue.chosen(["delta_rows_unmaskd"], None)
