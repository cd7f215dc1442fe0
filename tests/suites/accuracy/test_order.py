"""Cases that wrong kernels die of come first, and a quick run has those alone."""

from __future__ import annotations

import pytest

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.cases.factors import levels_of
from kernel_workbench.oracles.op import Case, Op
from kernel_workbench.suites.accuracy.order import by_early_death
from kernel_workbench.suites.accuracy.quick_cases import MOST_CASES

_NAMES = ("softmax_forward", "rms_norm_backward", "attention_delta", "layer_norm_backward")


def _ci(op: Op) -> list[Case]:
    return [case for case in op.cases() if case.tier == "ci"]


@pytest.mark.parametrize("name", _NAMES)
def test_order_keeps_every_case_once(name: str) -> None:
    """And is the same whichever way the cases came."""
    op = OPS[name]
    listed = _ci(op)
    ordered = by_early_death(op, listed)
    assert len(ordered) == len(listed)
    assert set(ordered) == set(listed)
    assert by_early_death(op, listed) == ordered


@pytest.mark.parametrize("name", _NAMES)
def test_first_cases_meet_more_levels_than_the_list_does(name: str) -> None:
    """Seven in ten of the levels that any case meets; each case computes something."""
    op = OPS[name]
    listed = _ci(op)
    first = by_early_death(op, listed)[:MOST_CASES]

    def met(cases: list[Case]) -> set[tuple[int, str]]:
        telling = (case for case in cases if op.flops(case))
        return {level for case in telling for level in enumerate(levels_of(op, case))}

    assert all(op.flops(case) for case in first)
    assert len(met(first)) >= 0.7 * len(met(listed))
    assert len(met(first)) > len(met(listed[:MOST_CASES]))
