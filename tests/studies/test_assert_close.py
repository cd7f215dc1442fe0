"""The study of plain tests finds what each comparison finds, and counts it."""

from __future__ import annotations

from collections import Counter

import pytest

from studies.assert_close import COMPARISONS, Totals, outcomes_of, page
from tests.mutants import catalogue

pytestmark = pytest.mark.long_run

_BY_ALL, _BY_BOUNDS = "own_rope_forward_next_position", "fwd_split_shares_averaged"
_BY_NONE, _NOT_CALLED = "cheat_copies_a_norm", "cheat_hangs"


def test_defects_are_counted_by_the_comparisons_that_find_them() -> None:
    """A wrong value is found, a right one isn't, and a mutant that hangs isn't called."""
    totals, found = Totals(), {}
    mutants = catalogue.chosen((_BY_ALL, _BY_BOUNDS, _BY_NONE, _NOT_CALLED), None)
    for mutant, outcome, alarms in outcomes_of(mutants, 1):
        totals.add(outcome, mutant.op, alarms)
        found[mutant.name] = outcome.finders
        assert (outcome.not_called is None) == (mutant.name != _NOT_CALLED)
    assert found[_BY_ALL] == set(COMPARISONS)
    assert found[_BY_BOUNDS] == {"bounds"}
    assert not found[_BY_NONE]
    counts = totals.defects, totals.called, totals.both, totals.bounds_alone, totals.neither
    assert counts == (4, 3, 1, 1, 1)
    assert totals.pairs and not totals.alarms["bounds"]
    text = page({"all": totals}, Counter({"it hangs": 1}))
    assert "|all|4|3|2|1|1|1|1|0|1|0, " in text
    assert "Not called: it hangs (1)." in text
