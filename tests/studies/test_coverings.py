"""The generated part of `full`: each pair of levels that can meet does, and nothing is stale."""

from __future__ import annotations

import pytest

from oracles import OPS
from oracles.cases import COVERINGS, GENERATED
from oracles.cases.covering import cover_pairs
from oracles.op import Op
from studies import coverings

_COVERED = [op for op in OPS.values() if coverings.file_of(op).exists()]


@pytest.mark.parametrize("op", _COVERED, ids=lambda op: op.name)
def test_every_pair_and_three_options_that_can_meet_do(op: Op) -> None:
    """No case that a kernel of ours serves would meet what none does."""
    assert coverings.covered(op, op.cases()) == []


def test_cases_that_people_wrote_do_not_meet_all() -> None:
    """Of the smallest op: without the generated ones there are pairs that never meet."""
    op = OPS["attention_delta"]
    serves = coverings.served_by(coverings.ours(op))
    lacking = cover_pairs(op, serves, coverings.written(op), "full", GENERATED)
    assert lacking


def test_files_are_of_ops_and_have_ids_once() -> None:
    """Each line is a case of `full` of the op that the file is named by."""
    for path in COVERINGS.glob("*.txt"):
        lines = path.read_text().splitlines()
        known = {case.id(): case for case in OPS[path.stem].cases()}
        assert lines
        assert len(set(lines)) == len(lines)
        assert {(known[each].why, known[each].tier) for each in lines} == {(GENERATED, "full")}
