"""Cases that a search draws."""

from __future__ import annotations

import pytest

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.cases.factors import is_far
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.search.draws import Draws


def _drawn(op: str, *, far: bool, seed: str = "0", count: int = 80) -> list[Case]:
    draws = Draws(OPS[op], lambda case: OPS[op].flops(case) < 1e6, seed, {}, far)
    cases = [draws.next() for _ in range(count)]
    return [case for case in cases if case is not None]


@pytest.mark.parametrize("op", ["rms_norm_forward", "rope_forward", "layer_norm_backward"])
def test_far_strides_are_drawn_where_they_take_no_memory(op: str) -> None:
    """A row offset that a kernel keeps in 32 bits is a defect of each op."""
    far = [case for case in _drawn(op, far=True) if is_far(case.layout)]
    assert len(far) >= 4
    spans = [
        sum((length - 1) * stride for length, stride in zip(of.shape, of.strides, strict=True))
        for case in far
        for of in OPS[op].geometry(case).values()
    ]
    assert sum(span >= 2**31 for span in spans) >= 4
    assert sum(is_far(case.layout) for case in _drawn(op, far=False)) <= len(far) // 2


def test_op_without_far_layouts_is_drawn_as_ever() -> None:
    """Its turns for them are draws of random levels."""
    assert len(_drawn("attention_delta", far=True)) == 80


@pytest.mark.parametrize("seed", "012345")
def test_each_distribution_comes_within_a_hundred_cases(seed: str) -> None:
    """A row of infinities may be what a defect needs, and is one of some twenty."""
    op = "quantise_rows"
    allowed = OPS[op].allowed
    assert allowed is not None
    drawn = {case.distribution for case in _drawn(op, far=True, seed=seed, count=100)}
    assert drawn == set(allowed.distributions)
