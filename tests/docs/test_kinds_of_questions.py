"""The table of kinds of defects names questions that cases ask, and defects that are planted."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.docs import kinds_of_questions

_ROWS = kinds_of_questions.rows()
_KINDS = 12
_FEWEST = 3  # planted defects of a kind, each in an op of its own
_OF_TWO_OPS = "8 three and four options at once"  # two ops take options, and have kernels to change


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row["planted defect"].rpartition(":")[2])
def test_question_of_a_kind_is_asked(row: dict[str, str]) -> None:
    """`python -m tests.docs.kinds_of_questions --write` has counted the cases as they are."""
    assert kinds_of_questions.counted(row) == row
    assert kinds_of_questions.is_planted(row)


def test_each_kind_has_planted_defects_of_three_ops() -> None:
    """A kind that one op alone were asked about would pass for all."""
    defects, ops = defaultdict(set), defaultdict(set)
    for row in _ROWS:
        defects[row["kind"]].add(row["planted defect"])
        ops[row["kind"]].add(row["op"])
    assert len(defects) == _KINDS
    assert min(map(len, defects.values())) >= _FEWEST
    assert {kind for kind, of in ops.items() if len(of) < _FEWEST} == {_OF_TWO_OPS}
