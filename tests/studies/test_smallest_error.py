"""The measurement of the suite's power finds what is seen, and says by what."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.attention.cases import attention_case
from kernel_workbench.oracles.attention.geometry import DELTA, FORWARD
from kernel_workbench.oracles.reference import ReferenceOp
from studies.smallest_error import LAYER_NORM, PLANTED, JudgedCase, Planted, measure, smallest_seen


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("emulation", [True, False])
def test_smallest_error_is_seen_and_half_of_it_isnt(*, emulation: bool) -> None:
    """By bisection, as by trying every power."""
    case = attention_case(FORWARD, (1, 2, 2, 33, 40, 16, 16), torch.float32, "ci")
    trial, planted = JudgedCase.of(OPS[FORWARD], case), Planted(FORWARD, "scale")
    seen = smallest_seen(planted, [trial], emulation=emulation)
    assert seen.power is not None
    powers = [
        power
        for power in range(27)
        if trial.rule(planted.function(1 + 2.0**-power), emulation=emulation) is not None
    ]
    assert max(powers) == seen.power
    assert seen.rule is not None
    assert seen.case == case.id()


def test_what_is_planted_nowhere_is_seen_nowhere() -> None:
    """A case without a sink tells nothing of one."""
    case = attention_case(FORWARD, (1, 1, 1, 17, 20, 8, 8), torch.float32, "ci")
    trial = JudgedCase.of(OPS[FORWARD], case)
    assert smallest_seen(Planted(FORWARD, "sink", "sink"), [trial], emulation=True).power is None


def test_every_op_of_a_package_has_something_planted() -> None:
    """That has a bound of its own; and layer norm and the delta pass what is theirs alone."""
    by_hand = {name for name, op in OPS.items() if not isinstance(op, ReferenceOp)}
    assert {each.op for each in PLANTED} == by_hand
    assert {each.thing for each in PLANTED if each.op == LAYER_NORM} >= {"rstd", "mean", "c1", "c2"}


def test_power_of_the_delta_pass_is_that_of_fp32() -> None:
    """D off by 2^-20 of itself is seen in every dtype: it is a sum in fp32."""
    rows = list(measure([DELTA]))
    assert {row.dtype for row in rows} == {"float32", "float16", "bfloat16"}
    for row in rows:
        assert row.every.power is not None
        assert row.every.power >= 20
        assert row.bounds.power is not None
        assert row.rounding.power is not None
        assert row.every.power >= row.rounding.power >= row.bounds.power
