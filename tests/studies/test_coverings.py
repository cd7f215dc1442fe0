"""The generated cases: each pair of levels that can meet does, and nothing is stale."""

from __future__ import annotations

import pytest

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.cases import COVERINGS, GENERATED, TIERS
from kernel_workbench.oracles.op import Op, Tier
from studies import coverings

pytestmark = pytest.mark.long_run

_COVERED = [op for op in OPS.values() if coverings.file_of(op, "ci").exists()]


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("op", _COVERED, ids=lambda op: op.name)
def test_every_pair_and_three_options_that_can_meet_do(op: Op, tier: Tier) -> None:
    """No case that a kernel of ours serves would meet what none does; in `ci`, no quick one."""
    assert coverings.covered(op, op.cases(), tier) == []


@pytest.mark.parametrize("tier", TIERS)
def test_cases_that_people_wrote_do_not_meet_all(tier: Tier) -> None:
    """The smallest op has pairs that never meet without the generated cases."""
    op = OPS["attention_delta"]
    assert coverings.covered(op, coverings.written(op), tier)


def test_files_are_of_ops_and_have_ids_once() -> None:
    """Each line is a case, of the op that the file and of the tier that its folder is named by."""
    assert {each.parent.name for each in COVERINGS.glob("*/*.txt")} == set(TIERS)
    for path in COVERINGS.glob("*/*.txt"):
        lines = path.read_text().splitlines()
        known = {case.id(): case for case in OPS[path.stem].cases()}
        assert lines
        assert len(set(lines)) == len(lines)
        found = {(known[each].why, known[each].tier) for each in lines}
        assert found == {(GENERATED, path.parent.name)}
