"""Wrong attentions fail on the cases that say so, for the right reason, and sound ones pass all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
import torch

from kernel_workbench.oracles import (
    ATTENTION_BACKWARD,
    ATTENTION_DELTA,
    ATTENTION_FORWARD,
    ATTENTION_GRADIENTS,
)
from kernel_workbench.oracles.cases import GENERATED
from kernel_workbench.oracles.op import Case, Op, dtype_name
from kernel_workbench.reports.record import AccuracyRow
from tests.builders.by_hand import DTYPES, kernel_of, run_on
from tests.builders.plain_attention import Attention
from tests.builders.wrong_attentions import WRONG, claiming

pytestmark = pytest.mark.long_run

SOUND: dict[str, tuple[Op, Callable[..., object]]] = {
    ATTENTION_FORWARD.name: (ATTENTION_FORWARD, Attention().forward),
    ATTENTION_DELTA.name: (ATTENTION_DELTA, Attention().delta),
    ATTENTION_BACKWARD.name: (ATTENTION_BACKWARD, Attention().backward),
    ATTENTION_GRADIENTS.name: (ATTENTION_GRADIENTS, Attention().gradients),
}


def _ci(op: Op) -> list[Case]:
    """Return the cases that people wrote; `nox -s accuracy` calls each of the generated ones."""
    return [case for case in op.cases() if case.tier == "ci" and case.why != GENERATED]


def _rows(
    op: Op, function: Callable[..., object], cases: Iterable[Case], device: torch.device
) -> Iterator[AccuracyRow]:
    run, kernel = run_on(device), kernel_of(function, op=op, features=op.options)
    return (run.try_pair(kernel, case) for case in cases)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("op", SOUND)
def test_sound_attention_passes(op: str, dtype: torch.dtype, device: torch.device) -> None:
    """The attention that the wrong ones are made from has no failure of its own.

    On every case that they are found on, and on some of the others.
    """
    contract, function = SOUND[op]
    claimed = {
        case.id()
        for wrong in WRONG.values()
        if wrong.op is contract
        for case in claiming(contract, wrong.number)
    }
    of_dtype = [case for case in _ci(contract) if case.dtype == dtype]
    cases = [case for place, case in enumerate(of_dtype) if place % 5 == 0 or case.id() in claimed]
    rows = list(_rows(contract, function, cases, device))
    assert len(rows) >= 9
    assert [(row.case.id, row.reason) for row in rows if row.status != "passed"] == []


@pytest.mark.parametrize("name", WRONG)
def test_wrong_attention_fails_where_the_defect_is_claimed(name: str, device: torch.device) -> None:
    """Some of the cases that name the defect's number find it rightly, in every dtype they have."""
    wrong = WRONG[name]
    cases = claiming(wrong.op, wrong.number)
    dtypes = {dtype_name(case.dtype) for case in cases}
    found, others = set(), []
    for row in _rows(wrong.op, wrong.function, cases, device):
        if row.status != "failed":
            continue
        assert row.reason is not None
        if row.rule in wrong.rules and any(word in row.reason for word in wrong.words):
            found.add(row.case.dtype)
            if found == dtypes:
                return
        else:
            others.append((row.case.id, row.rule, row.reason))
    assert found == dtypes, others[:3]


def test_wrong_attentions_are_of_many_kinds() -> None:
    """At least fifteen of the defects that shipped somewhere are planted."""
    assert len({wrong.number for wrong in WRONG.values()}) >= 15
